"""The fewest writes that bring the API server from what it has to what it should have: pure.

Only slices of the highest generation count in a pool, and the pool is complete when there are as
many of them as each says. So one slice alone may change under the same generation; when more than
one changes, all are written anew under the next, and no reader mixes old with new
(resourceslice controller of k8s.io/dynamic-resource-allocation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.slices.builder import PoolPlan, SlicePlan, slice_object
from dra_driver.slices.compare import same_spec

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the server made of a spec that it did not store as sent."""

    sent: JsonObject
    stored: JsonObject


@dataclass(frozen=True, slots=True)
class Writes:
    """What to do, in this order: delete, update, create."""

    generation: int
    deletes: tuple[JsonObject, ...] = ()
    updates: tuple[JsonObject, ...] = ()
    creates: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def plan_writes(
    wanted: PoolPlan,
    found: Sequence[JsonObject],
    node_uid: str,
    floor: int = 0,
    accepted: Mapping[str, Accepted] | None = None,
) -> Writes:
    """Compare the wanted slices with all that this driver has on this node.

    `floor` is the highest generation that was ever used, for when nothing is left to tell.
    """
    by_name = {obj["metadata"]["name"]: obj for obj in found}
    kept: dict[str, JsonObject] = {}
    for plan in wanted.slices:
        obj = by_name.get(plan.name)
        if obj is not None and _is_ours(plan, obj):
            kept[plan.name] = obj
    obsolete = tuple(obj for obj in found if obj["metadata"]["name"] not in kept)
    pool = wanted.slices[0].spec["pool"]["name"]
    current = max([floor, *(_generation(obj) for obj in found if _pool(obj).get("name") == pool)])
    count = len(wanted.slices)

    def goals(generation: int) -> list[tuple[SlicePlan, JsonObject]]:
        return [(plan, slice_object(plan, generation, count, node_uid)) for plan in wanted.slices]

    def changed(generation: int) -> list[tuple[SlicePlan, JsonObject]]:
        return [
            (plan, goal)
            for plan, goal in goals(generation)
            if plan.name not in kept
            or not _is_reached(goal, kept[plan.name], (accepted or {}).get(plan.name))
        ]

    generation = max(current, 1)
    todo = changed(generation)
    if len(todo) > 1 and current:
        generation += 1
        todo = goals(generation)
    return Writes(
        generation,
        deletes=obsolete,
        updates=tuple(_update(kept[plan.name], goal) for plan, goal in todo if plan.name in kept),
        creates=tuple(goal for plan, goal in todo if plan.name not in kept),
    )


def _is_ours(plan: SlicePlan, obj: JsonObject) -> bool:
    """Whether the slice can be updated: these fields can't change, and a dying one is lost."""
    spec = obj.get("spec", {})
    return (
        spec.get("driver") == plan.spec["driver"]
        and spec.get("nodeName") == plan.spec["nodeName"]
        and _pool(obj).get("name") == plan.spec["pool"]["name"]
        and not obj["metadata"].get("deletionTimestamp")
    )


def _is_reached(goal: JsonObject, obj: JsonObject, accepted: Accepted | None) -> bool:
    if goal["metadata"].get("ownerReferences") and not _has_owner(goal, obj):
        return False
    if same_spec(goal["spec"], obj["spec"]):
        return True
    return (
        accepted is not None
        and same_spec(goal["spec"], accepted.sent)
        and same_spec(accepted.stored, obj["spec"])
    )


def _has_owner(goal: JsonObject, obj: JsonObject) -> bool:
    wanted = goal["metadata"]["ownerReferences"][0]
    return any(
        owner.get("uid") == wanted["uid"] for owner in obj["metadata"].get("ownerReferences") or ()
    )


def _update(obj: JsonObject, goal: JsonObject) -> JsonObject:
    """Object to put: the found one with our spec and owner."""
    metadata = {**obj["metadata"]}
    if "ownerReferences" in goal["metadata"]:
        metadata["ownerReferences"] = goal["metadata"]["ownerReferences"]
    return {**obj, "metadata": metadata, "spec": goal["spec"]}


def _pool(obj: JsonObject) -> Mapping[str, Any]:
    pool = obj.get("spec", {}).get("pool")
    return pool if isinstance(pool, dict) else {}


def _generation(obj: JsonObject) -> int:
    generation = _pool(obj).get("generation", 0)
    return generation if isinstance(generation, int) else 0
