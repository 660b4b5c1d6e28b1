"""What the API server does to the status of a ResourceClaim before it stores it.

Written from pkg/registry/resource (resourceclaim/strategy.go, utils.go) and
pkg/apis/resource/validation of releases 1.34 to 1.37. Allocations are taken as they come: this
server has no scheduler.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.simulator.api_server.kinds import ApiError, JsonObject

Violation = tuple[str, str]

_STATUS_GATE: Final = "DRAResourceClaimDeviceStatus"
_RIGHTS_GATE: Final = "DRAResourceClaimGranularStatusAuthorization"
_RIGHTS_SINCE: Final = (1, 36)
_KEYS: Final = ("driver", "pool", "device", "shareID")
_PATH: Final = "status.devices"
_MAX_CONDITIONS: Final = 8
_MAX_DATA: Final = 10 * 1024  # bytes
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class ClaimAdmission:
    """Drops and checks device statuses as a server of that version with those gates does."""

    def __init__(self, version: tuple[int, int, int], gates: Mapping[str, bool]) -> None:
        """Set `drivers` later: from 1.36 on callers may write the device status of these only."""
        self.gates = {_STATUS_GATE: True, _RIGHTS_GATE: version[:2] >= _RIGHTS_SINCE, **gates}
        self.drivers: set[str] | None = None  # None: of all

    def __call__(self, new: JsonObject, old: JsonObject | None) -> JsonObject:
        """Claim as it is stored; raises ApiError 422. A new one is taken as it comes."""
        if old is None:
            return new
        before, after = old.get("status") or {}, dict(new.get("status") or {})
        if not self.gates[_STATUS_GATE] and not before.get("devices"):
            after.pop("devices", None)
        gone = _allocated(before) - _allocated(after)
        devices = [each for each in after.pop("devices", None) or () if _key(each) not in gone]
        if devices:
            after["devices"] = devices
        causes = (*self._forbidden(before, after), *_violations(after))
        if causes:
            said = ", ".join(f"{path}: {message}" for path, message in causes)
            name = new["metadata"]["name"]
            said = f'ResourceClaim.resource.k8s.io "{name}" is invalid: {said}'
            raise ApiError(422, "Invalid", said, causes)
        return {**new, "status": after}

    def _forbidden(self, before: JsonObject, after: JsonObject) -> Iterator[Violation]:
        if self.drivers is None or not self.gates[_RIGHTS_GATE] or not after.get("allocation"):
            return
        entries = [{_key(each): each for each in of.get("devices", [])} for of in (before, after)]
        changed = {
            key[0]
            for key in entries[0].keys() | entries[1].keys()
            if entries[0].get(key) != entries[1].get(key)
        }
        for driver in sorted(changed - self.drivers):
            message = (
                'Forbidden: changing status.devices requires resource="resourceclaims/driver", '
                f'verb="[associated-node:patch arbitrary-node:patch]" permission: "{driver}"'
            )
            yield _PATH, message


def _key(device: JsonObject) -> tuple[str, ...]:
    return tuple(str(device.get(key) or "") for key in _KEYS)


def _allocated(status: JsonObject) -> set[tuple[str, ...]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {_key(result) for result in devices.get("results") or ()}


def _violations(status: JsonObject) -> Iterator[Violation]:
    allocated, seen = _allocated(status), set()
    for index, device in enumerate(status.get("devices") or ()):
        path, key = f"{_PATH}[{index}]", _key(device)
        if key not in allocated:
            yield path, f"Invalid value: {key}: must be an allocated device in the claim"
        if key in seen:
            yield path, f"Duplicate value: {key}"
        seen.add(key)
        share = device.get("shareID")
        if share is not None and not _UUID.fullmatch(share):
            yield f"{path}.shareID", f"Invalid value: {share!r}: error validating uid"
        yield from _data(f"{path}.data", device.get("data"))
        conditions = device.get("conditions") or []
        if len(conditions) > _MAX_CONDITIONS:
            yield f"{path}.conditions", f"Too many: {len(conditions)}: must have at most 8 items"
        for number, condition in enumerate(conditions):
            yield from _condition(f"{path}.conditions[{number}]", condition)


def _data(path: str, data: Any) -> Iterator[Violation]:  # noqa: ANN401 - any JSON value
    if data is not None and not isinstance(data, dict):
        yield path, "Invalid value: must be a valid JSON object"
    elif len(json.dumps(data, separators=(",", ":"))) > _MAX_DATA:
        yield path, f"Too long: may not be more than {_MAX_DATA} bytes"


def _condition(path: str, condition: JsonObject) -> Iterator[Violation]:
    if not condition.get("type"):
        yield f"{path}.type", "Required value: is required"
    if condition.get("status") not in ("True", "False", "Unknown"):
        yield f"{path}.status", "Unsupported value: supported values are True, False, Unknown"
    if not _TIME.fullmatch(condition.get("lastTransitionTime", "")):
        yield f"{path}.lastTransitionTime", "Required value"
    if not _REASON.fullmatch(condition.get("reason", "")):
        yield f"{path}.reason", "Invalid value: a condition reason must be a word"
