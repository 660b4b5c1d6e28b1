"""One GPU as NVML and the host describe it now."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pynvml

from dra_driver.host import HostRoot
from dra_driver.model import Gpu, Health, MemoryLimitLevel, MemoryType, Problem
from dra_driver.nvml import reads
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.condition import condition
from dra_driver.nvml.errors import CallFailed, Notes
from dra_driver.nvml.partitions import PartitionReader
from dra_driver.nvml.slots import SlotCache

T = TypeVar("T")

# Spelled as the ecosystem's manifests select on them.
_BRANDS: Final[dict[int, str]] = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
_ARCHITECTURES: Final[dict[int, str]] = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}
_ADDRESSING_MODES: Final[dict[int, str]] = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}
_UNKNOWN: Final = "Unknown"
_PCI_ADDRESS: Final = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU that could be read, and what it would not tell."""

    gpu: Gpu
    problems: tuple[Problem, ...]


def read_gpu(index: int, host: HostRoot, known: Mapping[str, Gpu], slots: SlotCache) -> Reading:
    """Read the GPU at NVML's `index`; `known` has the last descriptions by UUID.

    A value that fails keeps what was known, since an attribute that comes and goes breaks
    selectors. Raises CallFailed without the values that a GPU can't be handled without: UUID,
    minor number, MIG mode.
    """
    device = reads.device(index)
    uuid = reads.uuid(device)
    notes = Notes(uuid)
    minor = reads.minor(device)
    gpu = _with_facts(device, Gpu(uuid, minor, ""), known.get(uuid), notes)
    gpu = _with_place(device, gpu, known.get(uuid), host, notes)
    gpu = _with_partitions(device, gpu, known.get(uuid), notes, slots)
    gpu = _with_limits(device, gpu, host, notes)
    before = known[uuid].health if uuid in known else Health()
    return Reading(replace(gpu, health=condition(device, before, notes)), notes.problems)


def normal_pci_bus_id(text: str) -> str | None:
    """Spell a PCI address as sysfs does (`0000:1b:00.0`); None when it is no PCI address."""
    found = _PCI_ADDRESS.fullmatch(text.strip().lower())
    if found is None:
        return None
    domain, bus, slot = (int(part, 16) for part in found.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{found.group(4) or 0}"


@dataclass(frozen=True, slots=True)
class _Facts:
    """Asks for values one by one: a missing ability gives the default, a failure what was known."""

    device: Handle
    notes: Notes

    def get(self, what: str, ask: Callable[[Handle], T], default: T, known: T) -> T:
        try:
            return ask(self.device)
        except CallFailed as failure:
            self.notes.failed(failure, f"its {what} is left out unless it was read before")
            return default if failure.absent else known


def _with_facts(device: Handle, gpu: Gpu, known: Gpu | None, notes: Notes) -> Gpu:
    ask, base = _Facts(device, notes), known or gpu
    memory_bytes, memory_type = ask.get(
        "memory", _memory, (None, MemoryType.UNIFIED), (base.memory_bytes, base.memory_type)
    )
    return replace(
        gpu,
        product_name=ask.get("product name", reads.product_name, "", base.product_name),
        brand=ask.get("brand", _brand, _UNKNOWN, base.brand),
        architecture=ask.get("architecture", _architecture, _UNKNOWN, base.architecture),
        compute_capability=ask.get(
            "compute capability", reads.compute_capability, None, base.compute_capability
        ),
        memory_bytes=memory_bytes,
        memory_type=memory_type,
        addressing_mode=ask.get("addressing mode", _addressing, None, base.addressing_mode),
    )


def _with_place(device: Handle, gpu: Gpu, known: Gpu | None, host: HostRoot, notes: Notes) -> Gpu:
    base = known or gpu
    bus_id, device_id = _Facts(device, notes).get(
        "PCI address", _pci, (None, None), (base.pci_bus_id, base.pci_device_id)
    )
    if bus_id is None:
        return gpu
    return replace(
        gpu,
        pci_bus_id=bus_id,
        pci_device_id=device_id,
        pcie_root=host.pcie_root(bus_id),
        numa_node=host.numa_node(bus_id),
    )


def _with_partitions(
    device: Handle, gpu: Gpu, known: Gpu | None, notes: Notes, slots: SlotCache
) -> Gpu:
    """Add MIG mode and partitions. A mode that can't be read raises: whole or not is unknown."""
    try:
        enabled, pending = reads.mig_mode(device)
    except CallFailed as failure:
        if failure.absent:
            return gpu
        raise
    gpu = replace(gpu, mig_capable=True, mig_enabled=enabled, mig_pending=enabled != pending)
    reader = PartitionReader(device, gpu.uuid, gpu.memory_bytes, notes)
    return replace(
        gpu,
        partitions=reader.read() if enabled else (),
        slots=slots.of(device, gpu, known, notes),
    )


def _with_limits(device: Handle, gpu: Gpu, host: HostRoot, notes: Notes) -> Gpu:
    """Find out whether the GPU driver limits what a cgroup may allocate on the GPU."""
    root = host.unified_cgroups()
    if root is None or gpu.mig_enabled:
        return gpu
    try:
        reads.memory_limit(device, str(root))
    except CallFailed as failure:
        notes.failed(failure, "memory of shares is not limited by cgroup")
        return gpu
    return replace(gpu, memory_limit=MemoryLimitLevel.CGROUP)


def _memory(device: Handle) -> tuple[int | None, MemoryType]:
    """Total memory; a GPU without memory of its own says 0 or NOT_SUPPORTED (dra #1073)."""
    total = reads.memory_bytes(device)
    return (total, MemoryType.DEDICATED) if total else (None, MemoryType.UNIFIED)


def _brand(device: Handle) -> str:
    return _BRANDS.get(reads.brand(device), _UNKNOWN)


def _architecture(device: Handle) -> str:
    return _ARCHITECTURES.get(reads.architecture(device), _UNKNOWN)


def _addressing(device: Handle) -> str | None:
    return _ADDRESSING_MODES.get(reads.addressing_mode(device))


def _pci(device: Handle) -> tuple[str | None, int | None]:
    bus_id, device_id = reads.pci(device)
    return normal_pci_bus_id(bus_id), device_id
