"""Makes the driver to measure: the real program on a simulated node, between stand-ins."""

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import click

from dra_driver.cli.bed import DRIVER, PATIENCE, Bed, PluginFailed
from dra_driver.cli.bench.claims import Claims, Place
from dra_driver.cli.bench.mps_daemon import seconds_to_start
from dra_driver.cli.bench.offer import MIG
from dra_driver.cli.bench.process import usage
from dra_driver.cli.bench.sharing import Sharing, Wish
from dra_driver.cli.bench.target import Counts, Target, offered
from dra_driver.cli.interrupt import Check
from dra_driver.model import DriverError
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import DEFAULT_DRIVER_VERSION, alike
from dra_driver.simulator.ports import free_port

_NODE: Final = "bench"
_FSYNCS: Final = "gpu_dra_driver_fsyncs_total"
_WRITES: Final = frozenset(("create", "update", "patch", "delete"))
_SECONDS: Final = 10.0
_PROGRAMS: Final = "gpu_dra_driver_programs_total"
_LIMITING_DRIVER: Final = "615.10.05"  # the first branch that limits the memory of cgroups
_COUNTED: Final = (_FSYNCS, _PROGRAMS)
_CGROUPS, _PODS = "sys/fs/cgroup", "kubepods/besteffort"


class Embedded:
    """A simulated node on which the real `dra-driver serve` is started, several times."""

    def __init__(self, bed: Bed, gpus: int, wish: Wish) -> None:
        """Make the node and start API server and kubelet, and the MPS agent where it is needed."""
        self.gpus = gpus
        self._bed = bed
        self._wish = wish
        self._node: Node = bed.make_node()
        self._uuid: str = self._node.show()["gpus"][0]["uuid"]
        bed.start_cluster()
        if wish.sharing is Sharing.MPS:
            bed.start_agent()
        if wish.sharing is Sharing.MEMORY:
            _make_cgroups(bed.root / _CGROUPS)
        self._port = free_port()
        self._flags = [f"--http-endpoint=127.0.0.1:{self._port}"]
        if wish.node_config:
            path = bed.folder / "config.yaml"
            path.write_text(wish.node_config, encoding="ascii")
            self._flags.append(f"--config={path}")

    @property
    def words(self) -> str:
        """What is measured, for people."""
        return f"this driver on a simulated node{self._wish.words}"

    @property
    def disk(self) -> Path:
        """Folder on the disk that has the driver's records."""
        return self._bed.folder

    def start(self) -> tuple[float, float]:
        """Start the driver; gives the seconds to complete slices, and its CPU seconds by then.

        Raises PluginFailed.
        """
        pid = self._bed.start_plugin(*self._flags)
        _wait_executed(pid)
        begin = time.perf_counter()
        self._bed.wait_published()
        seconds = time.perf_counter() - begin
        used = usage(pid)
        self._bed.kubelet.wait_registered(DRIVER, PATIENCE)
        return seconds, 0.0 if used is None else used.cpu_seconds

    def start_again(self) -> tuple[float, float]:
        """Stop the driver, forget what it published, and start it. Raises PluginFailed."""
        self._bed.stop_plugin()
        self._bed.kubelet.wait_gone(DRIVER, PATIENCE)
        for piece in self._bed.slices():
            self._bed.api.objects.delete("resourceslices", piece["metadata"]["name"])
        return self.start()

    @contextmanager
    def target(self, namespace: str) -> Iterator[Target]:
        """Reach the driver that runs now."""
        bed, place = self._bed, Place(DRIVER, _NODE, _NODE)
        pod = self._begin_pod if self._wish.sharing is Sharing.MEMORY else None
        claims = Claims(bed.folder / "kubeconfig", namespace, place, self._wish, pod)
        plugin = bed.kubelet.wait_registered(DRIVER, PATIENCE)
        pid = None if bed.plugin is None else bed.plugin.pid
        with claims.namespace():
            offer = offered(bed.slices(), self._wish, "this driver")
            daemon = self._start_daemon if self._wish.sharing is Sharing.MPS else None
            yield Target(place, offer, plugin, claims, pid, self._counts, bed.check, daemon)

    def _begin_pod(self) -> str:
        """Make the cgroup of a Pod, as the kubelet does before it prepares the Pod's claims."""
        uid = str(uuid4())
        (self._bed.root / _CGROUPS / _PODS / f"pod{uid}").mkdir()
        return uid

    def _start_daemon(self) -> float:
        """Start a control daemon of MPS as anybody would; gives the seconds to its first answer."""
        return seconds_to_start(self._bed.root, self._bed.folder, self._uuid)

    def _counts(self) -> Counts:
        requests, metrics = self._bed.api.requests.all(), self._metrics()
        return Counts(
            api_requests=len(requests),
            api_writes=sum(request.verb in _WRITES for request in requests),
            nvml_calls=self._node.state.call_count(),
            fsyncs=metrics.get(_FSYNCS),
            programs=metrics.get(_PROGRAMS),
        )

    def _metrics(self) -> dict[str, int]:
        """Ask for the driver's own counts."""
        url = f"http://127.0.0.1:{self._port}/metrics"
        with urllib.request.urlopen(url, timeout=_SECONDS) as page:
            lines = [line.rpartition(" ") for line in page.read().decode().splitlines()]
        return {name: round(float(value)) for name, _, value in lines if name in _COUNTED}


@contextmanager
def embedded(check: Check, gpus: int, wish: Wish) -> Iterator[Embedded]:
    """Make the ground and take it away again. Raises DriverError, after the driver's last words.

    With MIG for `devices` there is one more GPU: its partitions are measured.
    """
    gpus = gpus + 1 if wish.devices == MIG else gpus
    by_memory = wish.sharing is Sharing.MEMORY
    version = _LIMITING_DRIVER if by_memory else DEFAULT_DRIVER_VERSION
    with Bed(check, _NODE, alike("h100-80gb", gpus, version)) as bed:
        try:
            yield Embedded(bed, gpus, wish)
        except SettingInvalid:
            raise
        except (DriverError, CallFailed):
            click.echo(f"The driver's last words:\n{bed.last_words()}", err=True)
            raise


def _make_cgroups(root: Path) -> None:
    """Let the node have cgroups of version 2, with the kubelet's folder for Pods."""
    (root / _PODS).mkdir(parents=True)
    (root / "cgroup.controllers").write_text("memory\n", encoding="ascii")


def _wait_executed(pid: int) -> None:
    """Wait until the process is the driver: what starts it first ties its life to ours."""
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] != [b"-m"]:
        if time.monotonic() > deadline:
            raise PluginFailed(f"process {pid} did not become the driver in {PATIENCE:g} s")
        time.sleep(0.001)
