"""Which slices count: the rules for generations, completeness and validity of pools.

As in Kubernetes 1.35 and later (structured/internal/incubating/pools_incubating.go): an incomplete
or invalid pool gives no devices at all. Slices that select nodes by label or per device are left
out: this driver publishes per node. Counters beside devices in one slice count as well, as they do
in 1.34; later releases take no such slice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.allocation.devices import Counters, Device, Slice


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of one driver that one node can use."""

    driver: str
    name: str
    devices: tuple[Device, ...] = ()  # in the order in which they are tried
    counter_sets: Mapping[str, Counters] = field(default_factory=dict)
    elsewhere: tuple[Device, ...] = ()  # for other nodes; they share the counters
    trouble: str = ""  # why it gives no devices now

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def pools_of_node(node: str, slices: Iterable[Slice]) -> tuple[Pool, ...]:
    """Return the pools that the node can use, in the order in which they are tried."""
    everywhere: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for piece in slices:
        everywhere[piece.driver, piece.pool].append(piece)
    pools = (_pool(node, key, everywhere[key]) for key in sorted(everywhere))
    return tuple(pool for pool in pools if pool is not None)


def _pool(node: str, key: tuple[str, str], published: Sequence[Slice]) -> Pool | None:
    reachable = [piece for piece in published if piece.all_nodes or piece.node == node]
    if not reachable:
        return None
    generation = max(piece.generation for piece in reachable)
    ours = [piece for piece in reachable if piece.generation == generation]
    wanted = ours[0].slice_count
    others: list[Slice] = []
    if len(ours) != wanted:
        if any(piece.generation > generation for piece in published):
            return None  # the driver is replacing the pool, and the newer one is not for this node
        others = [p for p in published if p.generation == generation and p not in ours]
        found = len(ours) + len(others)
        if found != wanted:
            trouble = f"incomplete: {found} of {wanted} slices of generation {generation}"
            return Pool(*key, trouble=trouble)
    devices = tuple(
        device for piece in sorted(ours, key=lambda piece: piece.name) for device in piece.devices
    )
    elsewhere = tuple(device for piece in others for device in piece.devices)
    sets = [group for piece in (*ours, *others) for group in piece.counter_sets]
    if wrong := _invalid(devices, elsewhere, sets):
        return Pool(*key, trouble=f"invalid: {wrong}")
    return Pool(*key, devices, dict(sets), elsewhere)


def _invalid(
    devices: Sequence[Device], elsewhere: Sequence[Device], sets: Sequence[tuple[str, Counters]]
) -> str:
    """Say why the parts of a pool contradict each other; empty: they do not."""
    if name := _repeated(device.id.device for device in devices):
        return f"duplicate device name {name}"
    if name := _repeated(name for name, _ in sets):
        return f"duplicate counter set name {name}"
    known = dict(sets)
    for device in (*devices, *elsewhere):
        for counter_set, counters in device.consumes.items():
            if counter_set not in known:
                return f"counter set {counter_set} of device {device.id.device} not found"
            for counter in counters:
                if counter not in known[counter_set]:
                    return f"counter {counter} not found in counter set {counter_set}"
    return ""


def _repeated(names: Iterable[str]) -> str:
    return min((name for name, times in Counter(names).items() if times > 1), default="")
