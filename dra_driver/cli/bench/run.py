"""The order of the measurement."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dra_driver.cli.bench import costs, rounds
from dra_driver.cli.bench.embedded import embedded
from dra_driver.cli.bench.figures import Figure, Result, distribution
from dra_driver.cli.bench.offer import Offer
from dra_driver.cli.bench.sharing import Wish
from dra_driver.cli.bench.target import Target
from dra_driver.cli.interrupt import Check

START: Final = "start to complete slices"
_START_CPU: Final = "CPU to complete slices"
_SETTLE_SECONDS: Final = 1.0  # after the start, before memory is looked at

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    live: tuple[int, ...] = ()  # numbers of live claims; none: the usual ones
    usual: tuple[int, ...] = (0, 100, 400)
    rounds: int = 100  # claims one at a time, for each number of live claims
    waves: int = 10  # of claims at once
    width: int = 16
    starts: int = 5
    idle_seconds: float = 31.0  # longer than the time between two looks at the hardware
    warm_up: int = 10

    def numbers(self, offer: Offer) -> tuple[int, ...]:
        """Numbers of live claims; of partitions, which none may share, as many as there are.

        Raises SettingInvalid when more are wanted.
        """
        if self.live:
            offer.check_live(self.live)
            return self.live
        if offer.shared:
            return self.usual
        most = min(max(self.usual), len(offer.live))
        return (0, most) if most else (0,)


def run_embedded(
    plan: Plan, gpus: int, wish: Wish, namespace: str, check: Check, say: Say
) -> Result:
    """Measure this driver on a simulated node. Raises DriverError, CallFailed."""
    begin = time.monotonic()
    with embedded(check, gpus, wish) as ground:
        first = ground.start()
        with ground.target(namespace) as target:
            time.sleep(_SETTLE_SECONDS)
            figures = measure(plan, target, ground.disk, say)
        say("start to complete slices")
        starts = [first, *(ground.start_again() for _ in range(1, plan.starts))]
        about = {"target": ground.words, "gpus": ground.gpus}
    return _result(about | _words(plan, target), [*_start_figures(starts), *figures], begin)


def run_on(plan: Plan, target: Target, disk: Path, say: Say) -> Result:
    """Measure a driver that runs already. Raises DriverError, CallFailed."""
    begin = time.monotonic()
    figures = measure(plan, target, disk, say)
    return _result({"target": "a driver's socket"} | _words(plan, target), figures, begin)


def measure(plan: Plan, target: Target, disk: Path, say: Say) -> list[Figure]:
    """Measure all that needs only a running driver."""
    figures: list[Figure] = []
    numbers = plan.numbers(target.offer)
    with rounds.live_claims(target) as raise_to:
        figures += costs.footprint(target, 0)
        for live in numbers:
            say(f"{live} live claims")
            raise_to(live)
            rounds.one_at_a_time(target, plan.warm_up, live, disk)
            figures += rounds.one_at_a_time(target, plan.rounds, live, disk)
            figures += rounds.at_once(target, plan.waves, plan.width, live)
            figures += costs.per_claim(target, live)
            if live:
                figures += costs.footprint(target, live)
        say(f"idle for {plan.idle_seconds:g} s")
        figures += costs.idle(target, plan.idle_seconds, numbers[-1])
        say("taking the live claims back")
    return figures


def _start_figures(starts: Sequence[tuple[float, float]]) -> list[Figure]:
    """Give wall and CPU seconds of the starts as figures."""
    walls, cpus = zip(*starts, strict=True)
    return [distribution(START, "s", walls), distribution(_START_CPU, "s", cpus)]


def _words(plan: Plan, target: Target) -> dict[str, Any]:
    offer = target.offer
    own, shared = offer.at_once(plan.width)
    if offer.by_shares:
        own, shared, live, alone = (*own, *shared), (), "with shares of the same devices", ""
    else:
        live = "with admin access, spread over the devices" if offer.shared else "on the other GPUs"
        alone = ", which no other claim holds"
    further = f", {len(shared)} with admin access" if shared else ""
    return {
        "driver": target.place.driver,
        "node": target.place.node,
        "devices": len(offer.measured),
        "measuredClaims": f"{offer.what} each{alone}",
        "liveClaims": f"prepared claims {live}",
        "claimsAtOnce": f"{len(own)} with {offer.what}{further}",
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
