"""The plugin's side towards the kubelet, on real sockets, with an engine that a test controls."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dra_driver.config import Settings
from dra_driver.model import (
    ClaimRef,
    DriverError,
    Gpu,
    Inventory,
    PreparedClaim,
    PreparedDevice,
)
from dra_driver.plugin.kubelet_services import KubeletServices
from dra_driver.telemetry import Metrics

DRIVER = "gpu.nvidia.com"


class FakeEngine:
    """Prepares everything at once, unless the test puts its own functions in."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[ClaimRef, ...]]] = []
        self.cancelled = threading.Event()
        self.release = threading.Event()
        self.hang = False
        self.answers: Mapping[str, PreparedClaim | DriverError] | None = None
        self.unprepared: Mapping[str, DriverError | None] | None = None

    def prepare(
        self, refs: Sequence[ClaimRef], cancelled: Callable[[], bool]
    ) -> Mapping[str, PreparedClaim | DriverError]:
        self.asked.append(("prepare", tuple(refs)))
        while refs and self.hang and not self.release.wait(0.01):
            if cancelled():
                self.cancelled.set()
        if self.answers is not None:
            return self.answers
        return {ref.uid: prepared(ref) for ref in refs}

    def unprepare(
        self, refs: Sequence[ClaimRef], cancelled: Callable[[], bool]
    ) -> Mapping[str, DriverError | None]:
        self.asked.append(("unprepare", tuple(refs)))
        return self.unprepared if self.unprepared is not None else {r.uid: None for r in refs}


def prepared(ref: ClaimRef) -> PreparedClaim:
    device = PreparedDevice("gpu", "node-a", "gpu-0", "GPU-0", ("k8s.gpu.nvidia.com/claim=x",))
    return PreparedClaim(ref, (device,))


def claim(number: int) -> ClaimRef:
    return ClaimRef("default", f"claim-{number}", f"00000000-0000-0000-0000-{number:012d}")


class PluginSide:
    """One or more instances in two folders, and what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = FakeEngine()
        self.metrics = Metrics()
        self.inventory: Inventory | None = Inventory(gpus=(Gpu("GPU-0", 0, "H100"),))
        self.stale = ""
        self.registered = threading.Event()
        self.services: list[KubeletServices] = []

    def settings(self, pod_uid: str = "") -> Settings:
        return Settings(
            node_name="node-a",
            plugins_folder=self.folder / "plugins",
            registrar_folder=self.folder / "registry",
            pod_uid=pod_uid,
        )

    def build(
        self, pod_uid: str = "", on_registered: Callable[[], None] | None = None
    ) -> KubeletServices:
        services = KubeletServices(
            self.settings(pod_uid),
            self.engine,
            self.metrics,
            lambda: self.inventory,
            lambda: self.stale,
            on_registered or self.registered.set,
        )
        self.services.append(services)
        return services

    def close(self) -> None:
        self.engine.release.set()
        for services in self.services:
            assert services.leave(0).wait(60)
            services.close()


def eventually(condition: Callable[[], object], what: str, limit: float = 60) -> float:
    """Wait for something promised; gives the seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < limit, f"{what}: not after {limit} s"
        time.sleep(0.01)
    return time.monotonic() - begin
