"""What calls cause elsewhere, and what the driver costs while nobody calls it."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Final

from dra_driver.cli.bench.figures import Figure
from dra_driver.cli.bench.process import usage
from dra_driver.cli.bench.rounds import AGAIN, PREPARE, UNPREPARE
from dra_driver.cli.bench.target import Counts, Target
from dra_driver.model import ClaimRef

_REPEATS: Final = 5  # of which the best is free of what the driver does by itself meanwhile
_WORDS: Final = {
    "api_requests": "API requests",
    "api_writes": "API writes",
    "nvml_calls": "NVML calls",
    "fsyncs": "fsyncs",
    "programs": "programs run",
}
_CPU: Final = "CPU"
_CHECK_SECONDS: Final = 0.2


def per_claim(target: Target, live: int) -> list[Figure]:
    """Count what each call causes."""
    seen: dict[str, list[float]] = {}
    for _ in range(_REPEATS):
        with target.claims.made(target.offer.measured) as refs:
            try:
                _count(target, seen, PREPARE, target.prepare, refs)
                _count(target, seen, AGAIN, target.prepare, refs)
            finally:
                _count(target, seen, UNPREPARE, target.unprepare, refs)
    return [
        Figure(name, _unit(name), len(values), _typical(name, values), live=live)
        for name, values in seen.items()
    ]


def idle(target: Target, seconds: float, live: int) -> list[Figure]:
    """Watch the driver for so long while nothing happens."""
    counts, used = target.counts(), _cpu(target)
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        target.check()
        time.sleep(min(_CHECK_SECONDS, seconds - passed))
    after, used_after = target.counts(), _cpu(target)
    figures = [
        Figure(f"{_WORDS[field]} when idle", "", 1, number, live=live)
        for field, number in _differences(counts, after)
    ]
    if used is not None and used_after is not None:
        share = 100 * (used_after - used) / (time.monotonic() - begin)
        figures.append(Figure(f"{_CPU} when idle", "%", 1, share, live=live))
    return figures


def footprint(target: Target, live: int) -> list[Figure]:
    """Look at the process."""
    found = None if target.pid is None else usage(target.pid)
    if found is None:
        return []
    return [
        Figure("memory", "MB", 1, found.resident_mb, live=live),
        Figure("peak memory", "MB", 1, found.peak_mb, live=live),
        Figure("threads", "", 1, found.threads, live=live),
        Figure("open files", "", 1, found.files, live=live),
    ]


def _typical(name: str, values: list[float]) -> float:
    """Choose the least of what is counted, since what the driver does by itself only adds to it."""
    return statistics.median(values) if name.startswith(_CPU) else min(values)


def _unit(name: str) -> str:
    return "ms" if name.startswith(_CPU) else ""


def _count(
    target: Target,
    seen: dict[str, list[float]],
    operation: str,
    call: Callable[[ClaimRef], float],
    refs: list[ClaimRef],
) -> None:
    before = target.counts()
    used = _cpu(target)
    for ref in refs:
        call(ref)
    used_after = _cpu(target)
    for field, number in _differences(before, target.counts()):
        seen.setdefault(f"{_WORDS[field]} per {operation}", []).append(number / len(refs))
    if used is not None and used_after is not None:
        milliseconds = 1000 * (used_after - used) / len(refs)
        seen.setdefault(f"{_CPU} per {operation}", []).append(milliseconds)


def _differences(before: Counts, after: Counts) -> Iterator[tuple[str, int]]:
    for field in fields(Counts):
        begin, end = getattr(before, field.name), getattr(after, field.name)
        if begin is not None and end is not None:
            yield field.name, end - begin


def _cpu(target: Target) -> float | None:
    found = None if target.pid is None else usage(target.pid)
    return None if found is None else found.cpu_seconds
