"""Device nodes of GPUs and partitions, looked up at the moment they are asked for."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.names import CdiDevice
from dra_driver.config import Settings
from dra_driver.host import HostRoot
from dra_driver.model.errors import Bug, DriverFilesMissing

_CONTROL: Final = "dev/nvidiactl"
_UVM: Final = "dev/nvidia-uvm"
_OPTIONAL: Final = ("dev/nvidia-uvm-tools", "dev/nvidia-modeset")
_CAPABILITIES_DRIVER: Final = "nvidia-caps"  # as /proc/devices names it
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One device node for a container.

    Without numbers the runtime reads them from the host's node when the container starts: they
    can't be out of date then.
    """

    path: str  # in the container
    host_path: str
    major: int | None = None
    minor: int | None = None


class DeviceNodes:
    """The nodes below the device root, as the runtime names them and as this process sees them."""

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; nothing is looked up before it is needed."""
        self._settings = settings
        self._proc = HostRoot(settings.host_root)

    def common(self) -> Iterator[DeviceNode]:
        """Nodes that every container with a GPU needs. Raises DriverFilesMissing."""
        root = self._root()
        yield root.required(_CONTROL, None, "load the GPU driver: modprobe nvidia; nvidia-smi")
        yield root.required(_UVM, None, "modprobe nvidia-uvm; nvidia-modprobe -u -c 0")
        yield from (root.node(name) for name in _OPTIONAL if root.present(name, None))

    def of(self, device: CdiDevice) -> Iterator[DeviceNode]:
        """Nodes of a GPU, or all three of a partition. Raises DriverFilesMissing."""
        root, minor = self._root(), device.gpu_minor
        yield root.required(f"dev/nvidia{minor}", minor, f"nvidia-modprobe -c {minor}")
        if device.gi_id is None and device.ci_id is None:
            return
        if device.gi_id is None or device.ci_id is None:
            raise Bug(f"partition {device.name} is known by one of its two instances only")
        entry = f"gpu{minor}/mig/gi{device.gi_id}"
        found = self._proc.gpu_instance_minor(minor, device.gi_id)
        yield self._capability(root, entry, found)
        found = self._proc.compute_instance_minor(minor, device.gi_id, device.ci_id)
        yield self._capability(root, f"{entry}/ci{device.ci_id}", found)

    def _capability(self, root: "_Root", entry: str, minor: int | None) -> DeviceNode:
        """Node that opens one instance; made by number where nvidia-modprobe has not made it."""
        if minor is None:
            raise DriverFilesMissing(
                f"no {_CAPABILITIES}/{entry}/access; the partition does not exist any more, or "
                "the kernel module was loaded without MIG"
            )
        name = f"dev/nvidia-caps/nvidia-cap{minor}"
        remedy = f"nvidia-modprobe -f {_CAPABILITIES}/{entry}/access"
        if root.present(name, minor, remedy):
            return root.node(name)
        major = self._proc.device_majors().get(_CAPABILITIES_DRIVER)
        if major is None:
            raise root.missing(name, remedy)
        return DeviceNode(f"/{name}", root.on_host(name), major, minor)

    def _root(self) -> "_Root":
        """Device root for the runtime and for this process: the setting, else where nodes are."""
        known = self._settings
        if known.dev_root is not None:
            return _Root(known.dev_root, known.container_dev_root or known.dev_root)
        if (known.container_driver_root / _CONTROL).exists():
            return _Root(known.driver_root, known.container_dev_root or known.container_driver_root)
        return _Root(Path("/"), known.container_dev_root or Path("/"))


@dataclass(frozen=True, slots=True)
class _Root:
    """The folder that holds dev/ now."""

    host: Path  # as the runtime names it
    here: Path  # as this process sees it

    def required(self, name: str, minor: int | None, remedy: str) -> DeviceNode:
        if not self.present(name, minor, remedy):
            raise self.missing(name, remedy)
        return self.node(name)

    def present(self, name: str, minor: int | None, remedy: str = "") -> bool:
        """Whether the node is there; raises DriverFilesMissing when it is another device's."""
        try:
            status = os.lstat(f"{self.here}/{name}")
        except OSError:
            return False
        if minor is not None and stat.S_ISCHR(status.st_mode):
            number = os.minor(status.st_rdev)
            if number != minor:
                raise DriverFilesMissing(
                    f"{self.on_host(name)} has the minor number {number} instead of {minor}, "
                    f"which is another device's; remove it and run: {remedy}"
                )
        return not stat.S_ISDIR(status.st_mode)

    def missing(self, name: str, remedy: str) -> DriverFilesMissing:
        seen = "" if self.host == self.here else f" (seen from here as {self.here / name})"
        return DriverFilesMissing(f"no device node {self.host / name}{seen}; make it: {remedy}")

    def node(self, name: str) -> DeviceNode:
        return DeviceNode(f"/{name}", self.on_host(name))

    def on_host(self, name: str) -> str:
        return str(self.host / name)
