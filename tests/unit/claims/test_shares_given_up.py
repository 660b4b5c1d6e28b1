"""Claims that share a device and are given up at the same time: the last one knows that it is."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError

from dra_driver.model import AllocatedDevice
from dra_driver.state import ClaimRecord
from tests.support.engine import NODE, EngineBed, FakePartitions
from tests.support.inventories import gpu, inventory

_MEET_SECONDS = 1.0


class _Meeting(FakePartitions):
    """Looks who else has the device when both claims are being taken back, if they ever are."""

    def __init__(self) -> None:
        super().__init__()
        self.bed: EngineBed
        self.others: list[int] = []
        self._both = Barrier(2)

    def undo(self, record: ClaimRecord) -> None:
        held = self.bed.records.holdings()
        self.others.append(sum(each.claim.uid != record.uid for each in held))
        try:
            self._both.wait(_MEET_SECONDS)
        except BrokenBarrierError:
            return


def test_of_two_that_are_given_up_at_once_one_is_the_last(tmp_path: Path) -> None:
    bed = EngineBed(tmp_path, inventory(gpu(0)))
    bed.partitions = meeting = _Meeting()
    meeting.bed = bed.start()
    refs = [
        bed.claim(name, AllocatedDevice("main", NODE, "gpu-0", share_id=f"share-{name}"))
        for name in ("one", "two")
    ]
    for ref in refs:
        bed.prepare(ref)
    with ThreadPoolExecutor(len(refs)) as pool:
        list(pool.map(bed.unprepare, refs))
    assert sorted(meeting.others) == [0, 1]
    assert bed.claim_files() == set()
