"""What a prepared claim tells in its status, so that exporters can join metrics with its Pods."""

from typing import Protocol

from dra_driver.model import ClaimStatus, DeviceStatus, Inventory, Placement
from dra_driver.state import ClaimRecord, DeviceRecord


class StatusQueue(Protocol):
    """Takes statuses that are written later."""

    def add(self, status: ClaimStatus) -> None:
        """Let it be written, in the place of one of this claim that still waits."""

    def forget(self, uid: str) -> None:
        """Write nothing any more of a claim whose devices are taken back."""


def claim_status(record: ClaimRecord, inventory: Inventory | None) -> ClaimStatus | None:
    """Status of the claim, from its record; None when its slices say all there is to say.

    Partitions that were made for the claim are told: no slice has their UUIDs. The snapshot gives
    the names of their profiles.
    """
    devices = tuple(
        _status(device, device.span, inventory)
        for device in record.devices
        if device.made and device.span is not None
    )
    return ClaimStatus(record.ref, record.planned, devices) if devices else None


def _status(device: DeviceRecord, span: Placement, inventory: Inventory | None) -> DeviceStatus:
    gpu = inventory.gpu(device.gpu_uuid) if inventory else None
    profiles = (
        slot.profile.name
        for slot in (gpu.slots if gpu else ())
        if slot.profile.gi_profile_id == device.gi_profile_id
    )
    return DeviceStatus(
        pool=device.pool,
        device=device.device,
        uuid=device.uuid,
        parent_uuid=device.gpu_uuid,
        profile=next(profiles, ""),
        placement=span,
        gi_id=device.gi_id,
        ci_id=device.ci_id,
        share_id=device.share_id,
    )
