"""From a snapshot of the hardware to the ResourceSlices that should exist: pure, no I/O."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.config import Settings
from dra_driver.model import Inventory
from dra_driver.slices.abilities import ServerAbilities
from dra_driver.slices.collector import Collector, Refusals
from dra_driver.slices.layout import arranged
from dra_driver.slices.left_out import LeftOut

JsonObject = dict[str, Any]

_LONGEST_NAME: Final = 253
_HASH: Final = 8  # hex digits


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """One slice that should exist: its name, and its spec without generation and count."""

    name: str
    spec: JsonObject

    @property
    def devices(self) -> list[JsonObject]:
        """Entries of `spec.devices`; none in a slice of counters."""
        devices: list[JsonObject] = self.spec.get("devices", [])
        return devices


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """All slices of this node's pool, never none, and what they leave out.

    `on_request` has the UUIDs of GPUs that are published with what can be made of them.
    """

    slices: tuple[SlicePlan, ...]
    left_out: tuple[LeftOut, ...] = ()
    on_request: frozenset[str] = frozenset()

    def objects(self, generation: int = 1, node_uid: str = "") -> list[JsonObject]:
        """Complete ResourceSlice objects, as they are sent to the API server."""
        return [slice_object(plan, generation, len(self.slices), node_uid) for plan in self.slices]


def build_slices(
    inventory: Inventory,
    settings: Settings,
    abilities: ServerAbilities,
    refused: Refusals | None = None,
    held: Mapping[str, str] | None = None,
) -> PoolPlan:
    """Lay the devices of a snapshot out in slices of at most 64, in their stable order.

    A device that the API server would refuse is left out alone. `refused` names devices that it
    did refuse, each with the entry that was sent and its words; one whose entry has changed since
    is tried again. `held` says by GPU UUID which claim holds a partition: a reboot takes partitions
    away, and then the whole GPU is not free. No device at all makes one empty slice: the driver is
    here and has nothing.

    GPUs of which partitions are made for claims are published with all that could be made of them,
    whatever exists now: so claims come and go without a write.
    """
    collector = Collector(inventory, settings.driver_name, abilities, refused or {}, held or {})
    for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.minor):
        collector.add(gpu)
    parts = arranged(collector.plain, collector.dynamic, apart=abilities.counters_apart)
    plans = (_slice(index, part, settings) for index, part in enumerate(parts))
    return PoolPlan(tuple(plans), tuple(collector.left_out), frozenset(collector.on_request))


def slice_object(plan: SlicePlan, generation: int, count: int, node_uid: str) -> JsonObject:
    """Complete ResourceSlice; with a UID it is owned by the Node and goes when the Node goes."""
    metadata: JsonObject = {"name": plan.name}
    if node_uid:
        metadata["ownerReferences"] = [owner_reference(plan.spec["nodeName"], node_uid)]
    pool = {**plan.spec["pool"], "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {**plan.spec, "pool": pool},
    }


def owner_reference(node: str, uid: str) -> JsonObject:
    """Entry of `ownerReferences` for a Node."""
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}


def slice_name(index: int, settings: Settings) -> str:
    """Name of the n-th slice: sorts by index, as allocation does, and is the same at each start.

    A fixed name makes a create that is sent twice harmless. The digits at the end tell apart what
    the readable part does not: other drivers, nodes and pools.
    """
    identity = f"{settings.driver_name} {settings.node_name} {settings.pool}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH]
    readable = f"{index:05x}-{settings.driver_name}-{settings.node_name}".lower()
    return f"{readable[: _LONGEST_NAME - _HASH - 1].rstrip('-.')}-{digest}"


def _slice(index: int, part: JsonObject, settings: Settings) -> SlicePlan:
    spec: JsonObject = {
        "driver": settings.driver_name,
        "nodeName": settings.node_name,
        "pool": {"name": settings.pool},
        **part,
    }
    return SlicePlan(slice_name(index, settings), spec)
