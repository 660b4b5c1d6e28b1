"""Whatever happens in whatever order, the promises hold: nothing twice, nothing left, no silence.

In CI (`CI=1`) the seed is fixed and 10,000 steps are made.
"""

import os
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.machine import ClaimsMachine

_IN_CI = "CI" in os.environ
_EXAMPLES, _STEPS = (200, 50) if _IN_CI else (20, 50)


@pytest.fixture
def _fast_disk() -> Iterator[None]:
    """Do not wait for the disk: power cuts are not played here."""
    with mock.patch("dra_driver.host.files.os.fsync"):
        yield


# A failure is made as short as can be, for up to five minutes. A timeout within that time would be
# told as FlakyStrategyDefinition, in place of what failed.
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_fast_disk")
def test_the_promises_hold_whatever_happens() -> None:
    run_state_machine_as_test(
        ClaimsMachine, settings=settings(max_examples=_EXAMPLES, stateful_step_count=_STEPS)
    )
