"""Partitions that come and go in whatever order: none overlaps, none is left, none of others goes.

In CI (`CI=1`) the seed is fixed and 4,000 steps are made.
"""

import os

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.partition_machine import PartitionMachine

_EXAMPLES, _STEPS = (80, 50) if "CI" in os.environ else (int(os.environ.get("N", "10")), 50)


@pytest.mark.timeout(600)  # a failure is made as short as can be, for up to five minutes
@pytest.mark.usefixtures("fast_machine")
def test_partitions_are_where_claims_have_them_and_nowhere_else() -> None:
    run_state_machine_as_test(
        PartitionMachine, settings=settings(max_examples=_EXAMPLES, stateful_step_count=_STEPS)
    )
