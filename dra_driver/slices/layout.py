"""Which device stands in which slice: the order in which the scheduler tries them.

From 1.36 on allocation is first fit over slices by name and devices as listed; before, the order
is not defined. Partitions come GPU by GPU, so that small ones fill one GPU before they break the
next, and whole GPUs from the other end: they come from GPUs that nobody has cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dra_driver.slices.rules import MAX_COUNTER_SETS, MAX_DEVICES

JsonObject = dict[str, Any]
_Item = TypeVar("_Item")


@dataclass(slots=True)
class DynamicGpu:
    """Entries of one GPU of which partitions are made: in `sharedCounters` and in `devices`."""

    counters: JsonObject
    partitions: list[JsonObject] = field(default_factory=list)
    whole: list[JsonObject] = field(default_factory=list)  # the GPU itself, or nothing


def arranged(
    plain: Sequence[JsonObject], dynamic: Sequence[DynamicGpu], *, apart: bool
) -> list[JsonObject]:
    """Lay devices and counters out in slices: what each has in its spec, never none.

    With `apart` (1.35 and later) counters have slices of their own; without, they must stand in
    the slice of the devices that consume them. A GPU keeps its place when it has nothing to offer
    for a while, so that no other slice changes.
    """
    parts = _of_devices(plain)
    if apart:
        counters = [gpu.counters for gpu in dynamic]
        parts += [{"sharedCounters": group} for group in _cut(counters, MAX_COUNTER_SETS)]
        for gpu in dynamic:
            parts += _of_devices(gpu.partitions) or [{"devices": []}]
        parts += _of_devices([device for gpu in reversed(dynamic) for device in gpu.whole])
    else:
        parts += [
            {"sharedCounters": [gpu.counters], "devices": [*gpu.partitions, *gpu.whole]}
            for gpu in dynamic
        ]
    return parts or [{"devices": []}]


def _of_devices(devices: Sequence[JsonObject]) -> list[JsonObject]:
    return [{"devices": part} for part in _cut(devices, MAX_DEVICES)]


def _cut(items: Sequence[_Item], size: int) -> list[list[_Item]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
