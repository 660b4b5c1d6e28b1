"""What the sandbox's processes see of the file system: the machine's, with private places to write.

Writes below these folders go to memory and end with the sandbox, so a node can be laid out where
real ones are (/var/lib/kubelet, /etc/cdi, /run/cdi) while the machine stays as it is.
"""

import os
from pathlib import Path

from tests.cluster import cgroups, linux

STATE = Path("/run/cluster")
"""The folder of all that belongs to the cluster: programs' state, sockets, logs."""

HIDDEN = Path("/run")
"""The machine's folder that is replaced by an empty one."""

_COPIED_ON_WRITE = ("/etc", "/var/lib", "/var/log")

# What a kubelet sets machine-wide at its start, unless it finds it so (container manager of Linux).
_KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}


def lay_out() -> None:
    """Mount everything; for the first process of new mount, network and PID namespaces."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", HIDDEN, "tmpfs", data="mode=755")
    for name in ("home", "logs", "tmp"):
        (STATE / name).mkdir(parents=True)
    for folder in _COPIED_ON_WRITE:
        _copy_on_write(folder)
    linux.mount("tmpfs", "/dev/shm", "tmpfs")
    linux.mount("proc", "/proc", "proc")
    _pin_kernel_settings()
    own_groups = cgroups.hierarchies()
    linux.mount("sysfs", "/sys", "sysfs")
    cgroups.mount_own(own_groups)
    kubelet = Path("/var/lib/kubelet")
    kubelet.mkdir(exist_ok=True)
    linux.mount("tmpfs", kubelet, "tmpfs", data="mode=750")
    # As on a node: containers may ask for mounts that appear later.
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SHARED)


def _copy_on_write(folder: str) -> None:
    layers = STATE / "layers" / folder.strip("/").replace("/", "-")
    for name in ("upper", "work"):
        (layers / name).mkdir(parents=True)
    (layers / "upper").chmod(Path(folder).stat().st_mode & 0o7777)
    data = f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work"
    linux.mount("overlay", folder, "overlay", data=data)


def _pin_kernel_settings() -> None:
    """Show a kubelet the settings it wants without making them on the machine."""
    for name, value in _KERNEL_SETTINGS.items():
        setting = Path("/proc/sys") / name
        if setting.exists():
            shown = STATE / "kernel" / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(f"{value}\n")
            linux.mount(os.fspath(shown), setting, flags=linux.MS_BIND)
