"""How many devices there are and who has them, for whoever reads the metrics."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from dra_driver.model import DriverError, HealthState, Inventory, PublishedDevice
from dra_driver.model.gpu import Placement
from dra_driver.state import ClaimRecord, DeviceRecord, Records, is_reservation
from dra_driver.telemetry import DEVICE_STATES, DEVICE_TYPES, Metrics, logger

_log = logger(__name__)
_MOST_TOLD: Final = 1024  # prepared devices that are told by name: shares can be many


class DeviceGauges:
    """Counts devices when metrics are read, from the records as they are on disk then.

    So it is true also while another instance prepares claims, and takes no lock.
    """

    def __init__(
        self,
        records: Records,
        inventory: Callable[[], Inventory | None],
        metrics: Metrics,
        driver: str,
    ) -> None:
        self._records = records
        self._inventory = inventory
        self._metrics = metrics
        self._driver = driver

    def update(self) -> None:
        """Count anew; when the records can't be listed the last counts stay."""
        try:
            records = self._records.all()
        except DriverError as error:
            _log.warning("held devices can't be counted", err=error)
            return
        inventory = self._inventory()
        claims = [record for record in records if not is_reservation(record.ref)]
        self._metrics.set("gpu_dra_driver_records_set_aside", len(self._records.damaged))
        self._set_prepared(claims)
        self._set_info(claims, inventory)
        self._set_devices(inventory, _Users(records))

    def _set_prepared(self, claims: Iterable[ClaimRecord]) -> None:
        counts = Counter(_type(device) for claim in claims for device in claim.devices)
        for kind in DEVICE_TYPES:
            self._metrics.set("nvidia_dra_prepared_devices", counts[kind], device_type=kind)

    def _set_info(self, claims: Iterable[ClaimRecord], inventory: Inventory | None) -> None:
        told = (
            (
                claim.namespace,
                claim.name,
                self._driver,
                device.pool,
                device.device,
                profile_name(device, inventory),
                _type(device),
                device.uuid,
            )
            for claim in claims
            for device in claim.devices
        )
        series: dict[tuple[str, ...], float] = dict.fromkeys(islice(told, _MOST_TOLD), 1.0)
        self._metrics.set_all("gpu_dra_driver_prepared_device_info", series)

    def _set_devices(self, inventory: Inventory | None, users: "_Users") -> None:
        counts = Counter(
            ("mig" if device.slot else "gpu", users.state(device), device.health.state.value)
            for device in (inventory.devices() if inventory else ())
        )
        for kind in DEVICE_TYPES:
            for state in DEVICE_STATES:
                for health in HealthState:
                    self._metrics.set(
                        "gpu_dra_driver_devices",
                        counts[kind, state, health.value],
                        device_type=kind,
                        state=state,
                        health=health.value,
                    )


class _Users:
    """Which places of which GPUs are taken; admin access takes nothing."""

    def __init__(self, records: Iterable[ClaimRecord]) -> None:
        self._reserved: set[str] = set()
        # Profile and place: at one place there are partitions of several profiles to choose from.
        self._taken: defaultdict[str, set[tuple[int | None, Placement | None]]] = defaultdict(set)
        for record in records:
            for device in record.devices:
                if is_reservation(record.ref):
                    self._reserved.add(device.gpu_uuid)
                elif not device.admin_access:
                    self._taken[device.gpu_uuid].add((device.gi_profile_id, device.span))

    def state(self, device: PublishedDevice) -> str:
        """Tell what keeps a device from the next claim, or that it is free."""
        slot = device.slot
        span, profile = (slot.placement, slot.profile.gi_profile_id) if slot else (None, None)
        taken = self._taken.get(device.gpu.uuid, set())
        if (profile, span) in taken:
            return "prepared"
        if any(_overlap(span, other) for _, other in taken):
            return "overlapped"
        if device.gpu.held_back or device.gpu.uuid in self._reserved:
            return "held"
        return "free"


def profile_name(device: DeviceRecord, inventory: Inventory | None) -> str:
    """Name of a partition's profile; empty for a whole GPU, or when its GPU is not known now."""
    return next(_profile_names(device, inventory), "")


def _profile_names(device: DeviceRecord, inventory: Inventory | None) -> Iterator[str]:
    gpu = inventory.gpu(device.gpu_uuid) if inventory else None
    for slot in gpu.slots if gpu else ():
        if slot.profile.gi_profile_id == device.gi_profile_id:
            yield slot.profile.name


def _type(device: DeviceRecord) -> str:
    return "gpu" if device.span is None else "mig"


def _overlap(one: Placement | None, other: Placement | None) -> bool:
    return one is None or other is None or one.overlaps(other)
