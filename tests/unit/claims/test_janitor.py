"""What the janitor takes away, what it brings back, and what it leaves alone."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.cdi import CdiDevice
from dra_driver.host import RangeLock
from dra_driver.model import AllocatedDevice
from dra_driver.model.errors import ApiUnavailable, ClaimNotAllocated, DeviceInUse
from dra_driver.state import ClaimRecord
from tests.support.driver_tree import VERSION
from tests.support.engine import EngineBed
from tests.support.inventories import gpu, inventory, partition, partitioned
from tests.support.kubelet import eventually
from tests.support.pod_resources import PodResources, pod_resources


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:  # short: there are sockets in it
        yield EngineBed(Path(folder), inventory(gpu(0), gpu(1))).start()


@pytest.fixture
def kubelet(bed: EngineBed) -> Iterator[PodResources]:
    with pod_resources(bed.pod_resources) as service:
        yield service


def cdi_file(bed: EngineBed, uid: str) -> Path:
    (path,) = bed.settings.cdi_root.glob(f"*{uid}.json")
    return path


def test_a_claim_that_is_gone_and_in_no_container_is_unprepared(
    bed: EngineBed, kubelet: PodResources
) -> None:
    bed.prepare(bed.claim("gone", "gpu-0"))
    kept = bed.prepare(bed.claim("kept", "gpu-1"))
    del bed.api.claims["default", "gone"]
    bed.janitor().sweep()
    assert bed.claim_files() == {f"cdi {kept.ref.uid}", f"record {kept.ref.uid}"}


def test_a_claim_that_was_deallocated_or_allocated_anew_holds_nothing_here(
    bed: EngineBed, kubelet: PodResources
) -> None:
    bed.prepare(bed.claim("elsewhere", "gpu-0"))
    bed.claim("elsewhere", AllocatedDevice("request-0", "node-b", "gpu-0"))
    bed.janitor().sweep()
    assert bed.claim_files() == set()
    bed.prepare(bed.claim("nowhere", "gpu-0"))
    bed.api.error = ClaimNotAllocated("no allocation")
    bed.janitor().sweep()
    assert bed.claim_files() == set()


def test_a_claim_that_is_allocated_anew_at_the_last_moment_keeps_what_it_has(
    bed: EngineBed, kubelet: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask about many claims takes a while, in which the kubelet may prepare one of them."""
    ref = bed.claim("mine", "gpu-0")
    bed.prepare(ref)
    sweeper = bed.janitor(interval=60)
    del bed.api.claims["default", "mine"]
    judge = sweeper._is_gone

    def judge_before_a_new_pod_comes(record: ClaimRecord) -> bool:
        was_gone = judge(record)
        if was_gone:
            bed.claim("mine", "gpu-0")
            assert bed.prepare(ref).devices
        return was_gone

    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sweeper.sweep()
    now += 60
    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "_is_gone", judge_before_a_new_pod_comes)
        sweeper.sweep()
    assert bed.claim_files() == {f"cdi {ref.uid}", f"record {ref.uid}"}


