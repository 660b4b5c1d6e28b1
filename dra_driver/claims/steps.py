"""The named steps of Prepare and Unprepare, as data.

The engine passes through them in this order, metrics are labelled by them, and the fault matrix
(`tests/faults`) is generated from them: a step that has no cases there fails a test.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from dra_driver.host import failpoint
from dra_driver.model.errors import Bug
from dra_driver.telemetry import Metrics

STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "prepare": ("read", "resolve", "reserve", "cdi", "commit"),
    "unprepare": ("cdi", "forget"),
}


class Steps:
    """Times steps, and is where a test can kill or halt the process before and after each."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, operation: str, step: str) -> Iterator[None]:
        """Run one step; failpoints are `before-<operation>:<step>` and `after-…`."""
        if step not in STEPS[operation]:
            raise Bug(f"{operation} has no step {step!r}")
        failpoint(f"before-{operation}:{step}")
        with self._metrics.timed(operation, step):
            yield
        failpoint(f"after-{operation}:{step}")
