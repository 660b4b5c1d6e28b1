"""GPUs, MIG partitions, and the snapshot of all of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from dra_driver.model.health import Health, combined
from dra_driver.model.sharing import (
    MemoryLimitLevel,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    Strategy,
)


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
class Slot:
    """A place of a GPU at which a partition of one profile can be made, whether or not it is."""

    profile: MigProfile
    placement: Placement


class Partitioning(Enum):
    """Who makes the partitions of a GPU; the values are those of the node configuration."""

    EXISTING = "Existing"  # somebody else: they are taken as they are
    DYNAMIC = "Dynamic"  # this driver, one for each claim
    STATIC = "Static"  # this driver, by a layout that an administrator has named


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What the node configuration says of one GPU, all rules merged."""

    partitioning: Partitioning = Partitioning.EXISTING
    layout: str = ""  # name of the layout; only with STATIC
    allow_reset: bool = False  # MIG mode may be switched where that resets the GPU
    single_strategy: bool = False  # partitions of a uniformly cut GPU count as `gpu`
    named_by_uuid: bool = False  # device names come from the UUID instead of the minor number
    shares: SharesPolicy = field(default_factory=SharesPolicy)  # of the GPU and its partitions
    sharing: SharingSettings | None = None  # of claims that say nothing
    required_limit: MemoryLimitLevel = MemoryLimitLevel.NONE  # below it nothing is shared
    taint_effect: str = "NoSchedule"  # of taints of unhealthy devices; also `None`, `NoExecute`

    @property
    def by_mps(self) -> bool:
        """Whether claims that say nothing use their devices through MPS."""
        return self.sharing is not None and self.sharing.strategy is Strategy.MPS


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


