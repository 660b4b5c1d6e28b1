"""The words of this project: GPUs, partitions, claims, health, quantities, errors. No I/O."""

from dra_driver.model.claim import (
    AllocatedDevice,
    ClaimRef,
    DeviceConfig,
    PreparedClaim,
    PreparedDevice,
    ResourceClaim,
)
from dra_driver.model.errors import (
    BadClaim,
    BadNode,
    Bug,
    DriverError,
    TryAgain,
)
from dra_driver.model.gpu import (
    Gpu,
    GpuPolicy,
    Inventory,
    MemoryType,
    MigProfile,
    Partition,
    Partitioning,
    Placement,
    Problem,
    PublishedDevice,
    Slot,
    existing_devices,
    gpu_device_name,
    made_devices,
)
from dra_driver.model.health import Health, HealthState, combined, dated
from dra_driver.model.quantity import Quantity

__all__ = [
    "AllocatedDevice",
    "BadClaim",
    "BadNode",
    "Bug",
    "ClaimRef",
    "DeviceConfig",
    "DriverError",
    "Gpu",
    "GpuPolicy",
    "Health",
    "HealthState",
    "Inventory",
    "MemoryType",
    "MigProfile",
    "Partition",
    "Partitioning",
    "Placement",
    "PreparedClaim",
    "PreparedDevice",
    "Problem",
    "PublishedDevice",
    "Quantity",
    "ResourceClaim",
    "Slot",
    "TryAgain",
    "combined",
    "dated",
    "existing_devices",
    "gpu_device_name",
    "made_devices",
]
