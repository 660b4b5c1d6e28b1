"""Reads published slices as the scheduler does: counter sets, and what devices take of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.config import Settings
from dra_driver.model import Gpu, Inventory, Quantity
from dra_driver.slices import PoolPlan, ServerAbilities, build_slices
from tests.support.inventories import inventory

SETTINGS = Settings(node_name="node-a")
NEW = ServerAbilities((1, 37, 2), taints=True, counters=True, multiple_allocations=True)
OLD = ServerAbilities((1, 34, 4), taints=True, counters=True, multiple_allocations=True)
WITHOUT = ServerAbilities((1, 34, 4))


def plan_of(found: Inventory, abilities: ServerAbilities = NEW, **more: Any) -> PoolPlan:
    return build_slices(found, SETTINGS, abilities, **more)


def plan_for(*gpus: Gpu, abilities: ServerAbilities = NEW) -> PoolPlan:
    return plan_of(inventory(*gpus), abilities)


def names(plan: PoolPlan) -> list[list[str]]:
    """Names in each slice: of counter sets, then of devices."""
    return [
        [entry["name"] for key in ("sharedCounters", "devices") for entry in part.spec.get(key, ())]
        for part in plan.slices
    ]


def devices_of(plan: PoolPlan) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for part in plan.slices for device in part.devices}


Counters = dict[tuple[str, str], int]  # by name of the set and of the counter


def counters_of(name: str, group: Mapping[str, Any]) -> Counters:
    """Amounts of one set, whose name stands in field `name`."""
    return {
        (group[name], counter): int(Quantity.parse(amount["value"]))
        for counter, amount in group["counters"].items()
    }


def counters_in(plan: PoolPlan) -> Counters:
    """All that there is to be shared."""
    groups = [group for part in plan.slices for group in part.spec.get("sharedCounters", ())]
    return {key: n for group in groups for key, n in counters_of("name", group).items()}


def needs_of(device: Mapping[str, Any]) -> Counters:
    """What a device consumes."""
    uses = [counters_of("counterSet", use) for use in device["consumesCounters"]]
    return {key: amount for use in uses for key, amount in use.items()}


def permitted(there: Counters, needs: Iterable[Counters]) -> bool:
    """Whether devices with these needs can be allocated at once."""
    wanted: Counter[tuple[str, str]] = Counter()
    for need in needs:
        wanted.update(need)
    return all(amount <= there[key] for key, amount in wanted.items())
