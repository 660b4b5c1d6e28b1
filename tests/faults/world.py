"""What the state machine knows by itself of hardware and claims: the judge of the engine."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    Gpu,
    Health,
    HealthState,
    Inventory,
    MigProfile,
    Partition,
    Placement,
)
from dra_driver.state import DeviceRecord
from tests.support.inventories import MIB, SMALL, gpu, inventory, partition

MEDIUM: Final = MigProfile("2g.20gb", 14, 1, 19_968 * MIB, 32, 2, 2, 0, 2, 0)
GPUS: Final = 3  # by serial number; the last one can be cut into partitions
SLICES: Final = 8
Layout: TypeAlias = tuple[tuple[MigProfile, int, int], ...]  # profile, start and size of each
LAYOUTS: Final[tuple[Layout | None, ...]] = (
    (),
    ((SMALL, 0, 1), (SMALL, 1, 1), (MEDIUM, 2, 2)),
    ((MEDIUM, 0, 2), (SMALL, 2, 1)),
    None,  # MIG mode is off: it is whole
)
ABSENT: Final = ("gpu-9", "gpu-2", "gpu-2-mig-2g20gb-14-4")  # allocated in error


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of hardware that a claim has, and how."""

    gpu_uuid: str
    slices: frozenset[int]
    share_id: str | None
    admin_access: bool

    def clashes_with(self, other: "Piece") -> bool:
        """Whether two claims can't both have theirs."""
        if self.admin_access or other.admin_access or self.gpu_uuid != other.gpu_uuid:
            return False
        if not self.slices & other.slices:
            return False
        shares = {self.share_id, other.share_id}
        return self.slices != other.slices or None in shares or len(shares) == 1


def clash(ones: Iterable[Piece], others: Iterable[Piece]) -> bool:
    """Whether any two of them clash."""
    theirs = list(others)
    return any(one.clashes_with(other) for one in ones for other in theirs)


@dataclass
class World:
    """Hardware that changes under the driver."""

    minors: list[int] = field(default_factory=lambda: list(range(GPUS)))  # by serial number
    layout: int = 1
    made: int = 0  # how often partitions were made: each time with new UUIDs
    health: list[Health] = field(default_factory=lambda: [Health()] * GPUS)

    def inventory(self) -> Inventory:
        """Snapshot of it."""
        return inventory(*(self._gpu(serial) for serial in range(GPUS)))

    @property
    def cut(self) -> Layout:
        """Partitions that there are now."""
        return LAYOUTS[self.layout] or ()

    def is_cut(self, serial: int) -> bool:
        """Whether a GPU is in MIG mode, with or without partitions."""
        return serial == GPUS - 1 and LAYOUTS[self.layout] is not None

    def partition_uuid(self, number: int) -> str:
        """UUID of one of the partitions that there are now."""
        return f"MIG-{self.made:08x}-0000-0000-0000-{number:012x}"

    def reboot(self, *, swapped: bool) -> None:
        """Partitions go, two GPUs may swap their minor numbers, sick GPUs are well."""
        if swapped:
            self.minors[:2] = reversed(self.minors[:2])
        self.partition(0)
        self.health = [Health()] * GPUS

    def partition(self, layout: int) -> None:
        """Make other partitions by hand."""
        self.layout = layout
        self.made += 1

    def sicken(self, serial: int, state: HealthState) -> None:
        """Let a GPU be in that state."""
        well = state is HealthState.HEALTHY
        self.health[serial] = Health() if well else Health(state, "sick", "it is sick")

    def has(self, devices: Iterable[DeviceRecord]) -> bool:
        """Whether all hardware of a record is there now."""
        gpus = {gpu.uuid: gpu for gpu in self.inventory().gpus}
        return all(
            device.span is None
            or any(
                (part.placement, part.profile.gi_profile_id) == (device.span, device.gi_profile_id)
                for part in gpus[device.gpu_uuid].partitions
            )
            for device in devices
        )

    def piece(self, uuid: str, device: AllocatedDevice) -> Piece:
        """Piece of hardware of that UUID; a KeyError when there is none."""
        for each in self.inventory().gpus:
            if each.uuid == uuid:
                slices = frozenset(range(SLICES))
                return Piece(each.uuid, slices, device.share_id, device.admin_access)
            for part in each.partitions:
                if part.uuid == uuid:
                    slices = _slices(part.placement)
                    return Piece(each.uuid, slices, device.share_id, device.admin_access)
        raise KeyError(uuid)

    def pieces(self, devices: Iterable[AllocatedDevice]) -> list[Piece] | None:
        """Pieces that allocated names mean now, None when one can't be had."""
        known = {device.name: device for device in self.inventory().devices()}
        found = []
        for device in devices:
            named = known.get(device.device)
            sick = named is not None and not named.health.usable and not device.admin_access
            if named is None or sick:
                return None
            found.append(self.piece(named.uuid, device))
        return found

    def _gpu(self, serial: int) -> Gpu:
        # UUID and address belong to the board, the minor number does not.
        base = replace(gpu(serial), minor=self.minors[serial], health=self.health[serial])
        if not self.is_cut(serial):
            return base
        return replace(base, mig_enabled=True, partitions=self._partitions(base))

    def _partitions(self, parent: Gpu) -> tuple[Partition, ...]:
        return tuple(
            partition(
                parent,
                start,
                profile,
                size,
                gi_id=1 + number,
                uuid=self.partition_uuid(number),
            )
            for number, (profile, start, size) in enumerate(self.cut)
        )


@dataclass
class Judged:
    """One claim as the kubelet and the judge know it."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    may_hold: set[Piece]  # what it may have been given since the last Unprepare that worked
    asked: bool = False  # ... and whether Prepare was called since
    running: tuple[Piece, ...] | None = None  # what its containers have
    first: tuple[Piece, ...] | None = None  # what it was first prepared with, since Unprepare
    exists: bool = True  # in the API server, allocated to these devices


def _slices(placement: Placement) -> frozenset[int]:
    return frozenset(range(placement.start, placement.start + placement.size))
