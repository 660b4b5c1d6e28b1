"""What `dra-driver layout` prints: GPUs as entries of a layout, and how they differ from one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.config import LayoutEntry, Wanted, gpu_indexes, resolve_layout
from dra_driver.model import Gpu, Inventory
from dra_driver.model.errors import SettingInvalid


def exported(name: str, inventory: Inventory) -> tuple[dict[str, Any], list[str]]:
    """Give a file with one layout, and in words what could not be told in it.

    GPUs that are alike share an entry; devices are counted in PCI order.
    """
    indexes = gpu_indexes(inventory)
    alike: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = {}
    left_out: list[str] = []
    for gpu in sorted(inventory.gpus, key=lambda gpu: indexes[gpu.uuid]):
        has = _has(gpu)
        alike.setdefault((has.mig_enabled, tuple(has.partitions.items())), []).append(
            indexes[gpu.uuid]
        )
        left_out += _untold(gpu)
    entries = [
        LayoutEntry.model_validate(
            {
                "devices": "all" if len(alike) == 1 else places,
                "mig-enabled": is_on,
                "mig-devices": dict(counts),
            }
        ).document()
        for (is_on, counts), places in alike.items()
    ]
    return {"version": "v1", "mig-configs": {name: entries}}, left_out


def compare(
    name: str,
    layouts: Mapping[str, tuple[LayoutEntry, ...]],
    inventory: Inventory,
    *,
    asks_mode: bool,
    asks_partitions: bool,
) -> list[str]:
    """Tell of each GPU that is not, or could not be, as the layout wants."""
    indexes = gpu_indexes(inventory)
    findings: list[str] = []
    for gpu in sorted(inventory.gpus, key=lambda gpu: indexes[gpu.uuid]):
        index = indexes[gpu.uuid]
        try:
            wanted = resolve_layout(name, layouts, gpu, index)
        except SettingInvalid as error:
            findings.append(f"GPU {index}: {error}")
            continue
        if wanted is None or not asks_mode:
            continue
        has, untold = _has(gpu), list(_untold(gpu))
        if has.mig_enabled is not wanted.mig_enabled:
            findings.append(
                f"GPU {index} ({gpu.uuid}): MIG mode is {_mode(has)}, wanted {_mode(wanted)}"
            )
        elif asks_partitions and (has.partitions != wanted.partitions or untold):
            findings += [
                f"GPU {index} ({gpu.uuid}): has {_counts(has)}, wanted {_counts(wanted)}",
                *untold,
            ]
    return findings


def _has(gpu: Gpu) -> Wanted:
    names = Counter(part.profile.name for part in gpu.partitions if part.uuid)
    return Wanted(gpu.mig_enabled, dict(sorted(names.items())))


def _untold(gpu: Gpu) -> Iterator[str]:
    for part in gpu.partitions:
        if not part.uuid:
            yield (
                f"GPU {gpu.uuid}: GPU instance {part.gi_id} ({part.profile.name}) has no compute "
                "instance that takes all of it"
            )


def _mode(wanted: Wanted) -> str:
    return "on" if wanted.mig_enabled else "off"


def _counts(wanted: Wanted) -> str:
    words = (f"{count} x {name}" for name, count in sorted(wanted.partitions.items()))
    return ", ".join(words) or "no partitions"
