"""Times of calls: one at a time, and many at once."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from dra_driver.cli.bench.figures import Figure, distribution
from dra_driver.cli.bench.floor import floor
from dra_driver.cli.bench.target import Target
from dra_driver.model import ClaimRef

PREPARE: Final = "prepare"
AGAIN: Final = "prepare again"
UNPREPARE: Final = "unprepare"
DAEMON: Final = "floor: start of an MPS daemon"
BEYOND: Final = "prepare beyond that start"
_FILLERS: Final = 4  # live claims that are prepared at once

_Samples = dict[str, list[float]]


@contextmanager
def live_claims(target: Target) -> Iterator[Callable[[int], None]]:
    """Yield a function that raises the number of live claims; all are taken back afterwards.

    Each is a prepared claim like any other, with a record and a CDI file. Where there are more of
    them than devices they have admin access, so that they take nothing from anybody.
    """
    live: list[ClaimRef] = []
    names = target.offer.for_live()

    def raise_to(number: int) -> None:
        before = len(live)
        while len(live) < number:
            target.check()
            live.append(target.claims.create(next(names), admin=target.offer.admin))
        _all(target.prepare, live[before:], _FILLERS, target.check)

    try:
        yield raise_to
    finally:
        try:
            _all(target.unprepare, live, _FILLERS, _never)
        finally:
            for ref in live:
                target.claims.delete(ref)


def one_at_a_time(target: Target, rounds: int, live: int, disk: Path) -> list[Figure]:
    """Prepare, prepare again and unprepare one device after the other, the floor between.

    With MPS and no live claims each Prepare starts a daemon: what that takes by itself is measured
    before it. With live claims each joins a daemon that runs.
    """
    samples: _Samples = {PREPARE: [], AGAIN: [], UNPREPARE: []}
    daemons = None if live else target.start_daemon
    if daemons is not None:
        samples |= {DAEMON: [], BEYOND: []}
    devices = list(islice(cycle(target.offer.measured), rounds))
    with floor(target, disk) as ground, target.claims.made(devices) as refs:
        for ref in refs:
            target.check()
            ground.sample()
            if daemons is not None:
                samples[DAEMON].append(daemons())
            try:
                samples[PREPARE].append(target.prepare(ref))
                samples[AGAIN].append(target.prepare(ref))
            finally:
                samples[UNPREPARE].append(target.unprepare(ref))
    if daemons is not None:
        pairs = zip(samples[PREPARE], samples[DAEMON], strict=True)
        samples[BEYOND] = [prepare - daemon for prepare, daemon in pairs]
    return [*_figures(samples, live, 1), *ground.figures(live)]


def at_once(target: Target, waves: int, width: int, live: int) -> list[Figure]:
    """Do the same in waves of `width` calls at once.

    Where there are fewer devices than that, the further claims have admin access, or there are
    fewer calls at once.
    """
    samples: _Samples = {PREPARE: [], AGAIN: [], UNPREPARE: []}
    own, shared = target.offer.at_once(width)
    width = len(own) + len(shared)
    for _ in range(waves):
        with (
            target.claims.made(own) as one,
            target.claims.made(shared, admin=target.offer.admin) as other,
        ):
            refs = [*one, *other]
            try:
                samples[PREPARE] += _all(target.prepare, refs, width, target.check)
                samples[AGAIN] += _all(target.prepare, refs, width, target.check)
            finally:
                samples[UNPREPARE] += _all(target.unprepare, refs, width, _never)
    return _figures(samples, live, width)


def _all(
    call: Callable[[ClaimRef], float],
    refs: Sequence[ClaimRef],
    width: int,
    check: Callable[[], None],
) -> list[float]:
    """Make the call for all claims, `width` at a time; raises after the last when one failed."""

    def checked(ref: ClaimRef) -> float:
        check()
        return call(ref)

    with ThreadPoolExecutor(width) as threads:
        return list(threads.map(checked, refs))


def _figures(samples: _Samples, live: int, width: int) -> list[Figure]:
    return [
        distribution(name, "ms", [1000 * second for second in seconds], live=live, at_once=width)
        for name, seconds in samples.items()
    ]


def _never() -> None:
    """Clean up whatever has been asked."""
