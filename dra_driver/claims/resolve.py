"""From what the scheduler allocated to the hardware it means: a plan, nothing changed yet."""

import time
from dataclasses import replace
from typing import Final, TypeGuard

from dra_driver.config import DeviceSharing, check_on_hardware, resolve_configs, stored_form
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    Gpu,
    HealthState,
    Inventory,
    MemoryLimitLevel,
    Partition,
    PublishedDevice,
    Quantity,
    ResourceClaim,
    SharesMode,
    Strategy,
    gpu_device_name,
)
from dra_driver.model.errors import (
    ConfigInvalid,
    DeviceNotFound,
    DeviceUnhealthy,
    HardwareBusy,
)
from dra_driver.sharing.mps_sets import with_sets
from dra_driver.state import ClaimRecord, DeviceRecord
from dra_driver.state.policies import stored_policy

_NAMED: Final = 16  # devices in a message


def plan(
    claim: ResourceClaim, inventory: Inventory, boot_id: str
) -> tuple[ClaimRecord, tuple[str, ...]]:
    """Record that says what is to be done for the claim, and what its author should know.

    Raises DeviceNotFound, DeviceUnhealthy or ConfigInvalid, each naming device and claim.
    """
    found = [_find(claim, allocated, inventory) for allocated in claim.devices]
    sharing = resolve_configs(claim, found)
    for wanted, places in sharing.groups():
        check_on_hardware(wanted.settings, [found[place] for place in places], wanted.source)
    for allocated, device, setting in zip(claim.devices, found, sharing.devices, strict=True):
        _refuse_below_level(claim.ref, allocated, device, setting)
    devices = [
        _record(allocated, device, wanted)
        for allocated, device, wanted in zip(claim.devices, found, sharing.devices, strict=True)
    ]
    by_mps = [each.group if _is_mps(each) else None for each in sharing.devices]
    record = ClaimRecord(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        boot_id=boot_id,
        planned=int(time.time()),
        devices=with_sets(claim, devices, by_mps),
    )
    return record, sharing.remarks


def missing_devices(claim: ResourceClaim, inventory: Inventory) -> list[str]:
    """Names of allocated devices that the snapshot does not hold.

    Admin access also misses a partition that is not there yet, since it may not make one.
    """
    found = [(each, inventory.device(each.device)) for each in claim.devices]
    return [
        each.device
        for each, device in found
        if device is None or (each.admin_access and not device.uuid)
    ]


def locate(record: ClaimRecord, inventory: Inventory, *, for_new_pod: bool = False) -> ClaimRecord:
    """Record with the numbers its devices have now: they change over reboots and driver reloads.

    The hardware itself never changes: a GPU is found by its UUID, a partition by GPU, profile and
    placement, or not at all, which raises DeviceNotFound (field reports dra #930, dra #951). One
    that this driver makes need not be there: step `mig` makes it again.
    A new Pod gets no device that is sick: that raises DeviceUnhealthy.
    """
    located = tuple(_locate(device, inventory) for device in record.devices)
    if for_new_pod:
        for device in located:
            _refuse_unhealthy_record(record, device, inventory)
    return record.model_copy(update={"devices": located})


def stands(record: ClaimRecord, inventory: Inventory) -> bool:
    """Whether all partitions that were made for the claim are there."""
    for device in record.devices:
        gpu = inventory.gpu(device.gpu_uuid)
        if device.span is None or not device.made or gpu is None:
            continue
        if not any(_stands_there(part, device) and part.uuid for part in gpu.partitions):
            return False
    return True


def _refuse_unhealthy_record(
    record: ClaimRecord, device: DeviceRecord, inventory: Inventory
) -> None:
    gpu = inventory.gpu(device.gpu_uuid)
    if gpu is None or device.admin_access:
        return
    there = next((part for part in gpu.partitions if _stands_there(part, device)), None)
    _refuse_unhealthy(record.ref, PublishedDevice(device.device, gpu, partition=there))


def _stands_there(partition: Partition, device: DeviceRecord) -> bool:
    place = (device.gi_profile_id, device.span)
    return (partition.profile.gi_profile_id, partition.placement) == place


def _locate(device: DeviceRecord, inventory: Inventory) -> DeviceRecord:
    gpu = inventory.gpu(device.gpu_uuid)
    if gpu is None:
        raise DeviceNotFound(
            f"GPU {device.gpu_uuid}, with which this claim was prepared as {device.device}, is not "
            "on this node any more; delete the Pod and its claim so that it is allocated again"
        )
    if device.span is None or device.made:
        return device.model_copy(update={"gpu_minor": gpu.minor})
    for found in gpu.partitions:
        is_same = found.profile.ci_profile_id == device.ci_profile_id
        if _stands_there(found, device) and is_same and found.uuid is not None:
            return device.model_copy(
                update={
                    "gpu_minor": gpu.minor,
                    "uuid": found.uuid,
                    "gi_id": found.gi_id,
                    "ci_id": found.ci_id,
                }
            )
    what = f"partition {device.device} of GPU {device.gpu_uuid}"
    _refuse_while_changing(gpu, what)
    _refuse_unless_complete(inventory, what)
    raise DeviceNotFound(
        f"partition {device.device} of GPU {device.gpu_uuid}, with which this claim was prepared, "
        "does not exist any more; make it again at the same placement, or delete the Pod and its "
        "claim"
    )