_SWITCHES_WITHOUT_RESET = ("Hopper", "Blackwell", "Rubin")
_VOLTA = (7, 0)  # since then each client of MPS has an address space of its own


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
    pci_device_id: int | None = None  # device id << 16 | vendor id, as nvmlPciInfo_t.pciDeviceId
    pcie_root: str | None = None  # `pci0000:17`
    numa_node: int | None = None
    addressing_mode: str | None = None  # `HMM`, `ATS`, `None`
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False  # a mode switch waits for a GPU reset
    partitions: tuple[Partition, ...] = ()
    slots: tuple[Slot, ...] = ()  # all that the GPU driver offers, whatever is made of them
    health: Health = field(default_factory=Health)
    policy: GpuPolicy = field(default_factory=GpuPolicy)
    foreign: tuple[Partition, ...] = ()  # those of `partitions` that no claim is known to hold
    memory_limit: MemoryLimitLevel = MemoryLimitLevel.NONE  # how hard limits of shares hold here
    waits: str = ""  # what of its configuration is put off, and until when; empty: nothing
    held_back: str = ""  # why no new claim may have it or a part of it now; empty: it may

    @property
    def has_mps(self) -> bool:
        """Whether it can have a control daemon of MPS, as far as is known."""
        return self.compute_capability is None or self.compute_capability >= _VOLTA

    @property
    def switches_mig(self) -> bool:
        """Whether this driver may switch MIG mode: from Hopper on that needs no GPU reset."""
        return self.mig_capable and (
            self.policy.allow_reset or self.architecture in _SWITCHES_WITHOUT_RESET
        )

    @property
    def is_dynamic(self) -> bool:
        """Whether partitions are made for claims: configured, and possible now."""
        return (
            self.policy.partitioning is Partitioning.DYNAMIC
            and bool(self.slots)
            and (self.mig_enabled or self.switches_mig)
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that discovery could not find out, and what it cost."""

    subject: str  # "GPU-1234…", "gpu 3" or "node"
    message: str  # one line: what was asked, what was answered, what is left out


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a snapshot under the name it has in the ResourceSlices.

    A whole GPU has no slot. A partition has one; `partition` is what stands there now. With
    `is_made` this driver gives the hardware that shape for a claim: it makes the partition, or
    switches MIG mode off for the whole GPU; all such devices of a GPU draw on its counters.
    """

    name: str
    gpu: Gpu
    slot: Slot | None = None
    partition: Partition | None = None
    is_made: bool = False

    @property
    def uuid(self) -> str:
        """UUID a program in the container uses: the partition's own, or the GPU's; empty: none yet.

        A partition that is made for a claim has none before, and another each time.
        """
        if self.slot is None:
            return self.gpu.uuid
        return (self.partition.uuid if self.partition else None) or ""

    @property
    def memory_limit(self) -> MemoryLimitLevel:
        """How hard limits of shares of the device's memory hold, for claims that say nothing.

        The GPU driver limits whole GPUs only. The control daemon of MPS has one limit for all
        clients of a device, which holds for each where all shares are equal.
        """
        policy, level = self.gpu.policy, self.gpu.memory_limit
        if self.slot is not None and level is MemoryLimitLevel.CGROUP:
            level = MemoryLimitLevel.NONE
        by_memory = policy.shares.mode is SharesMode.MEMORY
        if not by_memory or not policy.by_mps or not self.gpu.has_mps:
            return level
        is_equal = policy.required_limit is MemoryLimitLevel.MPS
        return max(level, MemoryLimitLevel.MPS if is_equal else MemoryLimitLevel.MPS_CLIENT)

    @property
    def health(self) -> Health:
        """Health of the device itself: what is wrong with a GPU is wrong with its partitions."""
        if self.partition is None:
            return self.gpu.health
        return combined((self.gpu.health, self.partition.health))


_NOT_LABEL = re.compile(r"[^a-z0-9-]")
_PARTITION = "-mig-"  # stands in a name between GPU and profile


def gpu_device_name(gpu: Gpu) -> str:
    """Name of the whole GPU in the ResourceSlices: `gpu-<minor>`, or its UUID in lower case."""
    return gpu.uuid.lower() if gpu.policy.named_by_uuid else f"gpu-{gpu.minor}"


def partition_device_name(gpu: Gpu, slot: Slot) -> str:
    """Name of a partition, as `gpu-1-mig-2g47gb-14-0`: profile, GI profile id, placement start."""
    profile = _NOT_LABEL.sub("-", slot.profile.name.replace(".", "").lower())
    place = f"{slot.profile.gi_profile_id}-{slot.placement.start}"
    return f"{gpu_device_name(gpu)}{_PARTITION}{profile}-{place}"


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

        A GPU in MIG mode is given out whole only if this driver may switch the mode off; a GPU
        instance without compute instance is not given out at all.
        """
        for gpu in sorted(self.gpus, key=lambda gpu: gpu.minor):
            yield from _devices_of(gpu)

    def device(self, name: str) -> PublishedDevice | None:
        """Device of that name, or None.

        Where partitions are made for claims, those of others are devices by name as well: where
        the API server keeps no counters they are published, and one may have been allocated before
        the configuration changed.
        """
        for gpu in self.gpus:
            whole = gpu_device_name(gpu)
            if name == whole or name.startswith(f"{whole}{_PARTITION}"):
                theirs = existing_devices(gpu) if gpu.foreign else ()
                for device in chain(_devices_of(gpu), theirs):
                    if device.name == name:
                        return device
        return None

    def gpu(self, uuid: str) -> Gpu | None:
        """GPU of that UUID, or None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def _devices_of(gpu: Gpu) -> Iterator[PublishedDevice]:
    return made_devices(gpu) if gpu.is_dynamic else existing_devices(gpu)


def existing_devices(gpu: Gpu) -> Iterator[PublishedDevice]:
    """Yield what a GPU is now: itself, or the partitions that somebody has made of it."""
    if not gpu.mig_enabled:
        yield PublishedDevice(gpu_device_name(gpu), gpu)
        return
    for partition in sorted(
        gpu.partitions, key=lambda p: (p.placement.start, p.profile.gi_profile_id)
    ):
        if partition.uuid is not None:
            slot = Slot(partition.profile, partition.placement)
            yield PublishedDevice(partition_device_name(gpu, slot), gpu, slot, partition)


def made_devices(gpu: Gpu) -> Iterator[PublishedDevice]:
    """Yield what can be made of a GPU beside the partitions of others, small ones first.

    Allocation is first fit in this order. Small profiles come first, so that a selector that many
    fit takes the least; each fills the GPU from its high end, since the largest partition beside
    others begins at 0; the whole GPU is the last resort.
    """
    made = {(part.profile.gi_profile_id, part.placement): part for part in gpu.partitions}
    for slot in sorted(gpu.slots, key=_least_first):
        if not any(slot.placement.overlaps(other.placement) for other in gpu.foreign):
            found = made.get((slot.profile.gi_profile_id, slot.placement))
            yield PublishedDevice(partition_device_name(gpu, slot), gpu, slot, found, is_made=True)
    if gpu.switches_mig and not gpu.foreign:
        yield PublishedDevice(gpu_device_name(gpu), gpu, is_made=True)


def _least_first(slot: Slot) -> tuple[int, ...]:
    profile = slot.profile
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    return (
        slot.placement.size,
        profile.memory_bytes,
        profile.multiprocessors,
        profile.copy_engines + engines,
        profile.gi_profile_id,
        -slot.placement.start,
    )
