"""The order of the measurement."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dra_driver.cli.bench import costs, rounds
from dra_driver.cli.bench.embedded import Embedded, embedded
from dra_driver.cli.bench.figures import Figure, Result, distribution
from dra_driver.cli.bench.target import Target
from dra_driver.cli.interrupt import Check

START: Final = "start to complete slices"
_START_CPU: Final = "CPU to complete slices"
_SETTLE_SECONDS: Final = 1.0  # after the start, before memory is looked at

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    live: tuple[int, ...] = (0, 100, 400)
    rounds: int = 100  # claims one at a time, for each number of live claims
    waves: int = 10  # of claims at once
    width: int = 16
    starts: int = 5
    idle_seconds: float = 31.0  # longer than the time between two looks at the hardware
    warm_up: int = 10


def run_embedded(plan: Plan, gpus: int, namespace: str, check: Check, say: Say) -> Result:
    """Measure this driver on a simulated node. Raises DriverError, CallFailed."""
    begin = time.monotonic()
    with embedded(check, gpus) as ground:
        say("start to complete slices")
        figures = list(_starts(plan, ground))
        with ground.target(namespace) as target:
            time.sleep(_SETTLE_SECONDS)
            figures += measure(plan, target, ground.disk, say)
        about = {"target": "this driver on a simulated node", "gpus": gpus}
    return _result(about | _words(plan, target), figures, begin)


def run_on(plan: Plan, target: Target, disk: Path, say: Say) -> Result:
    """Measure a driver that runs already. Raises DriverError, CallFailed."""
    begin = time.monotonic()
    figures = measure(plan, target, disk, say)
    return _result({"target": "a driver's socket"} | _words(plan, target), figures, begin)


def measure(plan: Plan, target: Target, disk: Path, say: Say) -> list[Figure]:
    """Measure all that needs only a running driver."""
    figures: list[Figure] = []
    with rounds.live_claims(target) as raise_to:
        figures += costs.footprint(target, 0)
        for live in plan.live:
            say(f"{live} live claims")
            raise_to(live)
            rounds.one_at_a_time(target, plan.warm_up, live, disk)
            figures += rounds.one_at_a_time(target, plan.rounds, live, disk)
            figures += rounds.at_once(target, plan.waves, plan.width, live)
            figures += costs.per_claim(target, live)
            if live:
                figures += costs.footprint(target, live)
        say(f"idle for {plan.idle_seconds:g} s")
        figures += costs.idle(target, plan.idle_seconds, plan.live[-1])
        say("taking the live claims back")
    return figures


def _starts(plan: Plan, ground: Embedded) -> Iterator[Figure]:
    """Start the driver several times; it runs on after the last."""
    walls: list[float] = []
    cpus: list[float] = []
    for number in range(plan.starts):
        if number:
            ground.stop()
        seconds, cpu = ground.start()
        walls.append(seconds)
        cpus.append(cpu)
    yield distribution(START, "s", walls)
    yield distribution(_START_CPU, "s", cpus)


def _words(plan: Plan, target: Target) -> dict[str, Any]:
    whole = min(plan.width, len(target.devices))
    return {
        "driver": target.place.driver,
        "node": target.place.node,
        "devices": len(target.devices),
        "measuredClaims": "one whole device each, which no other claim holds",
        "liveClaims": "prepared claims with admin access, spread over the devices",
        "claimsAtOnce": f"{whole} with a whole device, {plan.width - whole} with admin access",
    }


def _result(about: dict[str, Any], figures: list[Figure], begin: float) -> Result:
    machine = {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
    about |= {
        "version": importlib.metadata.version("gpu-dra-driver"),
        "time": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begin, 1),
        "machine": machine,
    }
    return Result(about, tuple(figures))
