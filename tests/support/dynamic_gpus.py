"""GPUs of which partitions are made on request, and partitions on them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from dra_driver.model import Gpu, GpuPolicy, Partition, Partitioning, Slot
from tests.support.mig_models import gpu_of

DYNAMIC: Final = GpuPolicy(Partitioning.DYNAMIC)


def dynamic_gpu(minor: int = 0, model: str = "h100-80gb", **changes: Any) -> Gpu:
    """Make a GPU of that model with mode Dynamic; Ampere is in MIG mode, else it could not be."""
    found = gpu_of(model, minor)
    is_in_mig_mode = found.architecture == "Ampere"
    fields: dict[str, Any] = {"policy": DYNAMIC, "mig_enabled": is_in_mig_mode, "numa_node": 0}
    return replace(found, **(fields | changes))


def with_partitions(parent: Gpu, slots: Iterable[Slot], *, foreign: bool = False) -> Gpu:
    """Make partitions on a GPU, for claims or by somebody else."""
    made = tuple(
        Partition(
            parent_uuid=parent.uuid,
            profile=slot.profile,
            placement=slot.placement,
            gi_id=7 + slot.placement.start,
            ci_id=0,
            uuid=f"MIG-{parent.minor:08x}-0000-0000-0000-{slot.placement.start:012x}",
        )
        for slot in slots
    )
    theirs = made if foreign else ()
    return replace(
        parent,
        mig_enabled=parent.mig_enabled or bool(made),
        partitions=(*parent.partitions, *made),
        foreign=(*parent.foreign, *theirs),
    )
