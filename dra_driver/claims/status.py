"""What a prepared claim tells in its status, so that exporters can join metrics with its Pods."""

from collections.abc import Callable, Iterable
from typing import Protocol

from dra_driver.claims.gauges import profile_name
from dra_driver.model import ClaimStatus, DeviceStatus, DriverError, Inventory
from dra_driver.sharing.mps_shares import level_of
from dra_driver.state import ClaimRecord, DeviceRecord, Holding
from dra_driver.telemetry import logger

_log = logger(__name__)


class StatusQueue(Protocol):
    """Takes statuses that are written later."""

    def add(self, status: ClaimStatus) -> None:
        """Let it be written, in the place of one of this claim that still waits."""

    def forget(self, uid: str) -> None:
        """Write nothing any more of a claim whose devices are taken back."""


class ClaimStatuses:
    """Hands on what prepared claims tell; the last one that may change is kept in mind."""

    def __init__(
        self,
        queue: StatusQueue,
        inventory: Callable[[], Inventory | None],
        held: Callable[[], Iterable[Holding]],
    ) -> None:
        """Ask `inventory` for names, and `held` who else has the devices."""
        self._queue = queue
        self._inventory = inventory
        self._held = held
        self._told: dict[str, ClaimStatus] = {}  # by claim UID

    def may_change(self, record: ClaimRecord) -> bool:
        """Whether other claims change what this one tells."""
        return any(device.client_limit is not None for device in record.devices)

    def tell(self, record: ClaimRecord, *, only_news: bool = False) -> None:
        """Let the status of a prepared claim be written; with `only_news` if it is another now.

        Never fails: what is not told now is news at the next sweep.
        """
        if not record.name:
            return  # taken over without one
        try:
            held = tuple(self._held()) if self.may_change(record) else ()
        except DriverError as error:
            _log.warning("a claim's status is told later", claim=record.ref, err=error)
            return
        status = claim_status(record, self._inventory(), held)
        if status is None or (only_news and self._told.get(record.uid) == status):
            return
        if self.may_change(record):
            self._told[record.uid] = status
        self._queue.add(status)

    def forget(self, uid: str) -> None:
        """Tell nothing any more of a claim whose devices are taken back."""
        self._told.pop(uid, None)
        self._queue.forget(uid)


def claim_status(
    record: ClaimRecord, inventory: Inventory | None, held: Iterable[Holding] = ()
) -> ClaimStatus | None:
    """Status of the claim, from its record; None when its slices say all there is to say.

    Partitions that were made for the claim are told, since no slice has their UUIDs, and shares by
    memory with their limits, which depend on what is `held` beside them. The snapshot gives the
    names of profiles.
    """
    devices = tuple(
        _status(device, inventory, held)
        for device in record.devices
        if (device.made and device.span is not None) or device.share_memory is not None
    )
    return ClaimStatus(record.ref, record.planned, devices) if devices else None


def _status(
    device: DeviceRecord, inventory: Inventory | None, held: Iterable[Holding]
) -> DeviceStatus:
    return DeviceStatus(
        pool=device.pool,
        device=device.device,
        uuid=device.uuid,
        parent_uuid=device.gpu_uuid,
        profile=profile_name(device, inventory),
        placement=device.span,
        gi_id=device.gi_id,
        ci_id=device.ci_id,
        share_id=device.share_id,
        memory_limit=device.share_memory if device.client_limit is None else device.client_limit,
        limit_level=level_of(device, held),
        driver_version=inventory.driver_version if inventory else "",
    )
