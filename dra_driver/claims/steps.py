"""The named steps of Prepare and Unprepare, as data.

The engine passes through them in this order, metrics are labelled by them, and the fault matrix
(`tests/faults`) is generated from them: a step that has no cases there fails a test.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from dra_driver.host import failpoint, failpoints_of
from dra_driver.model.errors import Bug
from dra_driver.telemetry import Metrics

STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "prepare": ("read", "resolve", "reserve", "mig", "sharing", "cdi", "commit"),
    "unprepare": ("cdi", "sharing", "mig", "forget"),
}


class Steps:
    """Times steps, and is where a test can kill or halt the process before and after each."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, operation: str, step: str) -> Iterator[None]:
        """Run one step.

        Failpoints are `before-<operation>:<step>` and `after-…`, and those that it passes inside,
        such as `prepare:commit/before-rename`.
        """
        if step not in STEPS[operation]:
            raise Bug(f"{operation} has no step {step!r}")
        name = f"{operation}:{step}"
        failpoint(f"before-{name}")
        with failpoints_of(name), self._metrics.timed(operation, step):
            yield
        failpoint(f"after-{name}")
