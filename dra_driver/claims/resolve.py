"""From what the scheduler allocated to the hardware it means: a plan, nothing changed yet."""

from dra_driver.config import GpuConfig, MigDeviceConfig, resolve_config
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    HealthState,
    Inventory,
    PublishedDevice,
    ResourceClaim,
)
from dra_driver.model.errors import (
    ConfigInvalid,
    DeviceNotFound,
    DeviceUnhealthy,
    HardwareBusy,
)
from dra_driver.state import ClaimRecord, DeviceRecord


def plan(claim: ResourceClaim, inventory: Inventory, boot_id: str) -> ClaimRecord:
    """Record that says what is to be done for the claim.

    Raises DeviceNotFound, DeviceUnhealthy or ConfigInvalid, each naming device and claim.
    """
    return ClaimRecord(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.ref.uid,
        boot_id=boot_id,
        devices=tuple(_resolve(claim, device, inventory) for device in claim.devices),
    )


def missing_devices(claim: ResourceClaim, inventory: Inventory) -> list[str]:
    """Names of allocated devices that the snapshot does not hold."""
    present = {device.name for device in inventory.devices()}
    return [device.device for device in claim.devices if device.device not in present]


def locate(record: ClaimRecord, inventory: Inventory, *, for_new_pod: bool = False) -> ClaimRecord:
    """Record with the numbers its devices have now: they change over reboots and driver reloads.

    The hardware itself never changes: a GPU is found by its UUID, a partition by GPU, profile and
    placement, or not at all, which raises DeviceNotFound (field reports dra #930, dra #951).
    A new Pod gets no device that is sick: that raises DeviceUnhealthy.
    """
    located = tuple(_locate(device, inventory) for device in record.devices)
    if for_new_pod:
        for device in located:
            _refuse_unhealthy_record(record, device, inventory)
    return record.model_copy(update={"devices": located})


def _refuse_unhealthy_record(
    record: ClaimRecord, device: DeviceRecord, inventory: Inventory
) -> None:
    for found in inventory.devices():
        if found.uuid == device.uuid and not device.admin_access:
            _refuse_unhealthy(record.ref, found)


def _locate(device: DeviceRecord, inventory: Inventory) -> DeviceRecord:
    gpu = inventory.gpu(device.gpu_uuid)
    if gpu is None:
        raise DeviceNotFound(
            f"GPU {device.gpu_uuid}, with which this claim was prepared as {device.device}, is not "
            "on this node any more; delete the Pod and its claim so that it is allocated again"
        )
    if device.span is None:
        return device.model_copy(update={"gpu_minor": gpu.minor})
    identity = (device.gi_profile_id, device.ci_profile_id, device.span)
    for found in gpu.partitions:
        profile = found.profile
        here = (profile.gi_profile_id, profile.ci_profile_id, found.placement)
        if here == identity and found.uuid is not None:
            return device.model_copy(
                update={
                    "gpu_minor": gpu.minor,
                    "uuid": found.uuid,
                    "gi_id": found.gi_id,
                    "ci_id": found.ci_id,
                }
            )
    _refuse_unless_complete(inventory, f"partition {device.device} of GPU {device.gpu_uuid}")
    raise DeviceNotFound(
        f"partition {device.device} of GPU {device.gpu_uuid}, with which this claim was prepared, "
        "does not exist any more; make it again at the same placement, or delete the Pod and its "
        "claim"
    )


def _resolve(
    claim: ResourceClaim, allocated: AllocatedDevice, inventory: Inventory
) -> DeviceRecord:
    found = inventory.device(allocated.device)
    if found is None:
        _refuse_unless_complete(inventory, f"device {allocated.device} of claim {claim.ref}")
        present = ", ".join(device.name for device in inventory.devices()) or "none"
        raise DeviceNotFound(
            f"device {allocated.device} of claim {claim.ref} is not on this node; present: "
            f"{present}; delete the Pod and its claim so that it is allocated again"
        )
    if not allocated.admin_access:
        _refuse_unhealthy(claim.ref, found)
        _check_config(claim, allocated, found)
    partition = found.partition
    return DeviceRecord(
        request=allocated.request,
        pool=allocated.pool,
        device=allocated.device,
        share_id=allocated.share_id,
        admin_access=allocated.admin_access,
        gpu_uuid=found.gpu.uuid,
        gpu_minor=found.gpu.minor,
        uuid=found.uuid,
        placement=(partition.placement.start, partition.placement.size) if partition else None,
        gi_profile_id=partition.profile.gi_profile_id if partition else None,
        ci_profile_id=partition.profile.ci_profile_id if partition else None,
        gi_id=partition.gi_id if partition else None,
        ci_id=partition.ci_id if partition else None,
    )


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
            f"device {device.name} ({device.uuid}) of claim {claim} is unhealthy: "
            f"{device.health.words}; delete the Pod so that another "
            "device is chosen"
        )


def _check_config(
    claim: ResourceClaim, allocated: AllocatedDevice, device: PublishedDevice
) -> None:
    kind = GpuConfig if device.slot is None else MigDeviceConfig
    config = resolve_config(allocated, kind, claim.configs)
    if config is not None and config.sharing is not None:
        raise ConfigInvalid(
            f"claim {claim.ref} asks for sharing.strategy {config.sharing.strategy} on device "
            f"{device.name}, which this version of the driver does not offer; remove `sharing`"
        )
