"""GPUs, MIG partitions, and the snapshot of all of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from dra_driver.model.health import Health, combined


class MemoryType(Enum):
    """Where a GPU's memory lives."""

    DEDICATED = "dedicated"
    UNIFIED = "unified"  # shared with the CPU; NVML then has no figure for it


@dataclass(frozen=True, slots=True)
class Placement:
    """Memory slices `start` to `start + size - 1` of a GPU, as NVML counts them."""

    start: int
    size: int

    def overlaps(self, other: "Placement") -> bool:
        """Whether both use at least one common memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of partition that one GPU offers.

    Names are not unique (field report dra #1480): the pair of profile ids on one GPU is.
    """

    name: str  # as the GPU driver spells it, without "MIG ": `1g.10gb`, `1g.10gb+me`
    gi_profile_id: int  # GPU-instance profile id (19 for 1g on A100), not the enum index
    ci_profile_id: int  # compute-instance profile id that spans the whole GPU instance
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One MIG partition that exists now.

    `uuid` and `ci_id` are None for a GPU instance without compute instance: it occupies its
    placement but can't be used.
    """

    parent_uuid: str
    profile: MigProfile
    placement: Placement
    gi_id: int
    ci_id: int | None
    uuid: str | None
    health: Health = field(default_factory=Health)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU as found now; None means that this GPU or its driver does not say."""

    uuid: str
    minor: int  # N of /dev/nvidiaN; may change over a reboot or a MIG mode switch
    product_name: str
    brand: str = "Unknown"
    architecture: str = "Unknown"
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_type: MemoryType = MemoryType.DEDICATED
    pci_bus_id: str | None = None  # `0000:1b:00.0`, lower case, four-digit domain
    pcie_root: str | None = None  # `pci0000:17`
    numa_node: int | None = None
    addressing_mode: str | None = None  # `HMM`, `ATS`, `None`
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False  # a mode switch waits for a GPU reset
    partitions: tuple[Partition, ...] = ()
    health: Health = field(default_factory=Health)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that discovery could not find out, and what it cost."""

    subject: str  # "GPU-1234…", "gpu 3" or "node"
    message: str  # one line: what was asked, what was answered, what is left out


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a snapshot under the name it has in the ResourceSlices."""

    name: str
    gpu: Gpu
    partition: Partition | None = None

    @property
    def uuid(self) -> str:
        """UUID a program in the container uses: the partition's own, or the GPU's."""
        if self.partition is None:
            return self.gpu.uuid
        return self.partition.uuid or ""

    @property
    def health(self) -> Health:
        """Health of the device itself: what is wrong with a GPU is wrong with its partitions."""
        if self.partition is None:
            return self.gpu.health
        return combined((self.gpu.health, self.partition.health))


_NOT_LABEL = re.compile(r"[^a-z0-9-]")


def gpu_device_name(gpu: Gpu) -> str:
    """Name of the whole GPU in the ResourceSlices: `gpu-<minor>`."""
    return f"gpu-{gpu.minor}"


def partition_device_name(gpu: Gpu, partition: Partition) -> str:
    """Name of a partition, as `gpu-1-mig-2g47gb-14-0`: profile, GI profile id, placement start."""
    profile = _NOT_LABEL.sub("-", partition.profile.name.replace(".", "").lower())
    start = partition.placement.start
    return f"gpu-{gpu.minor}-mig-{profile}-{partition.profile.gi_profile_id}-{start}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is known of the hardware at one moment: all that slices and claims see of it."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_driver_version: tuple[int, int] | None = None
    problems: tuple[Problem, ...] = ()
    generation: int = 0  # grows with every snapshot that differs from the one before

    def devices(self) -> Iterator[PublishedDevice]:
        """Yield what can be given to a claim, whole GPUs and partitions, in a stable order.

        A GPU in MIG mode is never given out whole; a GPU instance without compute instance is not
        given out at all.
        """
        for gpu in sorted(self.gpus, key=lambda gpu: gpu.minor):
            if not gpu.mig_enabled:
                yield PublishedDevice(gpu_device_name(gpu), gpu)
                continue
            for partition in sorted(
                gpu.partitions, key=lambda p: (p.placement.start, p.profile.gi_profile_id)
            ):
                if partition.uuid is not None:
                    yield PublishedDevice(partition_device_name(gpu, partition), gpu, partition)

    def device(self, name: str) -> PublishedDevice | None:
        """Device of that name, or None."""
        return next((device for device in self.devices() if device.name == name), None)

    def gpu(self, uuid: str) -> Gpu | None:
        """GPU of that UUID, or None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
