"""The device nodes of a simulated node: ROOT/dev as the kernel driver and nvidia-modprobe make it.

Real character devices where they can be made, else plain files of the same names. Nodes of
capabilities of partitions come and go with the partitions: the native library makes them, as the
kernel driver would, of the kind that nvidia-cap1 has (see native/sim.h).
"""

import errno
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from dra_driver.model.errors import SettingInvalid

# Linux Documentation/admin-guide/devices.txt: 195 is NVIDIA's; the other drivers get free numbers.
NVIDIA_MAJOR: Final = 195
CONTROL_MINOR: Final = 255
MODESET_MINOR: Final = 254
_DYNAMIC_DRIVERS: Final = ("nvidia-uvm", "nvidia-caps", "nvidia-nvswitch")
_DYNAMIC_MAJORS: Final = range(384, 512)  # the kernel hands them out from the other end

_MIG_CONFIG_CAPABILITY: Final = 1
_MIG_MONITOR_CAPABILITY: Final = 2
_GPU_NODE = re.compile(r"nvidia\d+")
_ACCESS_MINOR = re.compile(r"^DeviceFileMinor: (\d+)$", re.MULTILINE)


class NodeKind(StrEnum):
    """What the entries of ROOT/dev are."""

    AUTO = "auto"  # real ones where they can be made
    REAL = "real"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    major: int
    minor: int
    mode: int = 0o666


def pick_majors() -> dict[str, int]:
    """Major numbers that no driver of the running kernel has, by driver name."""
    taken = {int(word) for word in re.findall(r"^ *(\d+) ", _running_devices(), re.MULTILINE)}
    free = (number for number in _DYNAMIC_MAJORS if number not in taken)
    return {"nvidia": NVIDIA_MAJOR, **dict(zip(_DYNAMIC_DRIVERS, free, strict=False))}


def _running_devices() -> str:
    try:
        return Path("/proc/devices").read_text(encoding="ascii")
    except OSError:
        return ""


def real_nodes_refused(folder: Path) -> str | None:
    """Why real device nodes are of no use in this folder; None where they are.

    They are useful where one can be made and opened without anything behind it (ENXIO). On a
    machine with the real GPU driver the numbers would lead to real GPUs.
    """
    probe = folder / ".probe"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(NVIDIA_MAJOR, CONTROL_MINOR))
    except OSError as error:
        return f"making a device node in {folder} is refused: {error.strerror}"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return f"opening a device node in {folder} is refused: {error.strerror}"
    finally:
        probe.unlink()
    return "this machine has the real GPU driver"


class DeviceNodes:
    """ROOT/dev: what kind its entries are follows from nvidiactl, once it is there."""

    def __init__(self, root: Path, majors: Mapping[str, int]) -> None:
        """`majors` are those of ROOT/proc/devices."""
        self._dev = root / "dev"
        self._capabilities = root / "proc/driver/nvidia/capabilities"
        self._majors = majors

    def create(self, kind: NodeKind, *, mig: bool, nvswitches: int) -> None:
        """Make the nodes that do not belong to one GPU.

        Raises:
            SettingInvalid: real nodes are asked for and can't be had.

        """
        self._dev.mkdir(parents=True, exist_ok=True)
        refused = None if kind is NodeKind.PLAIN else real_nodes_refused(self._dev)
        if kind is NodeKind.REAL and refused is not None:
            raise SettingInvalid(f"real device nodes can't be had: {refused}")
        real = kind is not NodeKind.PLAIN and refused is None
        uvm, switch = self._majors["nvidia-uvm"], self._majors["nvidia-nvswitch"]
        self._make(_Entry("nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR), real=real)
        self._make(_Entry("nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR), real=real)
        self._make(_Entry("nvidia-uvm", uvm, 0), real=real)
        self._make(_Entry("nvidia-uvm-tools", uvm, 1), real=real)
        if nvswitches:
            self._make(_Entry("nvidia-nvswitchctl", switch, 255), real=real)
        for number in range(nvswitches):
            self._make(_Entry(f"nvidia-nvswitch{number}", switch, number), real=real)
        if mig:
            self.restore_capabilities()

    @property
    def real(self) -> bool:
        """Whether the entries are character devices."""
        try:
            return stat.S_ISCHR((self._dev / "nvidiactl").lstat().st_mode)
        except FileNotFoundError:
            return False

    def sync_gpus(self, minors: set[int]) -> None:
        """Let there be a node for each of these GPU minors and for no other."""
        wanted = {f"nvidia{minor}" for minor in minors}
        for path in self._dev.iterdir():
            if _GPU_NODE.fullmatch(path.name) and path.name not in wanted:
                path.unlink()
        for minor in minors:
            self._make(_Entry(f"nvidia{minor}", NVIDIA_MAJOR, minor), real=self.real)

    def remove_capabilities(self) -> None:
        """Take the folder of capability nodes away, as if nvidia-modprobe had never run."""
        shutil.rmtree(self._dev / "nvidia-caps", ignore_errors=True)

    def restore_capabilities(self) -> None:
        """Make the capability nodes for MIG itself and for every partition that exists."""
        (self._dev / "nvidia-caps").mkdir(exist_ok=True)
        self._capability(_MIG_CONFIG_CAPABILITY, 0o400)
        self._capability(_MIG_MONITOR_CAPABILITY, 0o444)
        for access in self._capabilities.glob("gpu*/mig/**/access"):
            found = _ACCESS_MINOR.search(access.read_text(encoding="ascii"))
            if found is not None:
                self._capability(int(found[1]), 0o444)

    def _capability(self, minor: int, mode: int) -> None:
        entry = _Entry(f"nvidia-caps/nvidia-cap{minor}", self._majors["nvidia-caps"], minor, mode)
        self._make(entry, real=self.real)

    def _make(self, entry: _Entry, *, real: bool) -> None:
        path = self._dev / entry.path
        if path.exists():
            return
        kind = stat.S_IFCHR if real else stat.S_IFREG
        os.mknod(path, kind | entry.mode, os.makedev(entry.major, entry.minor) if real else 0)
        path.chmod(entry.mode)  # whatever the umask says
