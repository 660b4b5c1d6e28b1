"""What tells one simulated GPU from another: UUID, PCI address, serial, NUMA node."""

import uuid
from collections.abc import Collection
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


def _usual_addresses(model: GpuModel) -> tuple[tuple[int, int], ...]:
    if model.key == "gb200":
        return _GRACE
    if model.key == "gb10":
        return ((0xF, 0x01),)
    if model.key.startswith("a100"):
        return tuple((0, bus) for bus in _HGX_AMPERE)
    hopper = model.key in {"h100-80gb", "h200", "b200"}
    return tuple((0, bus) for bus in (_HGX_HOPPER if hopper else _PCIE_CARDS))


def _addresses(model: GpuModel, last: tuple[int, int]) -> list[tuple[int, int]]:
    """Addresses in the order to try them: usual ones first, and first those behind `last`."""
    usual = _usual_addresses(model)
    buses = sorted({*_HGX_HOPPER, *_PCIE_CARDS, *_HGX_AMPERE, *_FREE})
    others = [(domain, bus) for domain in (last[0], last[0] + 1) for bus in buses]
    every = [*usual, *others, *((0, bus) for bus in buses)]
    return sorted(every, key=lambda address: address < last)


def _numa_node(model: GpuModel, domain: int, bus: int) -> int:
    if model.key == "gb10":
        return NO_NUMA_NODE
    return int(bus >= _SECOND_SOCKET_BUS or domain >= 0x10)  # noqa: PLR2004


def identity(
    model: GpuModel,
    seed: str,
    taken: Collection[tuple[int, int]] = (),
    behind: tuple[int, int] | None = None,
) -> GpuIdentity:
    """Give a new GPU of a model: its address is none of `taken`, the rest follows from `seed`.

    The address lies behind `behind` (default: all `taken` ones) where there is one, so that GPUs
    described one after the other are in this order on the node too.

    Raises:
        SettingInvalid: no address is left.

    """
    last = behind or max(taken, default=(0, 0))
    address = next((slot for slot in _addresses(model, last) if slot not in taken), None)
    if address is None:
        raise SettingInvalid(f"no PCI address is left for another {model.key}")
    domain, bus = address
    number = uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}/{domain:04x}:{bus:02x}")
    return GpuIdentity(
        model=model.key,
        uuid=f"GPU-{number}",
        serial=str(1_320_000_000_000 + number.int % 1_000_000_000),
        pci_domain=domain,
        pci_bus=bus,
        module_id=len(taken) + 1,
        numa_node=_numa_node(model, domain, bus),
    )
