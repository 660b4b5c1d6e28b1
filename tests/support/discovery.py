"""Discovery on a simulated node, with what it tells kept for tests."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.model import Gpu, Inventory
from dra_driver.nvml import Discovery, HardwareEvent, Look
from dra_driver.simulator.native_library import error_number
from dra_driver.telemetry import Metrics
from tests.support.node import SimulatedNode

ALL_GPUS = -1
PATIENCE = 60.0  # seconds; what a test waits for comes in a small part of it or is broken


class Watch:
    """A running Discovery and every snapshot that it told."""

    def __init__(self, root: Path, *, poll_seconds: float = 3600.0, **settings: Any) -> None:
        """Begin to look at the node below `root`, as a plugin on its host does."""
        self.told: list[Inventory] = []
        self.looks: list[Look] = []
        self.events: list[tuple[HardwareEvent, ...]] = []
        self.metrics = Metrics()
        self._news = threading.Condition()
        self.discovery = Discovery(
            Settings(
                node_name="node-a",
                driver_root=root,
                poll_seconds=poll_seconds,
                **{"container_driver_root": root, "host_root": root, **settings},
            ),
            self.metrics,
            self._keep,
            self.events.append,
        )
        self.discovery.start()

    def _keep(self, look: Look) -> None:
        with self._news:
            self.looks.append(look)
            if not self.told or look.inventory is not self.told[-1]:
                self.told.append(look.inventory)
            self._news.notify_all()

    def look(self) -> Inventory:
        """Give a fresh snapshot."""
        return self.discovery.look(PATIENCE)

    def gpu(self, position: int = 0) -> Gpu:
        """Give one GPU of a fresh snapshot."""
        return self.look().gpus[position]

    def told_that(self, condition: Callable[[Inventory], bool]) -> Inventory:
        """Wait until a snapshot that was told, without being asked for, fulfils the condition."""
        begun = time.monotonic()
        with self._news:
            came = self._news.wait_for(lambda: self.told and condition(self.told[-1]), PATIENCE)
            assert came, f"last told: {self.told[-1:]}; not ready: {self.discovery.not_ready()}"
            print(f"told after {time.monotonic() - begun:.2f} s")
            return self.told[-1]

    def not_ready_that(self, *words: str) -> str:
        """Wait until discovery says why it is not ready, in these words among others."""
        deadline = time.monotonic() + PATIENCE
        while not all(word in (reason := self.discovery.not_ready()) for word in words):
            assert time.monotonic() < deadline, f"not ready: {reason!r}"
            time.sleep(0.01)
        return reason

    def metric(self, name: str, **labels: str) -> float | None:
        """Give the value of a metric."""
        return self.metrics.registry.get_sample_value(name, labels)


def fault(
    node: SimulatedNode, gpu: int, call: str, name: str, *, times: int = 0, hang: float = 0
) -> None:
    """Let an NVML call hang, then answer the error of that name; without name go on as usual."""
    node.state.fault(gpu, call, error_number(name) if name else 0, times=times, hang=hang)


MakeWatch = Callable[..., Watch]


@pytest.fixture
def watch() -> Iterator[MakeWatch]:
    """Start discoveries: `watch(node.root, poll_seconds=0.1)`; all are stopped afterwards."""
    started: list[Watch] = []

    def start(root: Path, **settings: Any) -> Watch:
        started.append(Watch(root, **settings))
        return started[-1]

    yield start
    for each in started:
        each.discovery.stop()
