"""The driver on the cluster's node: simulated GPUs, and `dra-driver serve` beside the kubelet.

It acts as the ServiceAccount of `deploy/manifests/rbac.yaml` with a token bound to the node, so a
right that is missing there shows up here.
"""

import itertools
import json
import secrets
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Final, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.host import failpoints
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.state import is_reservation_uid
from tests.cluster.api import Object
from tests.cluster.cache import HarnessError
from tests.cluster.cluster import Cluster
from tests.cluster.process import HostProcess
from tests.cluster.workload import RESOURCE_API, Namespace
from tests.support.node import SimulatedNode

CHECKOUT: Final = Path(__file__).parents[2]
DRIVER: Final = "gpu.nvidia.com"
ACCOUNT: Final = ("gpu-dra-driver", "gpu-dra-driver-kubelet-plugin")
USER: Final = f"system:serviceaccount:{ACCOUNT[0]}:{ACCOUNT[1]}"
LONGEST_WAIT: Final = 60.0  # seconds; ten times and more what is promised anywhere

_SHIPPED: Final = tuple(
    CHECKOUT / path
    for path in (
        "deploy/manifests/rbac.yaml",
        "deploy/manifests/policies-slices.yaml",
        "deviceclasses",
    )
)
_PROGRAM: Final = Path(sys.executable).with_name("dra-driver")
_FIRST_PORT: Final = 18080
_LOOK_SECONDS: Final = 0.05
_nodes = itertools.count()
_instances = itertools.count()


