"""Slices as the product publishes them for a node with every kind of device."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dra_driver.config import Settings
from dra_driver.model import (
    Gpu,
    GpuPolicy,
    Inventory,
    MemoryType,
    MigProfile,
    Partition,
    Placement,
    SharesMode,
    SharesPolicy,
)
from dra_driver.simulator.models import MODELS, GpuModel
from dra_driver.slices import ServerAbilities, build_slices
from tests.unit.allocation.build import NODE

_NOTHING_OPTIONAL = ServerAbilities()
MIG_MODELS = {key: model for key, model in MODELS.items() if model.gi}


def gpu_uuid(minor: int) -> str:
    """Return the UUID that the GPU with that minor number has in these tests."""
    return f"GPU-{minor:08d}-1111-2222-3333-444444444444"


def whole(minor: int, model: GpuModel) -> Gpu:
    """Build a GPU of a simulated model; no memory figure means that it shares the CPU's."""
    return Gpu(
        uuid=gpu_uuid(minor),
        minor=minor,
        product_name=model.name,
        memory_bytes=model.memory_bytes or None,
        memory_type=MemoryType.DEDICATED if model.memory_bytes else MemoryType.UNIFIED,
        mig_capable=bool(model.gi),
    )


def partitioned(minor: int, model: GpuModel) -> Gpu:
    """Build a GPU with one partition of each profile, whether or not they fit beside each other."""
    gpu = whole(minor, model)
    partitions = tuple(
        Partition(
            parent_uuid=gpu.uuid,
            profile=MigProfile(
                name=profile.name.removeprefix("MIG "),
                gi_profile_id=profile.id,
                ci_profile_id=0,
                memory_bytes=profile.memory_mib << 20,
                multiprocessors=profile.multiprocessors,
                copy_engines=profile.copy_engines,
                decoders=profile.decoders,
                encoders=profile.encoders,
                jpeg_engines=profile.jpegs,
                ofa_engines=profile.ofas,
            ),
            placement=Placement(profile.starts[0], profile.size),
            gi_id=index,
            ci_id=0,
            uuid=f"MIG-{minor:08d}-{index:04d}-0000-0000-000000000000",
        )
        for index, profile in enumerate(model.gi)
    )
    return Gpu(
        uuid=gpu.uuid,
        minor=minor,
        product_name=gpu.product_name,
        memory_bytes=gpu.memory_bytes,
        mig_capable=True,
        mig_enabled=True,
        partitions=partitions,
    )


def bare(minor: int) -> Gpu:
    """Build a GPU of which nothing is known but that it is there."""
    return Gpu(uuid=gpu_uuid(minor), minor=minor, product_name="")


def published(
    gpus: Iterable[Gpu], abilities: ServerAbilities = _NOTHING_OPTIONAL
) -> list[dict[str, Any]]:
    """Return the ResourceSlices of a node with these GPUs."""
    inventory = Inventory(gpus=tuple(gpus), driver_version="580.95.05")
    return build_slices(inventory, Settings(node_name=NODE), abilities).objects()


def kinds() -> list[Gpu]:
    """Return whole, partitioned, unified-memory and unknown GPUs.

    The unknown one comes first, so that first-fit evaluates every selector on it.
    """
    gpus = [
        bare(0),
        whole(1, MODELS["gb10"]),
        whole(2, MODELS["t4"]),
        whole(3, MODELS["h100-80gb"]),
    ]
    gpus += [partitioned(4 + index, model) for index, model in enumerate(MIG_MODELS.values())]
    return gpus


def every_kind() -> list[dict[str, Any]]:
    """Return the slices of a node with all of these GPUs."""
    return published(kinds())


def every_kind_shared() -> list[dict[str, Any]]:
    """Return the slices of a node that shares all of them under other resource names."""
    policy = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4, rename=True))
    gpus = [replace(gpu, minor=200 + gpu.minor, policy=policy) for gpu in kinds()]
    return published(gpus, ServerAbilities((1, 37, 2), multiple_allocations=True))
