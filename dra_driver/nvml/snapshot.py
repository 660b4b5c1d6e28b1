"""From what a look at the hardware gave to the next snapshot of it. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dra_driver.model import DriverError, Gpu, Health, HealthState, Inventory, Problem, dated
from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.gpu import Reading
from dra_driver.nvml.session import Outcome, System

GPU_LOST: Final = "gpu-lost"
NOT_ANSWERING: Final = "not-answering"
_VANISHED: Final = Health(
    HealthState.UNHEALTHY,
    GPU_LOST,
    "NVML does not list it any more, though the kernel driver has it; look for Xid lines in the "
    "kernel log",
)


def next_inventory(
    previous: Inventory | None,
    places: Mapping[int, str],
    system: System,
    outcomes: Sequence[Outcome],
    now: float,
) -> Inventory:
    """Make the snapshot that follows `previous`: the same object when nothing has changed.

    A GPU that can't be read now keeps its last description, found by its place among the GPUs
    (`places`: index to UUID), so that claims and slices can still name it; its health says why.
    So does one that NVML lists no longer, as long as the kernel driver has it.
    """
    old = {gpu.uuid: gpu for gpu in previous.gpus} if previous else {}
    gpus = {o.gpu.uuid: o.gpu for o in outcomes if isinstance(o, Reading)}
    problems = list(system.problems)
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Reading):
            problems += outcome.problems
            continue
        uuid = places.get(index, "")
        if uuid in old and uuid not in gpus:
            gpus[uuid] = replace(old[uuid], health=_failed_health(outcome))
            problems.append(Problem(uuid, f"{outcome}; its last description stays"))
        else:
            problems.append(Problem(f"gpu {index}", f"{outcome}; the GPU is left out"))
    for gpu in old.values():
        if gpu.uuid not in gpus and gpu.pci_bus_id in system.kernel_gpus:
            gpus[gpu.uuid] = replace(gpu, health=_VANISHED)
            problems.append(Problem(gpu.uuid, f"{_VANISHED.message}; its last description stays"))
    found = Inventory(
        gpus=tuple(
            _dated(gpu, old.get(gpu.uuid), now)
            for gpu in sorted(gpus.values(), key=lambda gpu: (gpu.minor, gpu.uuid))
        ),
        driver_version=system.driver_version,
        cuda_driver_version=system.cuda_driver_version,
        problems=tuple(problems),
        generation=previous.generation if previous else 0,
    )
    if found == previous:
        return previous
    return replace(found, generation=found.generation + 1)


def next_places(places: Mapping[int, str], outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Which UUID is at which index, as last seen."""
    seen = {i: o.gpu.uuid for i, o in enumerate(outcomes) if isinstance(o, Reading)}
    kept = {
        index: uuid
        for index, uuid in places.items()
        if index < len(outcomes) and index not in seen and uuid not in seen.values()
    }
    return kept | seen


def changes(previous: Inventory | None, current: Inventory) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what a person would want to read in the log: a message and its fields."""
    old = _named(previous) if previous else {}
    new = _named(current)
    for uuid in [*old, *(uuid for uuid in new if uuid not in old)]:
        if uuid not in new:
            yield "device is gone", old[uuid]
        elif uuid not in old:
            yield "device found", new[uuid]
        elif old[uuid] != new[uuid]:
            yield "device changed", new[uuid]
    said = set(previous.problems) if previous else set()
    for problem in current.problems:
        if problem not in said:
            yield "discovery problem", {"subject": problem.subject, "err": problem.message}


def _named(inventory: Inventory) -> dict[str, dict[str, str]]:
    """Each GPU and partition by identity, with the fields that describe it."""
    named: dict[str, dict[str, str]] = {}
    for gpu in inventory.gpus:
        mig = "on" if gpu.mig_enabled else "off"
        named[gpu.uuid] = {
            "gpu": gpu.uuid,
            "minor": str(gpu.minor),
            "product": gpu.product_name,
            "mig": f"{mig}, switch pending" if gpu.mig_pending else mig,
        }
        for part in gpu.partitions:
            place = f"{part.placement.start}:{part.placement.size}"
            named[f"{gpu.uuid}/{part.gi_id}/{part.uuid}"] = {
                "partition": part.uuid or "no usable compute instance",
                "gpu": gpu.uuid,
                "profile": part.profile.name,
                "placement": place,
            }
    return named


def _failed_health(outcome: CallFailed | DriverError) -> Health:
    """Lost for good as far as NVML can tell, or only silent for now."""
    if isinstance(outcome, CallFailed) and (outcome.lost or outcome.nowhere):
        return Health(HealthState.UNHEALTHY, GPU_LOST, str(outcome))
    return Health(HealthState.UNKNOWN, NOT_ANSWERING, str(outcome))


def _dated(gpu: Gpu, old: Gpu | None, now: float) -> Gpu:
    """Date a change of health; a GPU that was well from the start has no date."""
    return replace(gpu, health=dated(gpu.health, old.health if old else Health(), now))
