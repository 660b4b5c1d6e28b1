"""Field reports about calls that come again, fail half way or come late, on the real process."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.claims.steps import STEPS
from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.faults.reports import (
    MADE,
    WITH_PARTITION,
    cdi_file,
    dynamic,
    partitions,
    prepare,
    record_file,
    refused,
    started,
    unprepare,
    while_dead,
)
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

# B18: Prepare is called again


def test_b18_a_repeated_prepare_changes_nothing(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("mine", "gpu-0")
    first = bed.kubelet.prepare(DRIVER, [claim])
    files = (record_file(bed, claim), cdi_file(bed, claim))
    before = [(path.stat().st_ino, path.read_bytes()) for path in files]
    for _ in range(2):
        assert bed.kubelet.prepare(DRIVER, [claim]) == first
    with while_dead(bed):
        pass
    assert bed.kubelet.prepare(DRIVER, [claim]) == first
    after = [(path.stat().st_ino, path.read_bytes()) for path in files]
    assert after == before, "its state never goes backwards"
    for _ in range(2):
        unprepare(bed, claim)
    assert bed.claim_files() == set()


def test_b18_many_pods_that_share_a_claim_start_at_once(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("shared", "gpu-0")
    with ThreadPoolExecutor(16) as pods:
        answers = list(pods.map(lambda _: bed.kubelet.prepare(DRIVER, [claim]), range(16)))
    assert all(answer == answers[0] for answer in answers)
    unprepare(bed, claim)
    assert bed.claim_files() == set()


# B20: what was begun is finished or taken back

SMALLER = "gpu-0-mig-1g10gb-19-0"
CHANGES = STEPS["prepare"][STEPS["prepare"].index("reserve") :]


@pytest.mark.parametrize("how", ["the CDI folder is a file", "a library is missing"])
def test_b20_a_prepare_that_failed_half_way_holds_nothing(make_bed: MakeBed, how: str) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve(*dynamic(bed))
    claim, other = bed.claim("mine", MADE), bed.claim("other", MADE)
    (library,) = bed.node.library.parent.glob("libcuda.so.[0-9]*.*")
    if how == "a library is missing":
        library.rename(library.with_name("gone"))
        assert refused(bed, claim) == "DriverFilesMissing"
        library.with_name("gone").rename(library)
    else:
        bed.cdi_folder.touch()
        assert refused(bed, claim) == "StorageFailed"
        bed.cdi_folder.unlink()
    assert (bed.claim_files(), partitions(bed)) == (set(), [])
    assert prepare(bed, other) == [MADE], "without waiting for an Unprepare of the first"
    unprepare(bed, other)
    assert prepare(bed, claim) == [MADE]


@pytest.mark.parametrize("then", ["unprepare", "prepare"])
@pytest.mark.parametrize("step", CHANGES)
def test_b20_a_prepare_that_died_after_any_step_is_finished_or_taken_back(
    make_bed: MakeBed, step: str, then: str
) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    options = dynamic(bed)
    plugin = bed.serve(*options, environment={"DRA_DRIVER_FAILPOINT": f"after-prepare:{step}"})
    claim, other = bed.claim("mine", MADE), bed.claim("other", MADE)
    with pytest.raises(CallFailed):
        prepare(bed, claim)
    assert plugin.wait() == -9
    assert record_file(bed, claim).exists(), "it died midway"
    bed.serve(*options)
    if then == "prepare":
        assert prepare(bed, claim) == [MADE]
        assert partitions(bed) == ["2g.20gb"]
    unprepare(bed, claim)
    assert (bed.claim_files(), partitions(bed)) == (set(), [])
    assert prepare(bed, other) == [MADE]


def test_b20_what_was_begun_for_another_allocation_is_taken_back(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    options = dynamic(bed)
    plugin = bed.serve(*options, environment={"DRA_DRIVER_FAILPOINT": "after-prepare:cdi"})
    claim, other = bed.claim("mine", MADE), bed.claim("other", MADE)
    with pytest.raises(CallFailed):
        prepare(bed, claim)
    assert plugin.wait() == -9
    found = bed.api.objects.get("resourceclaims", claim.name)
    (result,) = found["status"]["allocation"]["devices"]["results"]
    result["device"] = SMALLER
    bed.api.objects.replace("resourceclaims", found, part="status")
    bed.serve(*options)
    assert prepare(bed, claim) == [SMALLER]
    assert partitions(bed) == ["1g.10gb"]
    assert prepare(bed, other) == [MADE]


# B25: an old call goes on after Unprepare


def test_b25_a_retry_ends_with_its_call(make_bed: MakeBed) -> None:
    """The call waits for its next try without any lock when Unprepare comes."""
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    process = bed.serve()
    claim = bed.claim("mine", "gpu-0")
    bed.api.faults.fail("get", f"/{claim.name}$", status=503)
    given_up(bed, claim)
    unprepare(bed, claim)
    bed.api.faults.clear()
    eventually(lambda: process.lines("dra prepare ends"), "the old call ends")
    nothing_is_prepared(bed, claim)


def test_b25_a_read_that_hung_comes_to_nothing(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    process = bed.serve()
    claim = bed.claim("mine", "gpu-0")
    bed.api.faults.hang("get", f"/{claim.name}$", seconds=2, times=1)
    given_up(bed, claim)
    unprepare(bed, claim)
    eventually(lambda: process.lines("dra prepare ends"), "the old call ends")
    nothing_is_prepared(bed, claim)


def test_b25_hardware_that_blocked_goes_on_and_comes_to_nothing(make_bed: MakeBed) -> None:
    bed = make_bed(spec=WITH_PARTITION)
    bed.kubelet.start()
    process = bed.serve()
    bed.node.state.partition(1, "1g.10gb", 1)  # the driver has to look for it
    claim = bed.claim("mine", "gpu-1-mig-1g10gb-19-1")
    bed.fault("nvmlDeviceGetMigMode", hang=2)
    given_up(bed, claim)
    begin = time.monotonic()
    unprepare(bed, claim)
    print(f"unprepared after {time.monotonic() - begin:.2f} s")
    bed.node.state.clear()
    eventually(lambda: process.lines("dra prepare ends"), "the old call ends")
    nothing_is_prepared(bed, claim)


def given_up(bed: NodeBed, claim: ClaimRef) -> None:
    """Prepare, and lose patience."""
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        bed.kubelet.prepare(DRIVER, [claim], 0.5)


def nothing_is_prepared(bed: NodeBed, claim: ClaimRef) -> None:
    """Not even later, but for a new call."""
    assert [path for path in bed.folder.rglob("*") if claim.uid in path.name] == []
    prepare(bed, claim)
