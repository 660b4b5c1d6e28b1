"""Reads a ResourceClaim object: what was allocated from this node's pool, with which configs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.model import AllocatedDevice, BadClaim, ClaimRef, DeviceConfig, ResourceClaim
from dra_driver.model.errors import ClaimNotAllocated, ConfigInvalid

_DEVICES: Final = "status.allocation.devices"
_FROM_CLASS: Final = "FromClass"
# On the claims that the scheduler makes for Pods with extended resources (resource/v1/types.go).
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"


def claim_from_json(obj: Mapping[str, Any], driver: str, pool: str) -> ResourceClaim:
    """Part of an allocated claim that concerns this driver and this node's pool.

    Results of other drivers, or of this driver in another pool, and opaque configs of other
    drivers are left out; a claim without any of ours has no devices. Raises ClaimNotAllocated,
    ConfigInvalid, and BadClaim that names the field when the object has not the shape of
    `resource.k8s.io/v1`.
    """
    ref = claim_ref(obj)
    status = _map(ref, obj, "status", "status")
    allocation = status.get("allocation")
    if allocation is None:
        raise ClaimNotAllocated(f"claim {ref} has no allocation: the scheduler places it first")
    if not isinstance(allocation, dict):
        raise _shape(ref, "status.allocation", "an object")
    devices = _map(ref, allocation, "devices", _DEVICES)
    results = tuple(
        _result(ref, entry, path)
        for entry, path in _list(ref, devices, "results", f"{_DEVICES}.results")
        if _text(ref, entry, "driver", path) == driver and _text(ref, entry, "pool", path) == pool
    )
    configs = tuple(_configs(ref, devices, driver, results))
    annotations = _map(ref, obj["metadata"], "annotations", "metadata.annotations")
    by_container = annotations.get(_EXTENDED) == "true"
    return ResourceClaim(ref, results, configs, tuple(_pods(ref, status)), by_container)


def claim_ref(obj: Mapping[str, Any]) -> ClaimRef:
    """Namespace, name and UID of a claim object; raises BadClaim when one is missing."""
    unknown = ClaimRef("?", "?", "?")
    metadata = _map(unknown, obj, "metadata", "metadata")
    return ClaimRef(
        *(_text(unknown, metadata, key, "metadata") for key in ("namespace", "name", "uid"))
    )


def _result(ref: ClaimRef, entry: Mapping[str, Any], path: str) -> AllocatedDevice:
    share_id = entry.get("shareID")
    if share_id is not None and not isinstance(share_id, str):
        raise _shape(ref, f"{path}.shareID", "a string")
    admin_access = entry.get("adminAccess")
    if admin_access is not None and not isinstance(admin_access, bool):
        raise _shape(ref, f"{path}.adminAccess", "true or false")
    consumed = _map(ref, entry, "consumedCapacity", f"{path}.consumedCapacity")
    return AllocatedDevice(
        request=_text(ref, entry, "request", path),
        pool=_text(ref, entry, "pool", path),
        device=_text(ref, entry, "device", path),
        share_id=share_id or None,
        admin_access=bool(admin_access),
        consumed_capacity={
            key: _text(ref, consumed, key, f"{path}.consumedCapacity") for key in consumed
        },
    )


def _configs(
    ref: ClaimRef,
    devices: Mapping[str, Any],
    driver: str,
    results: tuple[AllocatedDevice, ...],
) -> Iterator[DeviceConfig]:
    """Yield our configs, those of classes first as precedence wants it."""
    entries = _list(ref, devices, "config", f"{_DEVICES}.config")
    for entry, path in sorted(entries, key=lambda found: found[0].get("source") != _FROM_CLASS):
        requests = entry.get("requests") or []
        if not isinstance(requests, list) or not all(isinstance(name, str) for name in requests):
            raise _shape(ref, f"{path}.requests", "a list of strings")
        opaque = entry.get("opaque")
        if opaque is None:
            if _concerns(requests, results):
                raise ConfigInvalid(
                    f"claim {ref}: {path} has no 'opaque' part: only opaque parameters are "
                    "supported by this driver"
                )
            continue
        if not isinstance(opaque, dict):
            raise _shape(ref, f"{path}.opaque", "an object")
        if _text(ref, opaque, "driver", f"{path}.opaque") != driver:
            continue
        parameters = opaque.get("parameters")
        if not isinstance(parameters, dict):
            raise ConfigInvalid(
                f"claim {ref}: {path}.opaque.parameters must be an object with apiVersion and kind"
            )
        yield DeviceConfig(tuple(requests), str(entry.get("source", "")), parameters)


def _pods(ref: ClaimRef, status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the UIDs of the Pods for which the claim is reserved."""
    for entry, path in _list(ref, status, "reservedFor", "status.reservedFor"):
        if entry.get("resource") == "pods" and not entry.get("apiGroup"):
            yield _text(ref, entry, "uid", path)


def _concerns(requests: list[str], results: tuple[AllocatedDevice, ...]) -> bool:
    """Whether a config entry is for at least one of these devices."""
    return any(
        not requests or result.request in requests or result.main_request in requests
        for result in results
    )


def _shape(ref: ClaimRef, path: str, wanted: str) -> BadClaim:
    return BadClaim(f"claim {ref}: {path} must be {wanted}, as resource.k8s.io/v1 has it")


def _map(ref: ClaimRef, obj: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """Object in a field, empty when the field is absent."""
    value = obj.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _shape(ref, path, "an object")
    return value


def _list(
    ref: ClaimRef, obj: Mapping[str, Any], key: str, path: str
) -> list[tuple[Mapping[str, Any], str]]:
    """Objects in a list field with the path of each, empty when the field is absent."""
    value = obj.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _shape(ref, path, "a list of objects")
    return [(entry, f"{path}[{index}]") for index, entry in enumerate(value)]


def _text(ref: ClaimRef, obj: Mapping[str, Any], key: str, path: str) -> str:
    value = obj.get(key)
    if not isinstance(value, str) or not value:
        raise _shape(ref, f"{path}.{key}", "a string that is not empty")
    return value
