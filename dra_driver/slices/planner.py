"""Builds the slices anew only when something changed that they show.

Every claim for a partition on request changes the snapshot, twice, and none of them the slices:
hundreds of devices would be described each time, while the next claim waits for the processor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dra_driver.config import Settings
from dra_driver.model import Gpu, HealthState, Inventory, Partition
from dra_driver.slices.abilities import ServerAbilities
from dra_driver.slices.builder import PoolPlan, build_slices
from dra_driver.slices.collector import Refusals


@dataclass(frozen=True, slots=True)
class _Question:
    """All that a plan follows from, without what it does not show."""

    shown: Inventory
    abilities: ServerAbilities
    refused: Refusals
    held: Mapping[str, str]


class Planner:
    """Answers with the plan of the last time while nothing has changed; used by one thread."""

    def __init__(self, settings: Settings) -> None:
        """Know no plan yet."""
        self._settings = settings
        self._asked: _Question | None = None
        self._plan = PoolPlan(())

    def plan(
        self,
        inventory: Inventory,
        abilities: ServerAbilities,
        refused: Refusals,
        held: Mapping[str, str],
    ) -> PoolPlan:
        """Slices that should exist, as `build_slices` tells; the same object while they stay."""
        question = _Question(_shown(inventory, self._plan), abilities, dict(refused), dict(held))
        if question != self._asked:
            self._plan = build_slices(inventory, self._settings, abilities, refused, held)
            self._asked = replace(question, shown=_shown(inventory, self._plan))
        return self._plan


def _shown(inventory: Inventory, plan: PoolPlan) -> Inventory:
    """Snapshot without what does not show in the slices, laid out as in that plan."""
    gpus = tuple(
        _without_claims(gpu) if gpu.uuid in plan.on_request and gpu.is_dynamic else gpu
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=gpus, problems=(), generation=0)


def _without_claims(gpu: Gpu) -> Gpu:
    """Leave out what claims make of a GPU whose slices tell what can be made of it."""
    kept = tuple(part for part in gpu.partitions if part in gpu.foreign or _has_news(part))
    return replace(gpu, partitions=kept, mig_enabled=False, mig_pending=False)


def _has_news(partition: Partition) -> bool:
    health = partition.health
    return health.state is not HealthState.HEALTHY or bool(health.reason or health.also)
