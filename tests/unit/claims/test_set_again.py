"""How claims share devices is set again for those that live, and for no other."""

from pathlib import Path

import pytest

from dra_driver.state import ClaimRecord
from tests.support.engine import EngineBed
from tests.support.inventories import gpu, inventory


class Sharing:
    """Step `sharing` that notes for whom it sets things again."""

    name = "sharing"

    def __init__(self, bed: EngineBed) -> None:
        self.bed = bed
        self.again: list[str] = []

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        return record

    def undo(self, record: ClaimRecord) -> None:
        self.bed.engine.set_again()  # the janitor comes by at this very moment

    def assert_again(self, records: object, undisturbed: object) -> None:
        for record in records:  # type: ignore[attr-defined]
            with undisturbed(record) as is_live:  # type: ignore[operator]
                if is_live:
                    self.again.append(record.name)


@pytest.fixture
def bed(tmp_path: Path) -> EngineBed:
    bed = EngineBed(tmp_path, inventory(gpu(0), gpu(1)))
    bed.sharing = Sharing(bed)  # type: ignore[assignment]
    return bed.start()


def test_a_claim_that_is_being_unprepared_is_left_alone(bed: EngineBed) -> None:
    going, staying = bed.claim("going", "gpu-0"), bed.claim("staying", "gpu-1")
    bed.prepare(going)
    bed.prepare(staying)
    bed.engine.set_again()
    bed.unprepare(going)
    bed.engine.set_again()
    found = bed.sharing
    assert isinstance(found, Sharing)
    assert found.again == ["going", "staying", "staying", "staying"]


def test_a_claim_that_ended_meanwhile_is_not_set_again(bed: EngineBed) -> None:
    ref = bed.claim("ended", "gpu-0")
    bed.prepare(ref)
    (record,) = bed.records.all()
    bed.unprepare(ref)
    with bed.engine._undisturbed(record) as is_live:
        assert not is_live


def test_devices_that_a_claim_has_given_back_are_not_set_again(bed: EngineBed) -> None:
    """The claim was allocated anew under its UID after the janitor had read its record."""
    bed.prepare(bed.claim("moved", "gpu-0"))
    (before,) = bed.records.all()
    bed.prepare(bed.claim("moved", "gpu-1"))
    (now,) = bed.records.all()
    assert (before.uid, before.phase) == (now.uid, now.phase)
    with bed.engine._undisturbed(before) as is_live:
        assert not is_live
    with bed.engine._undisturbed(now) as is_live:
        assert is_live
