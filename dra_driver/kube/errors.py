"""What the API server answers when it does not do what was asked, as errors of this driver.

Only the publisher and the senders of events and claim statuses meet those that are defined here;
claims meet those of the model (`ApiUnavailable`, `ClaimNotFound`, `PermissionMissing` …).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model.errors import ApiUnavailable, Bug, DriverError, PermissionMissing, TryAgain

_LONGEST_REASON: Final = 600  # characters of the server's words that are passed on
_LONGEST_PAUSE: Final = 300.0  # seconds; a server that asks for more is asked again anyway


class NotFound(TryAgain):
    """The object does not exist (yet)."""

    reason = "NotFound"


class Conflict(TryAgain):
    """The object changed since it was read, or one of that name exists already."""

    reason = "Conflict"


class Gone(TryAgain):
    """The server no longer knows that resourceVersion: list again."""

    reason = "Gone"


class ApiBusy(ApiUnavailable):
    """The server asks to be left alone for `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Keep the pause that the server asked for."""
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field of a refused object, such as `spec.devices[3].name`, and what is wrong with it.

    `reason` is the server's word for it, such as `FieldValueForbidden`; empty when it gave none.
    """

    field: str
    message: str
    reason: str = ""


class Refused(Bug):
    """The server can't take the object as it is; the same object will never be taken."""

    reason = "Refused"

    def __init__(self, message: str, fields: tuple[FieldError, ...] = ()) -> None:
        """Keep the fields that the server named."""
        super().__init__(message)
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request does to which resource, for messages: `create resourceslices "x"`."""

    verb: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f' "{self.name}"' if self.name else "")


def failure(subject: Subject, status: int, headers: Mapping[str, str], body: bytes) -> DriverError:
    """Error for a response that is not a success."""
    words = _Words.read(body)
    said = f"cannot {subject}: the API server answered {status}: {words.message}"
    if status in (401, 403):
        return PermissionMissing(
            f"{said}; allow verb {subject.verb!r} on {subject.resource!r} to this driver's account"
        )
    if status == 404:  # noqa: PLR2004 - status codes are their own names here and below
        return NotFound(said)
    if status == 409:  # noqa: PLR2004
        return Conflict(said)
    if status == 410:  # noqa: PLR2004
        return Gone(said)
    if status == 429 or status >= 500:  # noqa: PLR2004
        pause = _pause(headers.get("Retry-After"))
        return ApiUnavailable(said) if pause is None else ApiBusy(said, pause)
    return Refused(said, words.fields)


@dataclass(frozen=True, slots=True)
class _Words:
    """The useful parts of a `Status` object (apimachinery pkg/apis/meta/v1)."""

    message: str
    fields: tuple[FieldError, ...] = ()

    @classmethod
    def read(cls, body: bytes) -> "_Words":
        try:
            status = json.loads(body)
        except ValueError:
            status = None
        if not isinstance(status, dict):
            text = body.decode(errors="replace").strip() or "(nothing)"
            return cls(text[:_LONGEST_REASON])
        details = status.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        return cls(
            str(status.get("message") or status.get("reason") or "(no reason given)")[
                :_LONGEST_REASON
            ],
            tuple(_field(cause) for cause in causes or () if isinstance(cause, dict)),
        )


def _field(cause: Mapping[str, Any]) -> FieldError:
    return FieldError(*(str(cause.get(key, "")) for key in ("field", "message", "reason")))


def _pause(header: str | None) -> float | None:
    """Seconds of a Retry-After header; None when there is none that makes sense."""
    if header is None or not header.strip().isdigit():
        return None
    return min(float(header), _LONGEST_PAUSE)
