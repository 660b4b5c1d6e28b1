"""How long Prepare goes on trying."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.model import ClaimRef, PreparedClaim
from dra_driver.model.errors import ApiUnavailable
from tests.support.engine import EngineBed
from tests.support.inventories import gpu, inventory

PATIENCE = 30.0


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        made = EngineBed(Path(folder), inventory(gpu(0), gpu(1)), retry_seconds=PATIENCE)
        yield made.start()


@pytest.fixture
def clock(bed: EngineBed, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def test_all_claims_of_a_call_share_one_patience(bed: EngineBed, clock: Clock) -> None:
    first, second = bed.claim("first", "gpu-0"), bed.claim("second", "gpu-1")
    began = clock.now
    slow = bed.api.get_claim

    def get_claim(ref: ClaimRef, timeout: float) -> object:
        if ref == second or clock.now - began < PATIENCE / 2:
            raise ApiUnavailable("away")
        return slow(ref, timeout)

    bed.api.get_claim = get_claim  # type: ignore[method-assign, assignment]
    answers = bed.engine.prepare([first, second], lambda: False)
    assert [str(answer) for answer in answers.values()] == ["away", "away"]
    assert PATIENCE / 2 < clock.now - began <= PATIENCE
    bed.api.get_claim = slow  # type: ignore[method-assign]
    answers = bed.engine.prepare([first, second], lambda: False)
    assert all(isinstance(answer, PreparedClaim) for answer in answers.values())
