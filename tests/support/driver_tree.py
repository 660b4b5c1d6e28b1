"""A GPU driver's file tree for tests: plain files where a node has libraries and devices."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.cdi import ClaimSpecs
from dra_driver.config import Settings

VERSION = "580.95.05"
LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-simstate")
LONG_AGO = 1_000_000_000  # seconds; a folder that was changed long before the test


@dataclass
class DriverTree:
    """A tree below `root`; paths are those of a node."""

    root: Path
    folder: str = "usr/lib/x86_64-linux-gnu"
    version: str = VERSION
    gpus: int = 2

    def build(self) -> "DriverTree":
        """Make libraries, programs, firmware and device nodes."""
        self.add_libraries(self.version)
        self.link(self.version)
        self.write("usr/bin/nvidia-smi", mode=0o755)
        self.add_nodes(self.gpus)
        return self

    def write(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        """Make a file with all folders above it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def add_libraries(self, version: str) -> None:
        """Make the libraries of a driver version, without links."""
        for library in LIBRARIES:
            self.write(f"{self.folder}/{library}.so.{version}", library)
        self.write(f"lib/firmware/nvidia/{version}/gsp_ga10x.bin")

    def remove_libraries(self, version: str) -> None:
        """Remove the libraries of a driver version."""
        for library in LIBRARIES:
            (self.root / self.folder / f"{library}.so.{version}").unlink()

    def link(self, version: str) -> None:
        """Let the sonames lead to a driver version."""
        for library in ("libcuda", "libnvidia-ml"):
            link = self.root / self.folder / f"{library}.so.1"
            link.unlink(missing_ok=True)
            link.symlink_to(f"{library}.so.{version}")

    def add_nodes(self, gpus: int) -> None:
        """Make plain files in the place of device nodes."""
        names = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
        for name in (*names, *(f"nvidia{minor}" for minor in range(gpus))):
            self.write(f"dev/{name}")

    def add_partition(self, gpu: int, gi: int, minors: tuple[int, int]) -> None:
        """Make the capabilities of a GPU instance with compute instance 0, and their nodes."""
        base = f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{gi}"
        for entry, minor in zip((f"{base}/access", f"{base}/ci0/access"), minors, strict=True):
            self.write(entry, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
            self.write(f"dev/nvidia-caps/nvidia-cap{minor}")

    def settle(self) -> None:
        """Make all folders look as if nothing had changed for long."""
        for folder in [self.root, *(p for p in self.root.rglob("*") if p.is_dir())]:
            os.utime(folder, (LONG_AGO, LONG_AGO), follow_symlinks=False)

    def settings(self, **changes: Any) -> Settings:
        """Give settings of a process on the host whose driver root this is."""
        scratch = self.root.parent
        values = {
            "node_name": "node-a",
            "cdi_root": scratch / "cdi",
            "driver_root": self.root,
            "container_driver_root": self.root,
            "host_root": self.root,
            "hook_folder": scratch / "hook",
            **changes,
        }
        return Settings(**values)

    def specs(self, **changes: Any) -> ClaimSpecs:
        """Give the object under test."""
        return ClaimSpecs(self.settings(**changes))
