"""When the engine has the hardware looked at again, since a configuration waits or came at once."""

from pathlib import Path

import pytest

from dra_driver.model import AllocatedDevice, GpuPolicy, Inventory, SharesMode, SharesPolicy
from dra_driver.state import ClaimRecord
from tests.support.engine import NODE, EngineBed
from tests.support.inventories import gpu, inventory

FOUR = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4))
SHARE = AllocatedDevice("r", NODE, "gpu-0", share_id="s")


@pytest.fixture
def bed(tmp_path: Path) -> EngineBed:
    return EngineBed(tmp_path, inventory(gpu(0, policy=FOUR), gpu(1))).start()


def test_the_end_of_a_claim_is_looked_at_where_something_waits_for_it(bed: EngineBed) -> None:
    refs = bed.claim("share", SHARE), bed.claim("other", "gpu-1")
    for ref in refs:
        bed.prepare(ref)
    bed.hardware.inventory = inventory(gpu(0, policy=FOUR, waits="shares: wait"), gpu(1))
    bed.unprepare(refs[1])
    assert bed.hardware.looks == 0
    bed.unprepare(refs[0])
    assert bed.hardware.looks == 1


def test_a_configuration_that_comes_with_a_share_is_looked_at_again(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, now = bed.claim("share", SHARE), inventory(gpu(0), gpu(1))

    def overtaken(record: ClaimRecord, now: Inventory = now) -> ClaimRecord:
        bed.hardware.inventory = now
        return record

    bed.prepare(ref)
    bed.unprepare(ref)
    assert bed.hardware.looks == 0
    monkeypatch.setattr(bed.sharing, "apply", overtaken)
    bed.prepare(ref)
    assert bed.hardware.looks == 1
    bed.prepare(ref)
    assert bed.hardware.looks == 1, "it was looked at"
