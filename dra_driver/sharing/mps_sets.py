"""Which devices of a claim have one control daemon of MPS together, and what it is told.

They are named by what stays when a partition is made anew: GPU, profile and placement.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.config import limits_by_uuid
from dra_driver.model import ResourceClaim
from dra_driver.model.errors import ConfigInvalid
from dra_driver.sharing.mps_shares import least, settings_of
from dra_driver.sharing.mps_spec import DEFAULT_SHM_BYTES, MIB, MpsDevice, MpsSpec, set_id
from dra_driver.state import ClaimRecord, DeviceRecord, Place

# How the scheduler names the requests of the claim that it makes for a Pod with extended resources
# (dynamicresources/extendeddynamicresources.go).
_OF_CONTAINER: Final = re.compile(r"container-(\d+)-request-\d+")


def with_sets(
    claim: ResourceClaim, devices: Sequence[DeviceRecord], groups: Sequence[int | None]
) -> tuple[DeviceRecord, ...]:
    """Devices of a claim, each with its set; `groups` has who shares a config with MPS.

    Raises ConfigInvalid when a container could get devices of two daemons: it reaches one only.
    """
    members: dict[tuple[int, str], list[DeviceRecord]] = {}
    for device, group in zip(devices, groups, strict=True):
        if group is not None:
            members.setdefault((group, _container(claim, device)), []).append(device)
    sets = {key: set_id(map(_key, found)) for key, found in members.items()}
    _refuse_two_daemons(claim, members, sets)
    return tuple(
        device
        if group is None
        else device.model_copy(update={"mps_set": sets[group, _container(claim, device)]})
        for device, group in zip(devices, groups, strict=True)
    )


def sets_of(record: ClaimRecord) -> Mapping[str, tuple[DeviceRecord, ...]]:
    """Give the sets that a claim needs, with its devices in each."""
    found: dict[str, list[DeviceRecord]] = {}
    for device in record.devices:
        if device.mps_set is not None:
            found.setdefault(device.mps_set, []).append(device)
    return {each: tuple(devices) for each, devices in found.items()}


def spec_of(
    mps_set: str, devices: Sequence[DeviceRecord], amounts: Mapping[Place, int] | None = None
) -> MpsSpec:
    """Tell what the daemon of a set is told, as one of its claims has recorded it.

    `amounts` are the largest shares by memory that claims have of its devices: no client may have
    more. Devices that several claims can have are served to several users. Raises ConfigInvalid.
    """
    mps = settings_of(devices)
    by_uuid = {device.uuid: device for device in devices}
    limits = limits_by_uuid(mps, tuple(by_uuid))

    def limit_mib(uuid: str) -> int | None:
        limit = least(limits.get(uuid), (amounts or {}).get(by_uuid[uuid].place))
        return None if limit is None else limit // MIB

    return MpsSpec(
        id=mps_set,
        devices=tuple(
            MpsDevice(uuid, by_uuid[uuid].gpu_uuid, limit_mib(uuid)) for uuid in sorted(by_uuid)
        ),
        thread_percentage=mps.thread_percentage,
        multi_user=mps.multi_user or any(device.share_id for device in devices),
        shm_bytes=mps.shm_size or DEFAULT_SHM_BYTES,
        selinux_label=mps.selinux_label,
    )


def _key(device: DeviceRecord) -> str:
    if device.span is None:
        return device.gpu_uuid
    return f"{device.gpu_uuid} {device.gi_profile_id} {device.span.start}+{device.span.size}"


def _container(claim: ResourceClaim, device: DeviceRecord) -> str:
    """Which container gets the device; empty: any that has the claim may."""
    found = _OF_CONTAINER.fullmatch(device.request) if claim.by_container else None
    return found[1] if found else ""


def _refuse_two_daemons(
    claim: ResourceClaim,
    members: Mapping[tuple[int, str], Sequence[DeviceRecord]],
    sets: Mapping[tuple[int, str], str],
) -> None:
    reached: dict[str, tuple[int, str]] = {}
    for key in members:
        other = reached.setdefault(key[1], key)
        if sets[other] != sets[key]:
            raise ConfigInvalid(
                f"claim {claim.ref}: sharing.strategy: MPS: {_named(members[other])} and "
                f"{_named(members[key])} would have a control daemon each, and a container reaches "
                "one only; give all of them the same config, or take a claim for each container"
            )


def _named(devices: Sequence[DeviceRecord]) -> str:
    return " with ".join(f"{device.device} (request {device.request})" for device in devices)
