"""Bad luck from outside: what breaks under the driver until it is mended, damage, and kills."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from dra_driver.host import failpoints
from dra_driver.model.errors import ApiUnavailable
from dra_driver.state import ClaimRecord, encode
from tests.support.engine import EngineBed

BROKEN: Final = ("API server", "CDI folder", "folder of records", "lock")


class Killed(BaseException):
    """The process died at a failpoint."""


@contextmanager
def armed(point: str) -> Iterator[None]:
    """Let the process be killed at this failpoint, if it comes by."""

    def die(_: object) -> None:
        raise Killed

    failpoints._passed.clear()
    with (
        mock.patch.dict("os.environ", {failpoints.VARIABLE: point}),
        mock.patch.object(failpoints, "_signal", die),
    ):
        yield


def break_it(bed: EngineBed, what: str) -> None:
    """Let it fail from now on."""
    if what == "API server":
        bed.api.error = ApiUnavailable("the API server is away")
        return
    path = _path(bed, what)
    if path.exists():
        path.replace(_away(path))
    path.mkdir() if what == "lock" else path.touch()


def mend(bed: EngineBed, what: str) -> None:
    """Put it right, with all that it held before."""
    if what == "API server":
        bed.api.error = None
        return
    path = _path(bed, what)
    path.rmdir() if what == "lock" else path.unlink()
    if _away(path).exists():
        _away(path).replace(path)


def of_a_newer_driver(content: bytes) -> bytes:
    """Record as a newer driver might have written it, which this one can read."""
    newer = json.loads(content.splitlines()[0]) | {"schema_number": 2, "later": 1}
    return encode(ClaimRecord.model_validate(newer))


def _path(bed: EngineBed, what: str) -> Path:
    return {
        "CDI folder": bed.settings.cdi_root,
        "folder of records": bed.settings.records_folder,
        "lock": bed.settings.data_folder / "state.lock",
    }[what]


def _away(path: Path) -> Path:
    return path.with_name(f"{path.name}.away")
