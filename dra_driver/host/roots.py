"""What the host's `/proc` and `/sys` say, read below a root that tests and containers can move."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CAPABILITY_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_MAX_LINKS = 40
_POD_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_CGROUP_LEVELS = 4  # kubelet's own root, kubepods, quality of service, Pod


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of the host."""

    pid: int
    name: str  # the kernel's short one; empty: not known

    def __str__(self) -> str:
        return f"{self.name or 'a process'} (PID {self.pid})"


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The host's file system as this process sees it: `/`, `/host-root`, or a simulated node."""

    path: Path

    def boot_id(self) -> str:
        """Id of the running boot, empty when unreadable: a hint, never a proof."""
        return self._read("proc/sys/kernel/random/boot_id").strip()

    def device_majors(self) -> dict[str, int]:
        """Major numbers of character devices by driver name, from `/proc/devices`."""
        majors: dict[str, int] = {}
        for line in self._read("proc/devices").partition("Block devices:")[0].splitlines():
            number, _, name = line.strip().partition(" ")
            if number.isdigit() and name:
                majors[name] = int(number)
        return majors

    def unified_cgroups(self) -> Path | None:
        """Folder of the cgroups of version 2, None where the host has others."""
        root = self.path / "sys/fs/cgroup"
        return root if (root / "cgroup.controllers").exists() else None

    def pod_cgroup(self, pod_uid: str) -> Path | None:
        """Cgroup of a Pod of the kubelet (kubelet/cm, with systemd or without), None: it is gone.

        Its name holds the UID, below folders of the kubelet whose names depend on its settings.
        """
        root = self.unified_cgroups()
        if root is None or not _POD_UID.fullmatch(pod_uid):
            return None
        names = {f"pod{pod_uid}", f"-pod{pod_uid.replace('-', '_')}.slice"}
        return _find_cgroup(root, tuple(names), _CGROUP_LEVELS)

    def gpu_instance_minor(self, gpu_minor: int, gi_id: int) -> int | None:
        """N of `/dev/nvidia-caps/nvidia-capN` that opens a GPU instance, None when it has none."""
        return self._capability_minor(f"gpu{gpu_minor}/mig/gi{gi_id}/access")

    def compute_instance_minor(self, gpu_minor: int, gi_id: int, ci_id: int) -> int | None:
        """N of `/dev/nvidia-caps/nvidia-capN` that opens a compute instance, or None."""
        return self._capability_minor(f"gpu{gpu_minor}/mig/gi{gi_id}/ci{ci_id}/access")

    def pcie_root(self, pci_bus_id: str) -> str | None:
        """PCIe root complex (`pci0000:17`) above a PCI function, None when sysfs is silent."""
        link = self.path / "sys/bus/pci/devices" / pci_bus_id
        try:
            target = link.readlink()
        except OSError:
            return None
        return next((part for part in target.parts if _PCIE_ROOT.fullmatch(part)), None)

    def numa_node(self, pci_bus_id: str) -> int | None:
        """NUMA node of a PCI function, None when the host has none (-1) or is silent."""
        text = self._read(f"sys/bus/pci/devices/{pci_bus_id}/numa_node").strip()
        return int(text) if text.isdigit() else None

    def has_gpu_driver(self) -> bool:
        """Whether the kernel has NVIDIA's driver loaded; True while it can't be known."""
        majors = self.device_majors()
        is_listed = any(name.startswith("nvidia") for name in majors)
        return not majors or is_listed or (self.path / "proc/driver/nvidia").exists()

    def process(self, pid: int) -> HostProcess:
        """Process of that number, by name where `/proc` has it."""
        return HostProcess(pid, self._read(f"proc/{pid}/comm").strip())

    def users_of(self, device: str) -> tuple[HostProcess, ...]:
        """Other processes that have the device file `/dev/…` open, as far as `/proc` tells."""
        folder = self.path / "proc"
        numbers: list[int] = []
        with suppress(OSError):
            names = {entry.name for entry in folder.iterdir()} - {self._own_number()}
            numbers = sorted(int(name) for name in names if name.isdigit())
        return tuple(
            self.process(pid) for pid in numbers if _has_open(folder / str(pid) / "fd", device)
        )

    def _own_number(self) -> str:
        """PID of this process as that `/proc` counts."""
        try:
            return (self.path / "proc/self").readlink().name
        except OSError:
            return str(os.getpid())

    def _capability_minor(self, entry: str) -> int | None:
        found = _CAPABILITY_MINOR.search(self._read(f"proc/driver/nvidia/capabilities/{entry}"))
        return int(found.group(1)) if found else None

    def _read(self, relative: str) -> str:
        try:
            return (self.path / relative).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _has_open(descriptors: Path, device: str) -> bool:
    with suppress(OSError):  # ended meanwhile, or not for us to see
        for link in descriptors.iterdir():
            with suppress(OSError):
                if str(link.readlink()) == device:
                    return True
    return False


def inside(root: Path, path: str | Path) -> Path | None:
    """Resolve `path` as a process whose root folder is `root` would; None when nothing is there.

    Absolute links on a host point below its own root, not below ours (field report dra #1201).
    """
    pending = [part for part in reversed(Path(path).parts) if part != "/"]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            if done:
                done.pop()
            continue
        candidate = root.joinpath(*done, part)
        target = _target(candidate)
        if target is not None:
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.is_absolute():
                done.clear()
            pending.extend(piece for piece in reversed(target.parts) if piece != "/")
            continue
        if not candidate.exists():
            return None
        done.append(part)
    return root.joinpath(*done)


def _target(path: Path) -> Path | None:
    """Where a link leads; None: it is none, or is gone: a GPU driver is just being changed."""
    try:
        return path.readlink()
    except OSError:
        return None


def _find_cgroup(folder: Path, endings: tuple[str, ...], levels: int) -> Path | None:
    """First folder whose name ends so; below `folder` only where the kubelet keeps Pods."""
    try:
        below = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None
    for entry in below:
        if entry.name.endswith(endings):
            return Path(entry.path)
    if levels > 1:
        for entry in below:
            if "kube" in entry.name or entry.name in ("burstable", "besteffort"):
                found = _find_cgroup(Path(entry.path), endings, levels - 1)
                if found is not None:
                    return found
    return None