def test_it_must_be_so_for_a_whole_interval(
    bed: EngineBed, kubelet: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.prepare(bed.claim("gone", "gpu-0"))
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    del bed.api.claims["default", "gone"]
    sweeper = bed.janitor(interval=60)
    sweeper.sweep()
    now += 59
    sweeper.sweep()
    assert bed.claim_files() != set()
    kubelet.claims = {("default", "gone"): []}
    sweeper.sweep()
    kubelet.claims = {}
    now += 59
    sweeper.sweep()
    now += 59
    sweeper.sweep()
    assert bed.claim_files() != set(), "it was in use in between"
    now += 1
    sweeper.sweep()
    assert bed.claim_files() == set()


@pytest.mark.parametrize("ids", [(), ("k8s.gpu.nvidia.com/claim=uid-of-gone-gpu-0",)])
def test_a_claim_in_a_container_is_left_alone_and_costs_no_request(
    bed: EngineBed, kubelet: PodResources, ids: tuple[str, ...]
) -> None:
    bed.prepare(bed.claim("gone", "gpu-0"))
    kubelet.claims = {("default", "gone"): ids}
    bed.api.claims.clear()
    bed.api.asked.clear()
    bed.janitor().sweep()
    assert bed.claim_files() == {"cdi uid-of-gone", "record uid-of-gone"}
    assert bed.api.asked == []


def test_another_claim_of_that_name_does_not_keep_it(bed: EngineBed, kubelet: PodResources) -> None:
    bed.prepare(bed.claim("same", "gpu-0", uid="uid-1"))
    again = bed.claim("same", "gpu-1", uid="uid-2")
    bed.prepare(again)
    kubelet.claims = {("default", "same"): ("k8s.gpu.nvidia.com/claim=uid-2-gpu-1",)}
    bed.janitor().sweep()
    assert bed.claim_files() == {"cdi uid-2", "record uid-2"}


def test_failed_reads_prove_nothing(bed: EngineBed) -> None:
    bed.prepare(bed.claim("gone", "gpu-0"))
    held = bed.claim_files()
    bed.api.claims.clear()
    bed.janitor().sweep()
    assert bed.claim_files() == held, "the kubelet did not answer"
    with pod_resources(bed.pod_resources):
        bed.api.error = ApiUnavailable("away")
        bed.janitor().sweep()
        assert bed.claim_files() == held, "the API server did not answer"
        bed.api.error = None
        bed.janitor().sweep()
    assert bed.claim_files() == set()


def test_an_api_server_that_is_away_is_asked_about_one_claim_only(
    bed: EngineBed, kubelet: PodResources
) -> None:
    """It may take ten seconds each time, and the node would be looked after once in an hour."""
    bed.prepare(bed.claim("one", "gpu-0"))
    bed.prepare(bed.claim("two", "gpu-1"))
    bed.api.asked.clear()
    bed.api.error = ApiUnavailable("away")
    sweeper = bed.janitor()
    sweeper.sweep()
    assert len(bed.api.asked) == 1
    bed.api.error = None
    bed.api.claims.clear()
    sweeper.sweep()
    assert bed.claim_files() == set()


def test_files_that_went_missing_are_written_again(bed: EngineBed) -> None:
    ref = bed.claim("mine", "gpu-0")
    bed.prepare(ref)
    before = {path.name: path.read_bytes() for path in bed.settings.cdi_root.iterdir()}
    for path in bed.settings.cdi_root.iterdir():
        path.unlink()
    bed.start()
    bed.janitor().sweep()
    assert {path.name: path.read_bytes() for path in bed.settings.cdi_root.iterdir()} == before


def test_b12_the_common_file_follows_the_driver_without_a_new_claim(bed: EngineBed) -> None:
    bed.prepare(bed.claim("mine", "gpu-0"))
    common = bed.settings.cdi_root / "k8s.gpu.nvidia.com-driver.json"
    assert VERSION in common.read_text()
    bed.tree.add_libraries("590.1.2")
    bed.tree.link("590.1.2")
    bed.tree.remove_libraries(VERSION)
    bed.janitor().sweep()
    assert VERSION not in common.read_text()
    assert "libcuda.so.590.1.2" in common.read_text()


def test_without_claims_no_file_is_written(bed: EngineBed) -> None:
    bed.janitor().sweep()
    assert bed.leftovers() == []


def test_one_claim_that_cannot_be_restored_does_not_keep_the_others(bed: EngineBed) -> None:
    parent = partitioned(2, 0)
    bed.tree.add_partition(2, 7, (30, 31))
    bed.hardware.inventory = inventory(gpu(0), parent)
    name = "gpu-2-mig-1g10gb-19-0"
    bed.prepare(bed.claim("a-part", name))
    bed.prepare(bed.claim("whole", "gpu-0"))
    for path in bed.settings.cdi_root.iterdir():
        path.unlink()
    bed.hardware.inventory = inventory(gpu(0), partitioned(2))
    bed.janitor().sweep()
    assert bed.specs.claim_uids() == {"uid-of-whole"}
    made_again = partition(parent, 0, uuid="MIG-new")
    bed.hardware.inventory = inventory(gpu(0), gpu(2, mig_enabled=True, partitions=(made_again,)))
    bed.janitor().sweep()
    assert bed.specs.claim_uids() == {"uid-of-whole", "uid-of-a-part"}


def test_nothing_is_restored_before_the_hardware_is_known(bed: EngineBed) -> None:
    bed.prepare(bed.claim("mine", "gpu-0"))
    cdi_file(bed, "mine").unlink()
    known, bed.hardware.inventory = bed.hardware.inventory, None
    sweeper = bed.janitor()
    sweeper.sweep()
    assert bed.specs.claim_uids() == set()
    bed.hardware.inventory = known
    sweeper.sweep()
    assert bed.specs.claim_uids() == {"uid-of-mine"}


def test_a_lost_record_comes_back_from_the_cdi_file_and_keeps_its_device(bed: EngineBed) -> None:
    ref = bed.claim("mine", "gpu-0")
    prepared = bed.prepare(ref)
    (bed.records_folder / f"{ref.uid}.json").unlink()
    bed.janitor().sweep()
    with pytest.raises(DeviceInUse):
        bed.prepare(bed.claim("other", "gpu-0"))
    assert bed.prepare(ref) == prepared
    bed.unprepare(ref)
    assert bed.leftovers() == []


def test_a_whole_cdi_file_is_not_written_while_somebody_works_on_its_claim(bed: EngineBed) -> None:
    """It would be back after its Unprepare, and bring back the record."""
    bed.tree.settle()
    ref = bed.claim("mine", "gpu-0")
    bed.prepare(ref)
    bed.specs.apply(ref.uid, [CdiDevice("gpu-0", gpu(0).uuid, 0)], whole=True)
    bed.tree.add_libraries("590.44.01")
    bed.tree.link("590.44.01")
    bed.tree.remove_libraries(VERSION)
    sweeper = bed.janitor()
    with bed.records.claim_lock(ref.uid):
        sweeper.sweep()
        assert "libcuda.so.590.44.01" not in cdi_file(bed, ref.uid).read_text()
    sweeper.sweep()
    assert "libcuda.so.590.44.01" in cdi_file(bed, ref.uid).read_text()


def test_a_cdi_file_of_ours_that_tells_nothing_is_removed(bed: EngineBed) -> None:
    bed.prepare(bed.claim("mine", "gpu-0"))
    stray = bed.settings.cdi_root / "k8s.gpu.nvidia.com-claim_uid-of-nobody.json"
    stray.write_text("{}")
    foreign = bed.settings.cdi_root / "k8s.example.com-claim_uid-of-nobody.json"
    foreign.write_text("{}")
    with RangeLock(bed.settings.data_folder / "claims.lock", "uid-of-nobody", 1):
        bed.janitor().sweep()
    assert stray.exists(), "somebody is at work on it"
    bed.janitor().sweep()
    assert not stray.exists()
    assert foreign.exists()
    assert bed.specs.claim_uids() == {"uid-of-mine"}


def test_what_one_instance_set_aside_is_left_alone_by_the_other(bed: EngineBed) -> None:
    """The claim's container may be running, with a CDI file that no longer tells of the claim."""
    ref = bed.claim("mine", "gpu-0")
    bed.prepare(ref)
    older, records = bed.janitor(), bed.records
    older.sweep()
    bed.start()
    (record,) = bed.records_folder.glob("*.json")
    (cdi_file,) = bed.settings.cdi_root.glob("*-claim_*")
    record.write_text("{")
    cdi_file.write_text("{}")
    bed.janitor().sweep()
    older.sweep()
    assert cdi_file.exists()
    assert set(records.damaged) == {ref.uid}
    bed.unprepare(ref)
    assert bed.leftovers() == []
    records.holdings()
    assert records.damaged == {}


def test_a_trouble_is_told_once(bed: EngineBed, caplog: pytest.LogCaptureFixture) -> None:
    sweeper = bed.janitor()
    sweeper.sweep()
    sweeper.sweep()
    told = [record for record in caplog.records if "janitor" in record.getMessage()]
    assert len(told) == 1


def test_it_runs_in_a_thread_and_looks_when_poked(bed: EngineBed, kubelet: PodResources) -> None:
    sweeper = bed.janitor(interval=3600)
    sweeper.start()
    try:
        eventually(lambda: kubelet.asked == 1, "the first sweep")
        sweeper.poke()
        eventually(lambda: kubelet.asked == 2, "another one")
    finally:
        sweeper.stop()


def test_a_wish_to_stop_that_comes_just_before_a_sweep_is_heard(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = bed.janitor(interval=3600)
    is_set = sweeper._stopping.is_set

    def is_set_a_moment_too_early() -> bool:
        found = is_set()
        sweeper._stopping.set()
        sweeper._wake.set()
        return found

    monkeypatch.setattr(sweeper._stopping, "is_set", is_set_a_moment_too_early)
    sweeper.start()
    eventually(lambda: not sweeper._thread.is_alive(), "the thread has ended")
