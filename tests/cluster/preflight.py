"""Whether a cluster can run on this machine, asked before anything is built or started."""

import os
import platform
import shutil
import socket
import sys
from pathlib import Path

from tests.cluster import cgroups, mounts
from tests.cluster.cache import cache_root

_CHECKOUT = Path(__file__).parents[2]
_KUBELET_PORT = 10250
_TOOLS = {"apt-get": "apt", "cc": "gcc libc6-dev", "dpkg-deb": "dpkg"}
_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "NET_ADMIN": 12, "SYS_ADMIN": 21, "MKNOD": 27}
_MEMORY_GIB = 4
_DISK_GIB = 12


def reasons() -> list[str]:
    """Say in one line each what keeps a cluster from running here; empty if nothing does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [f"needs Linux on x86-64, this is {sys.platform} on {platform.machine()}"]
    if os.geteuid() != 0:
        return ["needs root: it makes namespaces, mounts and device nodes"]
    found = [_capabilities(), _tools(), cgroups.unusable(), _kubelet(), _hidden(), _room()]
    return [reason for reason in found if reason]


def _capabilities() -> str | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
            return f"lacks the capabilities {', '.join(missing)}" if missing else None
    return None


def _tools() -> str | None:
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if not missing:
        return None
    needed = " ".join(_TOOLS[tool] for tool in missing)
    return f"missing: {', '.join(missing)} (Debian: apt-get install {needed})"


def _kubelet() -> str | None:
    """Refuse where a node of a real cluster may be: it must not be put at risk by tests."""
    own = Path("/proc/self/ns/pid").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_kubelet = (process / "comm").read_text().strip() == "kubelet"
            if is_kubelet and (process / "ns" / "pid").readlink() == own:
                return f"a kubelet runs here (process {process.name}): this is a real node"
        except OSError:  # it has ended meanwhile
            continue
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", _KUBELET_PORT)) == 0:
            return f"port {_KUBELET_PORT} is in use: this seems to be a real node"
    root = Path("/var/lib/kubelet")
    if root.is_dir() and any(root.iterdir()):
        return f"{root} is not empty: this seems to be a real node"
    return None


def _hidden() -> str | None:
    for path in (_CHECKOUT, cache_root(), Path(sys.prefix), Path(sys.base_prefix)):
        if path.resolve().is_relative_to(mounts.HIDDEN):
            return f"{path} is below {mounts.HIDDEN}, which the sandbox replaces"
    return None


def _room() -> str | None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    if memory < _MEMORY_GIB:
        return f"needs {_MEMORY_GIB} GiB of memory, has {memory}"
    built = (cache_root() / "bin").exists()
    folder = next(path for path in (cache_root(), *cache_root().parents) if path.exists())
    free = shutil.disk_usage(folder).free >> 30
    if not built and free < _DISK_GIB:
        return f"needs {_DISK_GIB} GiB on the disk of {folder} to build the cluster, has {free}"
    return None
