"""Control groups of our own, one in each hierarchy: the roots of what the sandbox sees."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import linux
from tests.cluster.cache import HarnessError

_MOUNTS = Path("/sys/fs/cgroup")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")
_REMOVAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One cgroup hierarchy: where it is mounted, and where this process stands in it."""

    mount: Path
    own: Path
    options: str  # of its mount; empty for version 2

    def group(self, name: str) -> Path:
        """Return the folder of our own group of this name."""
        return self.own / name

    @property
    def unified(self) -> bool:
        """Whether it is version 2 and has the controllers."""
        return self.mount == _MOUNTS


def hierarchies() -> list[Hierarchy]:
    """Read this process's hierarchies; those that are not mounted are left out."""
    found = []
    mounted = _mounted()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        names = set(filter(None, controllers.split(",")))
        for mount, has in mounted.items():
            if names <= has if names else not has:
                # Version 2 lets only its real root hold both processes and groups with controllers.
                own = mount if mount == _MOUNTS else mount / path.lstrip("/")
                named = controllers.startswith("name=")
                found.append(Hierarchy(mount, own, f"none,{controllers}" if named else controllers))
                break
    return found


def unusable() -> str | None:
    """Say why no group of our own can be made here, or None."""
    found = hierarchies()
    if not found:
        return f"no cgroup hierarchy is mounted below {_MOUNTS}"
    for hierarchy in found:
        if not os.access(hierarchy.own, os.W_OK):
            return f"{hierarchy.own} can't be written"
        if hierarchy.unified and (hierarchy.own / "cgroup.type").exists():
            return f"{hierarchy.own} is not the root of the cgroup hierarchy (inside a container?)"
    return None


def create(name: str) -> None:
    """Make the group in each hierarchy, ready to take processes."""
    for hierarchy in hierarchies():
        group = hierarchy.group(name)
        if hierarchy.unified:
            _enable_controllers(hierarchy.own)
        group.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 leaves them empty
            if not hierarchy.unified and (group / setting).exists():
                (group / setting).write_text((hierarchy.own / setting).read_text())


def enter(name: str) -> None:
    """Move this process into the groups and make them the roots of a cgroup namespace."""
    found = hierarchies()
    for hierarchy in found:
        (hierarchy.group(name) / "cgroup.procs").write_text("0")
    linux.unshare(linux.CLONE_NEWCGROUP)
    if found[0].unified:
        leaf = found[0].group(name) / "init"  # since a group with controllers holds no process
        leaf.mkdir()
        (leaf / "cgroup.procs").write_text("0")
        _enable_controllers(found[0].group(name))


def mount_own(entered: list[Hierarchy]) -> None:
    """Mount the hierarchies on a new /sys, so that the groups entered are their roots."""
    if entered[0].unified:
        linux.mount("cgroup2", _MOUNTS, "cgroup2")
        return
    linux.mount("tmpfs", _MOUNTS, "tmpfs", data="mode=755")
    for hierarchy in entered:
        hierarchy.mount.mkdir(parents=True)
        if hierarchy.options:
            linux.mount("cgroup", hierarchy.mount, "cgroup", data=hierarchy.options)
        else:
            linux.mount("cgroup2", hierarchy.mount, "cgroup2")


def remove(group: Path) -> None:
    """Remove a group and those below it, waiting for the kernel to forget its dead processes."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while group.exists():
        for folder, _, _ in os.walk(group, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break
        if group.exists() and time.monotonic() > deadline:
            raise HarnessError(f"cgroup {group} can't be removed: a process is left in it")
        time.sleep(0.02)


def _enable_controllers(group: Path) -> None:
    available = (group / "cgroup.controllers").read_text().split()
    for controller in _V2_CONTROLLERS:
        if controller in available:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _mounted() -> dict[Path, set[str]]:
    """Map where each hierarchy is mounted to the options that name it: none for version 2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split()
        if kind in ("cgroup", "cgroup2"):
            named = set(options.split(",")) if kind == "cgroup" else set()
            found[Path(mount.split()[4])] = named
    return found
