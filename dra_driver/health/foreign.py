"""Which partitions of a dynamic GPU are not this driver's: made by hand, to be left alone.

Records are the only truth about who made a partition. They are written before it is made and
forgotten after it is removed, but a look at the hardware takes time: it may still have seen one of
a claim that has ended meanwhile. So a partition is somebody else's when two looks in a row found it
and no record then told of it. Those that stand on a GPU when it is seen as a dynamic one for the
first time are somebody else's at once: to offer their places, even for a moment, is worse than to
hold back for a moment what a claim has just left.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from dra_driver.model import DriverError, Gpu, Inventory, Partition, Partitioning, Placement
from dra_driver.state import Holding
from dra_driver.telemetry import logger

log = logger(__name__)

_Key: TypeAlias = tuple[str, int, int, Placement]


class ForeignPartitions:
    """Marks them in each new snapshot; used by one thread."""

    def __init__(self, holdings: Callable[[], Iterable[Holding]]) -> None:
        """Ask `holdings` who holds what; it may raise DriverError."""
        self._holdings = holdings
        self._unclaimed: frozenset[_Key] = frozenset()  # as of the look before
        self._known: frozenset[str] = frozenset()  # UUIDs of the GPUs that were dynamic then
        self._foreign: frozenset[_Key] = frozenset()

    def mark(self, inventory: Inventory) -> tuple[Inventory, bool]:
        """Set `foreign` of each GPU, and tell whether another look is due to be sure."""
        ours = [gpu for gpu in inventory.gpus if _is_ours(gpu)]
        there = frozenset(_key(gpu, part) for gpu in ours for part in gpu.partitions)
        unclaimed = self._without_claim(there) if there else there
        if unclaimed is None:
            self._foreign &= there  # nobody knows of the others
            is_unsure = False
        else:
            is_unsure = bool(unclaimed - self._unclaimed)
            at_once = frozenset(key for key in unclaimed if key[0] not in self._known)
            self._foreign = unclaimed & (self._unclaimed | at_once)
            self._unclaimed = unclaimed
            self._known = frozenset(gpu.uuid for gpu in ours)
        if not self._foreign:
            return inventory, is_unsure
        gpus = tuple(replace(gpu, foreign=self._of(gpu)) for gpu in inventory.gpus)
        return replace(inventory, gpus=gpus), is_unsure

    def _without_claim(self, there: Iterable[_Key]) -> frozenset[_Key] | None:
        try:
            held = {holding.place for holding in self._holdings()}
        except DriverError as error:
            log.warning("whose the partitions are is not known now", err=error)
            return None
        return frozenset(key for key in there if (key[0], key[3]) not in held)

    def _of(self, gpu: Gpu) -> tuple[Partition, ...]:
        if not _is_ours(gpu):
            return ()
        return tuple(part for part in gpu.partitions if _key(gpu, part) in self._foreign)


def _is_ours(gpu: Gpu) -> bool:
    """Whether this driver makes partitions of the GPU, so that all others are somebody else's."""
    return gpu.policy.partitioning is Partitioning.DYNAMIC


def _key(gpu: Gpu, partition: Partition) -> _Key:
    return gpu.uuid, partition.gi_id, partition.profile.gi_profile_id, partition.placement
