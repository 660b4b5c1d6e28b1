"""When a change of a layout is tried again."""

import pytest

from dra_driver.claims import layout_tries
from dra_driver.claims.layout_plan import Obstacles, Target
from dra_driver.claims.layout_tries import Tries
from dra_driver.model import ClaimRef
from dra_driver.model.errors import HardwareBusy, HardwareFailed
from dra_driver.state import Holding

GPU = "GPU-1"
ONE = Target("one", mig_enabled=True, slots=())
OTHER = Target("other", mig_enabled=True, slots=())
HELD = [Holding(ClaimRef("a", "b", "uid"), "gpu-0", GPU, None, None, admin_access=False)]
PEOPLE = Obstacles(("claim a/b", "python3 (PID 7)"))


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(layout_tries, "time", made)
    return made


def test_failures_are_tried_again_later_each_time(clock: Clock) -> None:
    tries = Tries()
    pauses = []
    for _ in range(8):
        tries.failed(GPU, ONE, HardwareBusy("in use"))
        begin = clock.now
        while tries.known(GPU, ONE, []) is not None:
            clock.now += 0.5
        pauses.append(clock.now - begin)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    tries.failed(GPU, ONE, HardwareBusy("in use"))
    assert tries.known(GPU, OTHER, []) is None, "another change has not failed"
    assert not tries.is_hopeless(GPU, ONE)
    tries.failed(GPU, OTHER, HardwareFailed("broken"))
    assert tries.is_hopeless(GPU, OTHER)
    assert not tries.is_hopeless(GPU, ONE)
    clock.now += 2
    assert tries.known(GPU, OTHER, []) is None, "its first pause is short again"


def test_while_the_same_claims_are_in_the_way_the_hardware_is_not_asked(clock: Clock) -> None:
    tries = Tries()
    tries.waits(GPU, ONE, HELD, PEOPLE)
    assert tries.known(GPU, ONE, HELD) == PEOPLE
    assert tries.known(GPU, ONE, []) is None
    assert tries.known(GPU, OTHER, HELD) is None
    clock.now += 30
    assert tries.known(GPU, ONE, HELD) is None
    tries.waits(GPU, ONE, [], PEOPLE)
    assert tries.known(GPU, ONE, []) is None, "only the hardware tells of processes"


def test_what_is_gone_is_forgotten(clock: Clock) -> None:
    tries = Tries()
    tries.waits(GPU, ONE, HELD, PEOPLE)
    tries.failed("GPU-2", ONE, HardwareBusy("x"))
    tries.keep_only({GPU})
    assert len(tries) == 1
    tries.forget(GPU)
    tries.forget(GPU)
    assert not tries
