"""Invented hardware for tests: GPUs, partitions and snapshots with sensible defaults."""

from dataclasses import replace
from typing import Any

from dra_driver.model import Gpu, Inventory, MigProfile, Partition, Placement

MIB = 1 << 20
GIB = 1 << 30

SMALL = MigProfile("1g.10gb", 19, 0, 9856 * MIB, 16, 1, 1, 0, 1, 0)
SMALL_MEDIA = MigProfile("1g.10gb+me", 20, 7, 9856 * MIB, 16, 1, 1, 0, 1, 1)
WHOLE = MigProfile("7g.80gb", 0, 4, 81_050 * MIB, 132, 8, 7, 0, 7, 1)

H100 = Gpu(
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    minor=0,
    product_name="NVIDIA H100 80GB HBM3",
    brand="Nvidia",
    architecture="Hopper",
    compute_capability=(9, 0),
    memory_bytes=81_559 * MIB,
    pci_bus_id="0000:1b:00.0",
    pcie_root="pci0000:17",
    numa_node=0,
    addressing_mode="HMM",
    mig_capable=True,
)


def gpu(minor: int = 0, **changes: Any) -> Gpu:
    """Make an H100 of that minor number, different from the others in UUID and bus id."""
    identity: dict[str, Any] = {
        "uuid": f"GPU-00000000-0000-0000-0000-{minor:012x}",
        "minor": minor,
        "pci_bus_id": f"0000:{minor + 0x1B:02x}:00.0",
    }
    return replace(H100, **(identity | changes))


def partition(
    parent: Gpu, start: int = 0, profile: MigProfile = SMALL, size: int = 1, **changes: Any
) -> Partition:
    """Make a partition of a GPU that can be used."""
    made = Partition(
        parent_uuid=parent.uuid,
        profile=profile,
        placement=Placement(start, size),
        gi_id=7 + start,
        ci_id=0,
        uuid=f"MIG-{parent.minor:08x}-0000-0000-0000-{start:012x}",
    )
    return replace(made, **changes)


def partitioned(minor: int = 0, *starts: int, **changes: Any) -> Gpu:
    """Make an H100 in MIG mode with small partitions at these memory slices."""
    whole = gpu(minor, mig_enabled=True, **changes)
    return replace(whole, partitions=tuple(partition(whole, start) for start in starts))


def inventory(*gpus: Gpu, **changes: Any) -> Inventory:
    """Make a snapshot of a node with GPU driver 580.95.05."""
    fields = {"driver_version": "580.95.05", "cuda_driver_version": (13, 0)}
    return Inventory(gpus=gpus, **(fields | changes))
