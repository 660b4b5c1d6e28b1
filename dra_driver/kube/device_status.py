"""A claim's `status.devices` as this driver writes it, and what the API server's refusals mean.

The words in `data` are those of the attributes in our slices, so that whoever joins metrics with
devices finds the UUID of a partition made for a claim under the name he knows.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.kube.connection import JsonObject
from dra_driver.kube.errors import Refused
from dra_driver.model import ClaimRef, ClaimStatus, DeviceStatus, DriverError, Quantity
from dra_driver.model.errors import ClaimChanged, ClaimNotAllocated, PermissionMissing

_DEVICES: Final = "status.devices"
_NOT_ALLOCATED: Final = "must be an allocated device"  # apis/resource/validation, 1.34 to 1.37


def status_patch(status: ClaimStatus, driver: str) -> JsonObject:
    """Body of a server-side apply of the claim's status.

    With the UID in it the server refuses the patch when another claim has the name now.
    """
    since = datetime.fromtimestamp(status.since, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ref = status.ref
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
        "status": {"devices": [_entry(device, driver, since) for device in status.devices]},
    }


def is_told(answer: JsonObject, driver: str) -> bool:
    """Whether the server kept our entries: with its feature gate off it drops them silently.

    The gate is DRAResourceClaimDeviceStatus, on by default from 1.33.
    """
    status = answer.get("status")
    devices = status.get("devices") if isinstance(status, dict) else None
    return any(isinstance(each, dict) and each.get("driver") == driver for each in devices or ())


def why_refused(ref: ClaimRef, error: Refused, driver: str) -> DriverError:
    """Error that says what a refused status patch means.

    From 1.36 on a missing permission for `status.devices` is a field error (gate
    DRAResourceClaimGranularStatusAuthorization, registry/resource/utils.go).
    """
    for found in error.fields:
        if found.field == _DEVICES and found.reason == "FieldValueForbidden":
            return PermissionMissing(
                f"{error}; allow verb 'associated-node:patch' on 'resourceclaims/driver' with the "
                f"name {driver!r} to this driver's account, and give it a token that is bound to "
                "its Pod or Node, as the kubelet does"
            )
        if found.field == "metadata.uid":
            return ClaimChanged(f"claim {ref} ({ref.uid}) was replaced by another of its name")
        if found.field.startswith(_DEVICES) and _NOT_ALLOCATED in found.message:
            return ClaimNotAllocated(f"claim {ref} is not allocated to its devices any more")
    return error


def _entry(device: DeviceStatus, driver: str, since: str) -> JsonObject:
    entry: JsonObject = {
        "driver": driver,
        "pool": device.pool,
        "device": device.device,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": f"{_what(device)} is ready",
                "lastTransitionTime": since,
            }
        ],
        "data": dict(_data(device)),
    }
    return entry if device.share_id is None else {**entry, "shareID": device.share_id}


def _what(device: DeviceStatus) -> str:
    if device.placement is None:
        return f"GPU {device.uuid}"
    profile = f" {device.profile}" if device.profile else ""
    return f"partition{profile} {device.uuid} of {device.parent_uuid}"


def _data(device: DeviceStatus) -> Iterator[tuple[str, Any]]:
    place = device.placement
    yield "type", "gpu" if place is None else "mig"
    yield "uuid", device.uuid
    if place is not None:
        yield "parentUUID", device.parent_uuid
        if device.profile:
            yield "profile", device.profile
        yield "placement", {"start": place.start, "size": place.size}
    if device.memory_limit is not None:
        yield "memoryLimit", str(Quantity.of(device.memory_limit))
        yield "memoryLimitLevel", device.limit_level.value
    if device.gi_id is not None:
        yield "gpuInstanceID", device.gi_id
    if device.ci_id is not None:
        yield "computeInstanceID", device.ci_id
    if device.driver_version:
        yield "driverVersion", device.driver_version