class Instance:
    """One `dra-driver serve`; it may be started again after it has ended."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        port: int,
        arguments: list[str],
        env: Mapping[str, str],
    ) -> None:
        """Build it; nothing runs before `start`."""
        self._port = port
        endpoint = f"--http-endpoint=127.0.0.1:{port}"
        self.process = cluster.host_process(name, [_PROGRAM, "serve", *arguments, endpoint], env)

    def start(self, *, ready: bool = True) -> None:
        """Start it and wait until it says that it is ready."""
        self.process.start()
        if ready:
            self.wait_ready()

    def wait_ready(self) -> float:
        """Wait until /readyz says yes; gives the seconds it took. Fails at once if it has ended."""
        answers: list[tuple[int, str]] = []

        def ready() -> bool:
            self.process.check()
            answers[:] = [self.get("/readyz")]
            return answers[0][0] == HTTPStatus.OK

        try:
            return eventually(ready, f"{self.process.name} is ready")
        except HarnessError as error:
            raise HarnessError(f"{error}: {answers}\n{self.process.tail()}") from None

    def get(self, path: str) -> tuple[int, str]:
        """Ask it over HTTP; status 0 when nobody listens."""
        try:
            url = f"http://127.0.0.1:{self._port}{path}"
            with urllib.request.urlopen(url, timeout=LONGEST_WAIT) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, **labels: str) -> float:
        """Value of the one series of /metrics that has these labels."""
        _, text = self.get("/metrics")
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        if len(found) != 1:
            raise HarnessError(f"/metrics has {len(found)} series {name}{labels}")
        return found[0]


class Driver:
    """A simulated node with real device nodes, and the instances of the driver on it."""

    def __init__(self, cluster: Cluster, spec: NodeSpec, config: str = "") -> None:
        """Make the simulated node; `install` has to follow.

        `config` is the node configuration that all instances are started with; empty: none.
        """
        self.cluster = cluster
        number = next(_nodes)
        self._folder = cluster.folder(f"gpu-node-{number}")
        self._failpoint = self._folder / "failpoint"
        self._config = self._folder / "node-config.yaml"
        if config:
            self.configure(config)
        self.node = SimulatedNode.create(
            self._folder / "root", spec, device_nodes=NodeKind.REAL, seed=f"cluster-{number}"
        )
        self._kubeconfig = Path()
        self._devices: set[str] = set()

    def install(self) -> None:
        """Apply what an administrator applies, and start the driver."""
        self.cluster.kubectl("apply", *(f"--filename={path}" for path in _SHIPPED))
        self._kubeconfig = self.cluster.service_account(*ACCOUNT)
        self.main = self.instance()
        self.main.start()
        self._devices = self.device_names()

    def remove(self) -> None:
        """Stop the driver and delete what `install` applied, but for the namespace."""
        self.main.process.stop()
        files = chain.from_iterable(
            path.glob("*") if path.is_dir() else [path] for path in _SHIPPED
        )
        found = [item for path in files for item in yaml.safe_load_all(path.read_text())]
        items = [item for item in found if item["kind"] != "Namespace"]
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        # Without waiting: it would wait for one after the other.
        self.cluster.kubectl("delete", "--wait=false", "--filename=-", stdin=json.dumps(document))

    @contextmanager
    def in_place_of(self, other: "Driver") -> Iterator[Self]:
        """Let these GPUs be the node's for a while, instead of those of an installed driver."""
        self._kubeconfig = other._kubeconfig
        other.main.process.stop()
        self.main = self.instance()
        try:
            self.main.start()
            self._devices = self.device_names()
            yield self
        finally:
            if self.main.process.running:
                self.main.process.stop()
            self.close()
            other.main.start()

    def wait_settled(self) -> None:
        """Wait until it is ready and publishes what it did at first: a test may have disturbed it.

        Fails at once if it has ended.
        """
        self._failpoint.unlink(missing_ok=True)
        self.main.wait_ready()
        eventually(lambda: self.device_names() == self._devices, "all devices are published")

    def configure(self, config: str) -> None:
        """Replace the node configuration, also while instances run that were started with one."""
        new = self._config.with_suffix(".new")
        new.write_text(config)
        new.replace(self._config)

    @contextmanager
    def configured(self, config: str) -> Iterator[None]:
        """Let another node configuration count for a while; the process is not restarted."""
        before = self._config.read_text()
        self.configure(config)
        try:
            yield
        finally:
            self.configure(before)

    def instance(self, *arguments: str) -> Instance:
        """Build a further instance; `--pod-uid=…` gives it sockets of its own."""
        number = next(_instances)
        name, port = f"dra-driver-{number}", _FIRST_PORT + number
        flags = [
            f"--node-name={self.cluster.node_name}",
            f"--kubeconfig={self._kubeconfig}",
            *self.hardware_flags(),
            "--poll-interval=2s",  # for what no event tells; its default is 30 s
        ]
        if self._config.exists():
            flags.append(f"--config={self._config}")
        env = {failpoints.VARIABLE: f"@{self._failpoint}"}
        return Instance(self.cluster, name, port, [*flags, *arguments], env)

    def hardware_flags(self) -> list[str]:
        """Say where the simulated node is; all else is where real nodes have it."""
        root = self.node.root
        return [f"--nvidia-driver-root={root}", f"--host-root={root}"]

    def mps_agent(self, propagation: str = "unchanged") -> HostProcess:
        """Build the MPS agent with mounts of its own, as a container's; the caller starts it.

        With `unchanged` the node sees what it mounts: `mountPropagation: Bidirectional`. With
        `private` it does not.
        """
        container = ["unshare", "--mount", f"--propagation={propagation}"]
        command = [str(_PROGRAM), "mps-agent", f"--nvidia-driver-root={self.node.root}"]
        return self.cluster.host_process(f"mps-agent-{next(_instances)}", [*container, *command])

    @contextmanager
    def replaced(self, *arguments: str) -> Iterator[Instance]:
        """Let an instance with further arguments serve in the place of the main one."""
        self.main.process.stop()
        other = self.instance(*arguments)
        other.start()
        try:
            yield other
        finally:
            other.process.stop()
            self.main.start()

    def arm(self, failpoint: str) -> None:
        """Let the next instance that comes by this place die there (`host.failpoints`)."""
        self._failpoint.write_text(failpoint)

    def restart_when_killed(self) -> None:
        """Wait until the main instance has died at the armed place, and start it again."""
        assert self.main.process.wait(LONGEST_WAIT) == -signal.SIGKILL
        self.main.start()

    def close(self) -> None:
        """Let go of the simulated node; processes end with the cluster."""
        self.node.close()

    def slices(self) -> list[Object]:
        """Slices of this driver in the API server, in the order of their names."""
        query = {"fieldSelector": f"spec.driver={DRIVER}"}
        items: list[Object] = self.cluster.api.get(f"{RESOURCE_API}/resourceslices", **query)[
            "items"
        ]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def published(self) -> dict[str, tuple[str, int]]:
        """UID and generation of each slice by its name: any write of a slice changes it."""
        return {
            item["metadata"]["name"]: (item["metadata"]["uid"], item["metadata"]["generation"])
            for item in self.slices()
        }

    def device_names(self) -> set[str]:
        """Names of all published devices."""
        return set(self.attributes())

    def attributes(self) -> dict[str, Object]:
        """Attributes of all published devices by their names."""
        return {device["name"]: device["attributes"] for device in self.devices()}

    def devices(self) -> Iterator[Object]:
        """Yield all published devices; releases up to 1.34 write an empty list as null."""
        for item in self.slices():
            yield from item["spec"].get("devices") or []

    def wait_published_anew(
        self, before: Mapping[str, tuple[str, int]], names: Iterable[str], what: str
    ) -> float:
        """Wait until no slice of `before` is left and these devices are published again."""
        gone = {uid for uid, _ in before.values()}
        wanted = set(names)

        def anew() -> bool:
            found = {uid for uid, _ in self.published().values()}
            return not found & gone and self.device_names() >= wanted

        return eventually(anew, what)

    def wait_node_event(self, reason: str, words: str) -> None:
        """Wait for an Event of the driver about the Node."""
        query = {"fieldSelector": f"involvedObject.kind=Node,reason={reason}"}

        def found() -> bool:
            events = self.cluster.api.get("/api/v1/events", **query)["items"]
            return any(words in event["message"] for event in events)

        eventually(found, f"an Event {reason} on the Node")

    def cdi_files(self) -> list[Path]:
        """CDI files of this driver, in whichever folder the runtime reads."""
        folders = self.cluster.cdi_folders
        return sorted(path for folder in folders for path in folder.glob(f"*{DRIVER}*"))

    def leftovers(self) -> set[str]:
        """Names of all CDI files, and of all records of claims; layouts have some of their own."""
        records = self.cluster.kubelet_root / "plugins" / DRIVER / "claims"
        names = {path.name for path in (*self.cdi_files(), *records.glob("*.json*"))}
        return {name for name in names if not is_reservation_uid(name)}

    def requests(self) -> list[Object]:
        """All requests that this driver has made of the API server so far, as its audit log."""
        return [item for item in self.cluster.audit_events() if item["user"]["username"] == USER]

    @contextmanager
    def namespace(self, labels: Mapping[str, str] | None = None) -> Iterator[Namespace]:
        """Make a namespace; when it is gone nothing may be left of its claims on the node."""
        made = Namespace(self.cluster, f"gpu-{secrets.token_hex(4)}")
        made.create(labels)
        try:
            yield made
        finally:  # what one test leaves when it fails is not held against those that follow
            for event in made.warnings():
                print(event)
            made.remove()
        assert self.leftovers() == set()


def eventually(condition: Callable[[], object], what: str, limit: float = LONGEST_WAIT) -> float:
    """Wait until the condition holds, print and give how long it took; fail after `limit`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise HarnessError(f"{what}: not within {limit:.0f} s")
        time.sleep(_LOOK_SECONDS)
    took = time.monotonic() - began
    print(f"{what}: {took:.2f} s")
    return took
