"""A power cut of the node: every process of its Pods dies, and what lay in memory is gone.

Disks stay: the kubelet's root, containerd's store, the driver's records, objects of the API server.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.cluster import linux
from tests.cluster.cache import HarnessError
from tests.cluster.cluster import Cluster
from tests.cluster.node import CONTAINERD_SOCKET

_NETWORKS = Path("/run/netns")
_SECONDS = 60.0


def cut(cluster: Cluster) -> None:
    """Kill kubelet, containerd and all containers, and empty the folders that lie in memory.

    The caller kills what else it runs on the node, and starts everything again.
    """
    cluster.node.kubelet.kill()
    cluster.node.containerd.kill()
    _kill_containers()
    state = cluster.state / "containerd" / "state"
    for mount in sorted(_mounts_below(state, _NETWORKS, cluster.kubelet_root), reverse=True):
        linux.unmount(mount)
    for folder in (state, _NETWORKS, Path("/run/cdi")):
        _empty(folder)
    CONTAINERD_SOCKET.unlink(missing_ok=True)


def restore(cluster: Cluster) -> None:
    """Start containerd and the kubelet as a boot does; returns when the node is Ready."""
    cluster.node.containerd.start()
    cluster.node.containerd.wait_for_socket(CONTAINERD_SOCKET)
    cluster.restart_kubelet()


def _kill_containers() -> None:
    """Kill shims first, so that none tells of its container's end, then all that is in a Pod."""
    deadline = time.monotonic() + _SECONDS
    while pids := list(_processes_of_pods()):
        if time.monotonic() > deadline:
            raise HarnessError(f"processes of Pods do not end: {pids}")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes_of_pods() -> Iterator[int]:
    """Yield shims, then what runs in the Pods' control groups; the sandbox shows no others."""
    inside = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_shim = "containerd-shim" in (process / "comm").read_text()
            is_inside = "/kubepods" in (process / "cgroup").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if is_shim:
            yield int(process.name)
        elif is_inside:
            inside.append(int(process.name))
    yield from inside


def _mounts_below(*folders: Path) -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = Path(line.split()[4])
        if any(place.is_relative_to(folder) and place != folder for folder in folders):
            yield place


def _empty(folder: Path) -> None:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
