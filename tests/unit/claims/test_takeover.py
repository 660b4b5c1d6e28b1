"""When the other driver's claims become ours, and what happens before."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.model import ClaimRef
from dra_driver.model.errors import Bug, DeviceInUse, DriverNotReady, RecordDamaged
from dra_driver.telemetry import Event
from tests.support.engine import EngineBed
from tests.support.inventories import gpu, inventory
from tests.support.predecessor import PriorDriver
from tests.support.predecessor import gpu as prior_gpu

ONE = ClaimRef("default", "one", "11111111-5f4c-4a2e-9d35-3f6d5e0f7a11")
TWO = ClaimRef("default", "two", "22222222-5f4c-4a2e-9d35-3f6d5e0f7a22")


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        bed = EngineBed(Path(folder))
        prior = PriorDriver(bed.settings.data_folder, bed.settings.cdi_root)
        prior.complete(ONE, prior_gpu("gpu-0", gpu(0).uuid))
        prior.complete(TWO, prior_gpu("gpu-1", gpu(1).uuid))
        prior.write()
        yield bed


def look(bed: EngineBed) -> None:
    """Let the first snapshot come."""
    found = inventory(gpu(0), gpu(1), gpu(2))
    bed.engine.take_over(found)
    bed.hardware.inventory = found


def checkpoint(bed: EngineBed) -> Path:
    return bed.settings.data_folder / "checkpoint.json"


def test_nothing_is_given_out_before(bed: EngineBed) -> None:
    bed.start()
    bed.hardware.inventory = inventory(gpu(0), gpu(1), gpu(2))
    late = bed.claim("late", "gpu-2")
    with pytest.raises(DriverNotReady, match="are not taken over yet"):
        bed.prepare(late)
    look(bed)
    assert bed.prepare(late).devices[0].device == "gpu-2"
    with pytest.raises(DeviceInUse, match=f"held by claim UID {ONE.uid}"):
        bed.prepare(bed.claim("later", "gpu-0"))


def test_another_instance_that_comes_later_brings_no_claim_back(bed: EngineBed) -> None:
    first, second = bed.start().engine, bed.start().engine
    found = inventory(gpu(0), gpu(1))
    first.take_over(found)
    assert first.unprepare([ONE], lambda: False) == {ONE.uid: None}
    second.take_over(found)
    assert [record.uid for record in second.records.all()] == [TWO.uid]


def without_gpu_driver(bed: EngineBed) -> None:
    devices = bed.settings.host_root / "proc/devices"
    devices.parent.mkdir(parents=True, exist_ok=True)
    devices.write_text("Character devices:\n  1 mem\n")


def uids(bed: EngineBed) -> list[str]:
    return [record.uid for record in bed.records.all()]


def test_unprepare_needs_no_gpu_driver(bed: EngineBed) -> None:
    """A node whose GPU driver is not loaded gets rid of its Pods (field report B32)."""
    without_gpu_driver(bed)
    bed.start()
    bed.unprepare(ONE)
    look(bed)
    assert uids(bed) == [TWO.uid]


@pytest.mark.parametrize("is_restart", [True, False])
def test_what_has_ended_before_comes_back_in_no_other_process(
    bed: EngineBed, *, is_restart: bool
) -> None:
    """Nobody would ever unprepare it again, and no new claim would get its device."""
    without_gpu_driver(bed)
    older = bed.start().engine
    if is_restart:
        bed.unprepare(ONE, ONE)
        bed.start()
    else:
        bed.start()  # beside the older one
        older.unprepare([ONE], lambda: False)
    look(bed)
    assert uids(bed) == [TWO.uid]
    assert len(bed.prepare(bed.claim("late", "gpu-0")).devices) == 1
    assert not list(bed.settings.data_folder.glob("take-over.e*"))


def test_what_has_ended_is_told_of_one_checkpoint_only(bed: EngineBed) -> None:
    """The other driver has come back and has prepared the claim once more."""
    without_gpu_driver(bed)
    bed.start()
    bed.unprepare(ONE)
    checkpoint(bed).write_text(checkpoint(bed).read_text() + "\n")
    look(bed)
    assert uids(bed) == [ONE.uid, TWO.uid]


def test_a_claim_ends_though_it_cannot_be_noted(bed: EngineBed) -> None:
    without_gpu_driver(bed)
    bed.start()
    note = bed.settings.data_folder / "take-over.ended"
    note.mkdir()
    bed.unprepare(ONE)
    note.rmdir()
    look(bed)
    assert uids(bed) == [TWO.uid]


def test_unprepare_waits_while_the_gpu_driver_is_there(bed: EngineBed) -> None:
    bed.start()
    with pytest.raises(DriverNotReady):
        bed.unprepare(ONE)
    bed.unprepare(bed.claim("never-seen", "gpu-0"))
    look(bed)
    bed.unprepare(ONE, TWO)
    assert bed.claim_files() == set()


def test_what_fails_is_tried_again(bed: EngineBed) -> None:
    bed.start()
    where = checkpoint(bed).with_name("checkpoint.json.taken-over")
    where.mkdir()
    look(bed)
    assert checkpoint(bed).exists()
    with pytest.raises(DriverNotReady, match=r"cannot write .*taken-over"):
        bed.prepare(bed.claim("late", "gpu-2"))
    where.rmdir()
    look(bed)
    assert where.is_file()
    assert len(bed.prepare(bed.claim("late", "gpu-2")).devices) == 1


def test_a_claim_that_cannot_be_read_may_have_anything(bed: EngineBed) -> None:
    text = checkpoint(bed).read_text()
    checkpoint(bed).write_text(text.replace(f'"{gpu(0).uuid}"', "7"))
    bed.start()
    look(bed)
    assert f"damaged {ONE.uid}" in bed.claim_files()
    with pytest.raises(RecordDamaged, match=ONE.uid):
        bed.prepare(bed.claim("late", "gpu-2"))
    bed.unprepare(ONE)
    assert len(bed.prepare(bed.claim("late", "gpu-2")).devices) == 1
    bed.unprepare(TWO)


NO_TEXT = "\ud800"  # JSON can hold it, a record can't: nothing checks it, so this driver fails


def test_a_claim_on_which_this_driver_fails_keeps_no_other(bed: EngineBed) -> None:
    content = json.loads(checkpoint(bed).read_text())
    (result,) = content["v2"]["preparedClaims"][ONE.uid]["status"]["allocation"]["devices"][
        "results"
    ]
    result["request"] = NO_TEXT
    checkpoint(bed).write_text(json.dumps(content))
    bed.start()
    look(bed)
    assert bed.engine.not_taken_over() == ""
    assert uids(bed) == [TWO.uid]
    (told,) = [event.message for event in events(bed) if event.reason == "RecordDamaged"]
    assert ONE.uid in told
    assert "please report it" in told
    with pytest.raises(RecordDamaged, match=ONE.uid):
        bed.prepare(bed.claim("late", "gpu-2"))
    bed.unprepare(ONE, TWO)
    assert len(bed.prepare(bed.claim("late", "gpu-2")).devices) == 1


def test_one_that_was_only_begun_holds_nothing_then(bed: EngineBed) -> None:
    prior = PriorDriver(bed.settings.data_folder, bed.settings.cdi_root)
    prior.begin(ONE, f"gpu-0-mig-1g10gb-{'9' * 5000}-0")
    prior.write()
    bed.start()
    look(bed)
    assert bed.engine.not_taken_over() == ""
    assert any(event.reason == "LeftBehind" and ONE.uid in event.message for event in events(bed))
    assert len(bed.prepare(bed.claim("late", "gpu-0")).devices) == 1


def test_a_fault_of_this_driver_is_told_once_and_over_when_its_cause_is(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then no device is given out, and Pods can end all the same."""
    bed.start()
    with monkeypatch.context() as patch:
        patch.setattr("dra_driver.claims.takeover.read_checkpoint", lambda _: 1 // 0)
        look(bed)
        look(bed)
        with pytest.raises(Bug, match=r"ZeroDivisionError.*please report it"):
            bed.prepare(bed.claim("late", "gpu-2"))
        assert "ZeroDivisionError" in bed.engine.not_taken_over()
        bed.unprepare(ONE)
    told = [line for line in caplog.records if "taken over yet" in line.getMessage()]
    assert [line.exc_info is not None for line in told] == [True]
    assert [event.reason for event in events(bed) if event.claim is None] == ["Bug"]
    look(bed)
    assert bed.engine.not_taken_over() == ""
    assert uids(bed) == [TWO.uid]
    assert len(bed.prepare(bed.claim("late", "gpu-2")).devices) == 1


def test_a_checkpoint_that_a_person_has_moved_away_keeps_nobody_waiting(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.claims.takeover.read_checkpoint", lambda _: 1 // 0)
    bed.start()
    look(bed)
    bed.unprepare(ONE, TWO)
    checkpoint(bed).unlink()
    look(bed)
    assert bed.engine.not_taken_over() == ""
    late = bed.claim("late", "gpu-0")
    assert len(bed.prepare(late).devices) == 1
    bed.unprepare(late)
    assert {Path(name).name for name in bed.leftovers()} == {"nvidia-cdi-hook"}


def events(bed: EngineBed) -> list[Event]:
    """Take all Events that wait."""
    return list(iter(lambda: bed.events.take(0), None))


def test_a_checkpoint_that_is_no_file_stops_no_start(bed: EngineBed) -> None:
    """A plugin that ends tells nothing at /readyz, and unprepares nothing."""
    content = checkpoint(bed).read_bytes()
    checkpoint(bed).unlink()
    checkpoint(bed).mkdir()
    bed.start()
    look(bed)
    assert "cannot read" in bed.engine.not_taken_over()
    with pytest.raises(DriverNotReady, match=r"cannot read .*checkpoint\.json"):
        bed.prepare(bed.claim("late", "gpu-2"))
    with pytest.raises(DriverNotReady):
        bed.unprepare(ONE)
    checkpoint(bed).rmdir()
    checkpoint(bed).write_bytes(content)
    look(bed)
    assert bed.engine.not_taken_over() == ""
    assert uids(bed) == [ONE.uid, TWO.uid]


def test_a_record_that_cannot_be_read_is_waited_for(bed: EngineBed) -> None:
    """Nothing says that it is this claim's, whose device would be free when it is gone."""
    bed.start()
    record = bed.records_folder / f"{ONE.uid}.json"
    record.mkdir()
    look(bed)
    assert "cannot read" in bed.engine.not_taken_over()
    record.rmdir()
    look(bed)
    assert uids(bed) == [ONE.uid, TWO.uid]
