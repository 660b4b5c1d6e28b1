"""Which slices count: the rules for generations, completeness and validity of pools.

As in Kubernetes 1.35 and later (structured/internal/incubating/pools_incubating.go): an incomplete
or invalid pool gives no devices at all. Slices that select nodes by label or per device are left
out: this driver publishes per node.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver.allocation.devices import Device, Slice


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of one driver that one node can use."""

    driver: str
    name: str
    devices: tuple[Device, ...] = ()  # in the order in which they are tried
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
    if len(ours) != wanted:
        if any(piece.generation > generation for piece in published):
            return None  # the driver is replacing the pool, and the newer one is not for this node
        found = sum(piece.generation == generation for piece in published)
        if found != wanted:
            trouble = f"incomplete: {found} of {wanted} slices of generation {generation}"
            return Pool(*key, trouble=trouble)
    devices = tuple(
        device for piece in sorted(ours, key=lambda piece: piece.name) for device in piece.devices
    )
    names = Counter(device.id.device for device in devices)
    repeated = sorted(name for name, times in names.items() if times > 1)
    if repeated:
        return Pool(*key, trouble=f"invalid: duplicate device name {repeated[0]}")
    return Pool(*key, devices)
