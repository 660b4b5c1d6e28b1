"""The health of a simulated node's devices, with what it tells kept for tests."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.health import Hardware
from dra_driver.model import Health, HealthState, Inventory
from dra_driver.telemetry import Event, EventQueue, Metrics

PATIENCE = 60.0  # seconds; what a test waits for comes in a small part of it or is broken
HEALTHY, UNHEALTHY, UNKNOWN = HealthState.HEALTHY, HealthState.UNHEALTHY, HealthState.UNKNOWN


class Ward:
    """A running Hardware and every snapshot that it told."""

    def __init__(self, root: Path, *, poll_seconds: float = 3600.0, **settings: Any) -> None:
        """Begin to look and listen at the node below `root`, and wait for the first snapshot."""
        self.told: list[Inventory] = []
        self.metrics = Metrics()
        self._events = EventQueue()
        self._news = threading.Condition()
        self.hardware = Hardware(
            Settings(
                node_name="node-a",
                driver_root=root,
                container_driver_root=root,
                host_root=root,
                poll_seconds=poll_seconds,
                **settings,
            ),
            self.metrics,
            self._events,
            self._keep,
        )
        self.hardware.start()
        self.until(lambda inventory: bool(inventory.gpus), "the first snapshot")

    def _keep(self, inventory: Inventory) -> None:
        with self._news:
            self.told.append(inventory)
            self._news.notify_all()

    def until(self, condition: Callable[[Inventory], bool], what: str) -> float:
        """Wait until a told snapshot fulfils the condition; gives the seconds that took."""
        begun = time.monotonic()
        with self._news:
            came = self._news.wait_for(lambda: self.told and condition(self.told[-1]), PATIENCE)
            assert came, f"{what}: last told {self.health() if self.told else None}"
        took = time.monotonic() - begun
        print(f"{what}: {took:.3f} s")
        return took

    def until_health(self, **wanted: HealthState) -> float:
        """Wait until devices are so: `until_health(gpu_0=UNHEALTHY)`, `_` for `-`."""
        states = {name.replace("_", "-"): state for name, state in wanted.items()}
        return self.until(
            lambda _: {name: self.health()[name].state for name in states} == states, f"{states}"
        )

    def health(self) -> dict[str, Health]:
        """Health of each device by name, as last told."""
        return {device.name: device.health for device in self.told[-1].devices()}

    def sick(self) -> set[str]:
        """Names of unhealthy devices, as last told."""
        return {name for name, health in self.health().items() if not health.usable}

    def look(self) -> Inventory:
        """Give the snapshot of a look that begins now."""
        return self.hardware.look(PATIENCE)

    def events(self) -> list[Event]:
        """Take the events that wait to be delivered."""
        found = []
        while (event := self._events.take(0)) is not None:
            found.append(event)
        return found

    def metric(self, name: str, **labels: str) -> float | None:
        """Give the value of a metric."""
        return self.metrics.registry.get_sample_value(name, labels)


MakeWard = Callable[..., Ward]


@pytest.fixture
def ward() -> Iterator[MakeWard]:
    """Start hardware: `ward(node.root, poll_seconds=0.2)`; all is stopped afterwards."""
    started: list[Ward] = []

    def start(root: Path, **settings: Any) -> Ward:
        started.append(Ward(root, **settings))
        return started[-1]

    yield start
    for each in started:
        each.hardware.stop()
