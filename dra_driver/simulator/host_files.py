"""What a simulated node's kernel tells about its GPUs: ROOT/proc and ROOT/sys.

Contents as the kernel driver writes them (open-gpu-kernel-modules, nv-procfs.c and
nv-caps-imex.c), shortened to the lines that programs read. Files of single partitions are the
native library's.
"""

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_NVIDIA_VENDOR: Final = 0x10DE
_CLASS_3D_CONTROLLER: Final = 0x030200
_CAPABILITY_GPUS, _CAPABILITY_GIS, _CAPABILITY_CIS = 32, 15, 8
_PARAMETERS: Final = (
    "DeviceFileUID: 0",
    "DeviceFileGID: 0",
    "DeviceFileMode: 438",
    "ModifyDeviceFiles: 1",
    "EnableMSI: 1",
    "EnableStreamMemOPs: 0",
    "EnableGpuFirmware: 18",
    'RegistryDwords: ""',
)


@dataclass(frozen=True, slots=True)
class PciGpu:
    """What `/proc` and `/sys` know of one GPU."""

    minor: int
    uuid: str
    name: str
    domain: int
    bus: int
    device: int
    pci_device_id: int
    pci_subsystem_id: int
    numa_node: int
    mig: bool

    @property
    def address(self) -> str:
        """PCI address as sysfs spells it."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"

    @property
    def root_bus(self) -> str:
        """Root complex above it; GPUs whose bus numbers are close together share one."""
        return f"{self.domain:04x}:{self.bus & 0xF0:02x}"


class HostFiles:
    """ROOT/proc and ROOT/sys."""

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        self._sys = root / "sys"

    def create(self, majors: Mapping[str, int]) -> Self:
        """Write what does not change: device majors and the driver's parameters."""
        lines = [
            "Character devices:",
            "  1 mem",
            "  5 /dev/tty",
            "  5 /dev/console",
            f"{majors['nvidia']} nvidia",
            f"{majors['nvidia']} nvidia-modeset",
            f"{majors['nvidia']} nvidiactl",
            *(f"{number} {name}" for name, number in majors.items() if name != "nvidia"),
            "",
            "Block devices:",
            "259 blkext",
        ]
        _write(self._proc / "devices", "\n".join(lines))
        _write(self._proc / "driver/nvidia/params", "\n".join(_PARAMETERS))
        _write(self._proc / "driver/nvidia-caps/mig-minors", "\n".join(_mig_minors()))
        return self

    def sync(self, gpus: list[PciGpu], driver_version: str, boot_id: str) -> None:
        """Let both trees tell of these GPUs and of no other."""
        driver = self._proc / "driver/nvidia"
        _write(self._proc / "sys/kernel/random/boot_id", boot_id)
        _write(driver / "version", _version_text(driver_version))
        _write(self._sys / "module/nvidia/version", driver_version)
        _write(self._sys / "module/nvidia/initstate", "live")
        self._sync_information(driver / "gpus", gpus)
        self._sync_capabilities(driver / "capabilities", gpus)
        self._sync_pci(gpus)

    def _sync_information(self, folder: Path, gpus: list[PciGpu]) -> None:
        _keep_only(folder, {gpu.address for gpu in gpus})
        for gpu in gpus:
            _write(
                folder / gpu.address / "information",
                f"Model: \t\t {gpu.name}\nIRQ:   \t\t {100 + gpu.minor}\nGPU UUID: \t {gpu.uuid}\n"
                f"Bus Type: \t PCIe\nBus Location: \t {gpu.address}\nDevice Minor: \t {gpu.minor}",
            )

    def _sync_capabilities(self, folder: Path, gpus: list[PciGpu]) -> None:
        """Folders of the GPUs with MIG; what is in them is the native library's."""
        minors = {gpu.minor for gpu in gpus if gpu.mig}
        _keep_only(folder, {f"gpu{minor}" for minor in minors} | {"mig"})
        for minor in minors:
            (folder / f"gpu{minor}/mig").mkdir(parents=True, exist_ok=True)
        if minors:
            _write(
                folder / "mig/config",
                "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1",
            )
            _write(
                folder / "mig/monitor",
                "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1",
            )

    def _sync_pci(self, gpus: list[PciGpu]) -> None:
        devices = self._sys / "bus/pci/devices"
        driver = self._sys / "bus/pci/drivers/nvidia"
        for folder in (devices, driver):
            folder.mkdir(parents=True, exist_ok=True)
        wanted = {gpu.address for gpu in gpus}
        for link in devices.iterdir():
            if link.name not in wanted:
                shutil.rmtree(link.resolve(), ignore_errors=True)
                link.unlink()
                (driver / link.name).unlink(missing_ok=True)
        for gpu in gpus:
            place = f"pci{gpu.root_bus}/{gpu.root_bus}:01.0/{gpu.address}"
            _write_pci_function(self._sys / "devices" / place, gpu)
            for folder in (devices, driver):
                _link(folder / gpu.address, self._sys / "devices" / place)


def _capability_text(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1"


def _mig_minors() -> Iterator[str]:
    """Give the numbers of MIG capabilities as in the kernel driver (and native/nodes.c)."""
    yield from ("config 1", "monitor 2")
    minor = itertools.count(3)
    for gpu, gi in itertools.product(range(_CAPABILITY_GPUS), range(_CAPABILITY_GIS)):
        yield f"gpu{gpu}/gi{gi}/access {next(minor)}"
        for ci in range(_CAPABILITY_CIS):
            yield f"gpu{gpu}/gi{gi}/ci{ci}/access {next(minor)}"


def _write_pci_function(folder: Path, gpu: PciGpu) -> None:
    values = {
        "vendor": f"0x{_NVIDIA_VENDOR:04x}",
        "device": f"0x{gpu.pci_device_id >> 16:04x}",
        "subsystem_vendor": f"0x{gpu.pci_subsystem_id & 0xFFFF:04x}",
        "subsystem_device": f"0x{gpu.pci_subsystem_id >> 16:04x}",
        "class": f"0x{_CLASS_3D_CONTROLLER:06x}",
        "numa_node": str(gpu.numa_node),
    }
    for name, value in values.items():
        _write(folder / name, value)


def _version_text(driver_version: str) -> str:
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver_version}  "
        "Release Build  (simulated)\nGCC version:  none"
    )


def _write(path: Path, text: str) -> None:
    """Write a line-terminated file in place, and only if it differs."""
    content = f"{text}\n"
    try:
        if path.read_text(encoding="utf-8") == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def _link(link: Path, target: Path) -> None:
    """Relative, so that the tree can move."""
    relative = os.path.relpath(target, link.parent)
    if not link.is_symlink():
        link.symlink_to(relative)


def _keep_only(folder: Path, names: set[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.name not in names:
            shutil.rmtree(entry)
