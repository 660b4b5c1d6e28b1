"""When the other driver's claims become ours, and what happens before."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.model import ClaimRef
from dra_driver.model.errors import DeviceInUse, DriverNotReady, RecordDamaged, StorageFailed
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


def test_unprepare_needs_no_gpu_driver(bed: EngineBed) -> None:
    """A node whose GPU driver is not loaded gets rid of its Pods (field report B32)."""
    devices = bed.settings.host_root / "proc/devices"
    devices.parent.mkdir(parents=True, exist_ok=True)
    devices.write_text("Character devices:\n  1 mem\n")
    bed.start()
    bed.unprepare(ONE)
    look(bed)
    assert [record.uid for record in bed.records.all()] == [TWO.uid]


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


def test_a_checkpoint_that_is_no_file_stops_the_start(bed: EngineBed) -> None:
    checkpoint(bed).unlink()
    checkpoint(bed).mkdir()
    with pytest.raises(StorageFailed, match=r"cannot read .*checkpoint\.json"):
        bed.start()