def _is_mps(wanted: DeviceSharing | None) -> TypeGuard[DeviceSharing]:
    return wanted is not None and wanted.settings.strategy is Strategy.MPS


def _find(
    claim: ResourceClaim, allocated: AllocatedDevice, inventory: Inventory
) -> PublishedDevice:
    found = inventory.device(allocated.device)
    if found is None:
        what = f"device {allocated.device} of claim {claim.ref}"
        for gpu in inventory.gpus:
            if f"{allocated.device}-".startswith(f"{gpu_device_name(gpu)}-"):
                _refuse_while_changing(gpu, what)
        _refuse_unless_complete(inventory, what)
        raise DeviceNotFound(
            f"device {allocated.device} of claim {claim.ref} is not on this node; present: "
            f"{_present(inventory)}; delete the Pod and its claim so that it is allocated again"
        )
    if not allocated.admin_access:
        _refuse_unhealthy(claim.ref, found)
    elif not found.uuid:
        raise DeviceNotFound(
            f"claim {claim.ref} has admin access to {allocated.device}, which does not exist now: "
            "it is made for a claim without admin access only"
        )
    is_made = found.is_made and not allocated.admin_access
    if is_made:
        return replace(found, partition=None)
    return replace(found, is_made=False)


def _record(
    allocated: AllocatedDevice, found: PublishedDevice, sharing: DeviceSharing | None
) -> DeviceRecord:
    slot, partition = found.slot, found.partition
    amount, level = _share_memory(allocated, found), found.memory_limit
    return DeviceRecord(
        request=allocated.request,
        pool=allocated.pool,
        device=allocated.device,
        share_id=allocated.share_id,
        admin_access=allocated.admin_access,
        gpu_uuid=found.gpu.uuid,
        gpu_minor=found.gpu.minor,
        uuid=found.uuid,
        placement=(slot.placement.start, slot.placement.size) if slot else None,
        gi_profile_id=slot.profile.gi_profile_id if slot else None,
        ci_profile_id=partition.profile.ci_profile_id if partition else None,
        gi_id=partition.gi_id if partition else None,
        ci_id=partition.ci_id if partition else None,
        share_memory=amount,
        memory_limit=amount if level is MemoryLimitLevel.CGROUP else None,
        policy=stored_policy(found.gpu.policy) if allocated.share_id else None,
        equal_shares=amount is not None and level is MemoryLimitLevel.MPS,
        sharing=stored_form(sharing.settings) if sharing else None,
        made=found.is_made,
        may_reset=found.is_made and found.gpu.policy.allow_reset,
    )


def _share_memory(allocated: AllocatedDevice, found: PublishedDevice) -> int | None:
    """Bytes of its memory that a share of a device is; None: it is not shared by memory.

    Nor was it when a claim was allocated that has none of it.
    """
    by_memory = found.gpu.policy.shares.mode is SharesMode.MEMORY
    consumed = allocated.consumed_capacity.get("memory")
    if not by_memory or consumed is None or allocated.admin_access:
        return None
    return int(Quantity.parse(consumed)) or None


def _refuse_below_level(
    claim: ClaimRef,
    allocated: AllocatedDevice,
    found: PublishedDevice,
    sharing: DeviceSharing | None,
) -> None:
    """Raise ConfigInvalid for a share whose own config gives up the limit that is required."""
    is_needed = found.memory_limit is found.gpu.policy.required_limit is MemoryLimitLevel.MPS
    if not is_needed or _share_memory(allocated, found) is None or _is_mps(sharing):
        return
    has = f"strategy {sharing.settings.strategy.value}" if sharing else "no strategy"
    raise ConfigInvalid(
        f"claim {claim}: {found.name}: its config has {has}, and shares of this device have to be "
        "limited by MPS (requireMemoryLimit: mps); allowed: sharing.strategy: MPS, or no config"
    )


def with_pods(record: ClaimRecord, claim: ResourceClaim) -> ClaimRecord:
    """Record that names the Pods whose memory is limited; without limits nobody asks for them."""
    limited = any(device.memory_limit is not None for device in record.devices)
    if not limited or not claim.pods:
        return record
    return record.model_copy(update={"pods": claim.pods})


def _present(inventory: Inventory) -> str:
    names = [device.name for device in inventory.devices()]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more or "none"


def _refuse_while_changing(gpu: Gpu, what: str) -> None:
    """Raise HardwareBusy while the GPU's layout is due: its partitions may come back."""
    if gpu.held_back:
        raise HardwareBusy(f"{what} is not there now: {gpu.held_back}")


def _refuse_unless_complete(inventory: Inventory, what: str) -> None:
    """Raise HardwareBusy while a GPU does not answer: what is missing may be there all the same."""
    silent = [
        f"{gpu.uuid}: {gpu.health.words}"
        for gpu in inventory.gpus
        if gpu.health.state is HealthState.UNKNOWN
    ]
    left_out = [
        f"{problem.subject}: {problem.message}"
        for problem in inventory.problems
        if problem.subject.startswith("gpu ")
    ]
    if silent or left_out:
        raise HardwareBusy(
            f"{what} is not known yet, while not every GPU answers ({'; '.join(silent + left_out)})"
        )


def _refuse_unhealthy(claim: ClaimRef, device: PublishedDevice) -> None:
    if not device.health.usable:
        raise DeviceUnhealthy(
            f"device {device.name} ({device.uuid or device.gpu.uuid}) of claim {claim} is "
            f"unhealthy: {device.health.words}; delete the Pod so that another device is chosen"
        )
