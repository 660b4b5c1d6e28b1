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
        yield self._required(_CONTROL, None, "load the GPU driver: modprobe nvidia; nvidia-smi")
        yield self._required(_UVM, None, "modprobe nvidia-uvm; nvidia-modprobe -u -c 0")
        yield from (self._node(name) for name in _OPTIONAL if self._present(name, None))

    def of(self, device: CdiDevice) -> Iterator[DeviceNode]:
        """Nodes of a GPU, or all three of a partition. Raises DriverFilesMissing."""
        minor = device.gpu_minor
        yield self._required(f"dev/nvidia{minor}", minor, f"nvidia-modprobe -c {minor}")
        if device.gi_id is None and device.ci_id is None:
            return
        if device.gi_id is None or device.ci_id is None:
            raise Bug(f"partition {device.name} is known by one of its two instances only")
        entry = f"gpu{minor}/mig/gi{device.gi_id}"
        yield self._capability(entry, self._proc.gpu_instance_minor(minor, device.gi_id))
        found = self._proc.compute_instance_minor(minor, device.gi_id, device.ci_id)
        yield self._capability(f"{entry}/ci{device.ci_id}", found)

    def _capability(self, entry: str, minor: int | None) -> DeviceNode:
        """Node that opens one instance; made by number where nvidia-modprobe has not made it."""
        if minor is None:
            raise DriverFilesMissing(
                f"no {_CAPABILITIES}/{entry}/access; the partition does not exist any more, or "
                "the kernel module was loaded without MIG"
            )
        name = f"dev/nvidia-caps/nvidia-cap{minor}"
        remedy = f"nvidia-modprobe -f {_CAPABILITIES}/{entry}/access"
        if self._present(name, minor, remedy):
            return self._node(name)
        major = self._proc.device_majors().get(_CAPABILITIES_DRIVER)
        if major is None:
            raise self._missing(name, remedy)
        return DeviceNode(f"/{name}", self._on_host(name), major, minor)

    def _required(self, name: str, minor: int | None, remedy: str) -> DeviceNode:
        if not self._present(name, minor, remedy):
            raise self._missing(name, remedy)
        return self._node(name)

    def _present(self, name: str, minor: int | None, remedy: str = "") -> bool:
        """Whether the node is there; raises DriverFilesMissing when it is another device's."""
        try:
            status = (self._roots()[1] / name).lstat()
        except OSError:
            return False
        if minor is not None and stat.S_ISCHR(status.st_mode):
            number = os.minor(status.st_rdev)
            if number != minor:
                raise DriverFilesMissing(
                    f"{self._on_host(name)} has the minor number {number} instead of {minor}, "
                    f"which is another device's; remove it and run: {remedy}"
                )
        return not stat.S_ISDIR(status.st_mode)

    def _missing(self, name: str, remedy: str) -> DriverFilesMissing:
        host, here = self._roots()
        seen = "" if host == here else f" (seen from here as {here / name})"
        return DriverFilesMissing(f"no device node {host / name}{seen}; make it: {remedy}")

    def _node(self, name: str) -> DeviceNode:
        return DeviceNode(f"/{name}", self._on_host(name))

    def _on_host(self, name: str) -> str:
        return str(self._roots()[0] / name)

    def _roots(self) -> tuple[Path, Path]:
        """Device root for the runtime and for this process: the setting, else where nodes are."""
        known = self._settings
        if known.dev_root is not None:
            return known.dev_root, known.container_dev_root or known.dev_root
        if (known.container_driver_root / _CONTROL).exists():
            return known.driver_root, known.container_dev_root or known.container_driver_root
        return Path("/"), known.container_dev_root or Path("/")
