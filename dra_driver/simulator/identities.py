"""What tells one simulated GPU from another: UUID, PCI address, serial, NUMA node."""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.models import GpuModel

LOWEST_FREE_MINOR = -1
NO_NUMA_NODE = -1

# PCI addresses (domain, bus) as on common machines, then free ones, so that 16 GPUs always fit.
_HGX_AMPERE = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
_HGX_HOPPER = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_PCIE_CARDS = (0x17, 0x3D, 0x63, 0x73, 0x99, 0xAB, 0xBB, 0xCA)
_FREE = (0x0A, 0x21, 0x2C, 0x38, 0x83, 0x8C, 0xA3, 0xE1)
_GRACE = ((0x8, 0x01), (0x9, 0x01), (0x18, 0x01), (0x19, 0x01))
_SECOND_SOCKET_BUS = 0x80


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """One GPU of a node. Fields as in sim_gpu_t."""

    model: str
    uuid: str
    serial: str
    pci_domain: int
    pci_bus: int
    module_id: int
    numa_node: int
    pci_device: int = 0
    minor: int = LOWEST_FREE_MINOR

    @property
    def pci_address(self) -> tuple[int, int]:
        """Domain and bus, which no two GPUs of a node share."""
        return self.pci_domain, self.pci_bus


def _addresses(model: GpuModel) -> tuple[tuple[int, int], ...]:
    first: tuple[tuple[int, int], ...]
    if model.key == "gb200":
        first = _GRACE
    elif model.key.startswith("a100"):
        first = tuple((0, bus) for bus in _HGX_AMPERE)
    elif model.key in {"h100-80gb", "h200", "b200"}:
        first = tuple((0, bus) for bus in _HGX_HOPPER)
    elif model.key == "gb10":
        first = ((0xF, 0x01),)
    else:
        first = tuple((0, bus) for bus in _PCIE_CARDS)
    every = (*_HGX_HOPPER, *_PCIE_CARDS, *_HGX_AMPERE, *_FREE)
    return first + tuple((0, bus) for bus in every if (0, bus) not in first)


def _numa_node(model: GpuModel, domain: int, bus: int) -> int:
    if model.key == "gb10":
        return NO_NUMA_NODE
    return int(bus >= _SECOND_SOCKET_BUS or domain >= 0x10)  # noqa: PLR2004


def identity(model: GpuModel, seed: str, taken: Collection[tuple[int, int]] = ()) -> GpuIdentity:
    """Give a new GPU of a model: its address is none of `taken`, the rest follows from `seed`.

    Raises:
        SettingInvalid: no address is left.

    """
    slots = _addresses(model)
    slot = next((n for n, address in enumerate(slots) if address not in taken), None)
    if slot is None:
        raise SettingInvalid(f"no PCI address is left for another {model.key}")
    domain, bus = slots[slot]
    number = uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}/{domain:04x}:{bus:02x}")
    return GpuIdentity(
        model=model.key,
        uuid=f"GPU-{number}",
        serial=str(1_320_000_000_000 + number.int % 1_000_000_000),
        pci_domain=domain,
        pci_bus=bus,
        module_id=slot + 1,
        numa_node=_numa_node(model, domain, bus),
    )


def identities(models: Iterable[GpuModel], seed: str) -> list[GpuIdentity]:
    """Give one GPU for each model in turn, sorted by PCI address as the kernel finds them."""
    gpus: list[GpuIdentity] = []
    for model in models:
        gpus.append(identity(model, seed, [gpu.pci_address for gpu in gpus]))
    return sorted(gpus, key=lambda gpu: gpu.pci_address)
