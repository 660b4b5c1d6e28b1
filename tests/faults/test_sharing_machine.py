"""Claims that share GPUs in whatever order: what is set is what live claims want, and no more.

In CI (`CI=1`) the seed is fixed and 1,000 steps are made.
"""

import os
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.sharing_machine import SharingMachine

_EXAMPLES, _STEPS = (25, 40) if "CI" in os.environ else (int(os.environ.get("N", "5")), 40)


@pytest.fixture
def _no_pods() -> Iterator[None]:
    """Let the kubelet list no Pods."""
    with mock.patch("dra_driver.claims.janitor.claims_in_use", return_value={}):
        yield


@pytest.mark.timeout(600)  # a failure is made as short as can be, for up to five minutes
@pytest.mark.usefixtures("fast_machine", "_no_pods")
def test_what_is_set_is_what_live_claims_want() -> None:
    run_state_machine_as_test(
        SharingMachine, settings=settings(max_examples=_EXAMPLES, stateful_step_count=_STEPS)
    )
