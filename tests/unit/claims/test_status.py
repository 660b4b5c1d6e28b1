"""Which devices of a claim its status tells of, what, and when."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.claims.status import ClaimStatuses, claim_status
from dra_driver.kube.device_status import status_patch
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    ClaimStatus,
    DeviceStatus,
    GpuPolicy,
    Partitioning,
    Placement,
    SharesMode,
    SharesPolicy,
    Slot,
)
from dra_driver.model.errors import StorageFailed
from dra_driver.state import ClaimRecord, DeviceRecord, Holding, holdings
from tests.support.engine import NODE, EngineBed, FakeStatuses
from tests.support.inventories import GIB, SMALL, SMALL_MEDIA, gpu, inventory

GPU = gpu(0, slots=(Slot(SMALL_MEDIA, Placement(3, 1)), Slot(SMALL, Placement(3, 1))))


def device(**changes: Any) -> DeviceRecord:
    base: dict[str, Any] = {
        "request": "r",
        "pool": "node-a",
        "device": "gpu-0-mig-1g10gb-19-3",
        "gpu_uuid": GPU.uuid,
        "gpu_minor": 0,
        "uuid": "MIG-1",
        "placement": (3, 1),
        "gi_profile_id": SMALL.gi_profile_id,
        "gi_id": 9,
        "ci_id": 0,
        "made": True,
    }
    return DeviceRecord(**(base | changes))


def record(*devices: DeviceRecord) -> ClaimRecord:
    return ClaimRecord(
        namespace="team", name="c", uid="u-1", planned=1_700_000_000, devices=devices
    )


def test_a_partition_that_was_made_is_told_with_its_profile() -> None:
    status = claim_status(record(device(share_id="s-1")), inventory(GPU))
    assert status is not None
    assert (status.ref, status.since) == (ClaimRef("team", "c", "u-1"), 1_700_000_000)
    assert status.devices == (
        DeviceStatus(
            pool="node-a",
            device="gpu-0-mig-1g10gb-19-3",
            uuid="MIG-1",
            parent_uuid=GPU.uuid,
            profile="1g.10gb",
            placement=Placement(3, 1),
            gi_id=9,
            ci_id=0,
            share_id="s-1",
            driver_version="580.95.05",
        ),
    )


@pytest.mark.parametrize(
    "others",
    [
        (),
        (device(made=False),),
        (device(placement=None, gi_profile_id=None, uuid=GPU.uuid),),
    ],
    ids=["nothing", "a partition that was there", "a whole GPU"],
)
def test_what_the_slices_say_is_not_told_again(others: tuple[DeviceRecord, ...]) -> None:
    assert claim_status(record(*others), inventory(GPU)) is None
    mixed = claim_status(record(*others, device()), inventory(GPU))
    assert mixed is not None
    assert len(mixed.devices) == 1


@pytest.mark.parametrize("seen", [None, inventory(), inventory(gpu(0))])
def test_a_gpu_that_is_not_in_the_snapshot_costs_the_profile_name_only(seen: Any) -> None:
    status = claim_status(record(device()), seen)
    assert status is not None
    assert (status.devices[0].profile, status.devices[0].uuid) == ("", "MIG-1")


def test_a_share_by_memory_tells_its_limit_and_how_hard_it_holds() -> None:
    whole: dict[str, Any] = {"placement": None, "gi_profile_id": None, "uuid": GPU.uuid}
    whole |= {"gi_id": None, "ci_id": None, "share_memory": 10 * GIB, "made": False}
    shares = [
        device(**whole),
        device(**whole, memory_limit=10 * GIB),
        device(**whole, mps_set="s", client_limit=4 * GIB),
        device(made=False, share_memory=GIB),
    ]
    status = claim_status(record(*shares), inventory(GPU))
    assert status is not None
    assert [(each.memory_limit, each.limit_level.value) for each in status.devices] == [
        (10 * GIB, "none"),
        (10 * GIB, "cgroup"),
        (4 * GIB, "mps"),
        (GIB, "none"),
    ]
    first, *_, last = (entry["data"] for entry in entries(status))
    assert first == {
        "type": "gpu",
        "uuid": GPU.uuid,
        "memoryLimit": "10Gi",
        "memoryLimitLevel": "none",
        "driverVersion": "580.95.05",
    }
    assert (last["type"], last["parentUUID"], last["memoryLimit"]) == ("mig", GPU.uuid, "1Gi")


def entries(status: ClaimStatus) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status_patch(status, "gpu.nvidia.com")["status"]["devices"]
    return found


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        slots = (Slot(SMALL, Placement(3, 1)),)
        dynamic = GpuPolicy(partitioning=Partitioning.DYNAMIC)
        made = EngineBed(Path(folder), inventory(gpu(0, slots=slots, policy=dynamic)))
        for gi in range(1, 8):
            made.tree.add_partition(0, gi, (2 * gi, 2 * gi + 1))
        made.tree.settle()
        yield made.start()


def waiting(bed: EngineBed) -> list[ClaimStatus]:
    return list(bed.statuses.waiting.values())


def test_a_prepared_claim_tells_its_partition_until_it_is_unprepared(bed: EngineBed) -> None:
    ref = bed.claim("c", "gpu-0-mig-1g10gb-19-3")
    before = int(time.time())
    answer = bed.prepare(ref)
    (status,) = waiting(bed)
    assert (status.ref, status.devices[0].uuid) == (ref, answer.devices[0].uuid)
    assert before <= status.since <= time.time()
    bed.statuses.waiting.clear()
    bed.prepare(ref)
    assert waiting(bed) == [], "nothing is new"
    bed.unprepare(ref)
    assert waiting(bed) == []


def test_a_claim_on_what_was_there_tells_nothing(bed: EngineBed) -> None:
    bed.prepare(bed.claim("c", "gpu-0"))
    assert waiting(bed) == []


def test_a_prepare_that_fails_tells_nothing(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: ClaimRecord) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(bed.records, "update", fail)
    with pytest.raises(StorageFailed):
        bed.prepare(bed.claim("c", "gpu-0-mig-1g10gb-19-3"))
    assert waiting(bed) == []


def test_the_first_sweep_after_a_start_tells_all_once(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = bed.claim("c", "gpu-0-mig-1g10gb-19-3")
    bed.prepare(ref)
    (status,) = waiting(bed)
    bed.start()
    monkeypatch.setattr(bed.engine, "without_partition", lambda _: set())
    bed.statuses.waiting.clear()
    bed.hardware.inventory, inventory = None, bed.hardware.inventory
    janitor = bed.janitor()
    janitor.sweep()
    assert waiting(bed) == [], "the hardware is not known yet"
    bed.hardware.inventory = inventory
    janitor.sweep()
    assert waiting(bed) == [status]
    bed.statuses.waiting.clear()
    janitor.sweep()
    assert waiting(bed) == []


def test_a_level_that_others_changed_is_told_anew_and_once() -> None:
    mine = record(device(mps_set="s", share_memory=GIB, client_limit=GIB))
    other = mine.model_copy(
        update={"uid": "u-2", "devices": (device(mps_set="s", share_memory=2 * GIB),)}
    )
    there: list[ClaimRecord] = [mine]
    broken: list[StorageFailed] = []

    def held() -> list[Holding]:
        for error in broken:
            raise error
        return [each for one in there for each in holdings(one)]

    queue = FakeStatuses()
    statuses = ClaimStatuses(queue, lambda: inventory(GPU), held)

    def news() -> list[str]:
        statuses.tell(mine, only_news=True)
        found = [each.devices[0].limit_level.value for each in queue.waiting.values()]
        queue.waiting.clear()
        return found

    assert statuses.may_change(mine)
    assert not statuses.may_change(record(device()))
    statuses.tell(mine)
    assert news() == ["mps"]  # it waits still
    assert news() == []
    there.append(other)
    broken.append(StorageFailed("the disk is gone"))
    assert news() == []
    broken.clear()
    assert news() == ["mps-client"]
    there.pop()
    assert news() == ["mps"]
    statuses.forget(mine.uid)
    assert news() == ["mps"], "nothing is known of it any more"


def test_a_share_from_before_it_was_shared_by_memory_has_no_amount(tmp_path: Path) -> None:
    policy = GpuPolicy(shares=SharesPolicy(SharesMode.MEMORY))
    bed = EngineBed(tmp_path, inventory(gpu(0, policy=policy))).start()
    shares = (("0", None), ("3Gi", 3 * GIB))
    for number, (memory, wanted) in enumerate(shares):
        share = AllocatedDevice(
            "r", NODE, "gpu-0", share_id=f"s-{number}", consumed_capacity={"memory": memory}
        )
        ref = bed.claim(f"c{number}", share)
        bed.prepare(ref)
        record = bed.records.get(ref.uid)
        assert record is not None
        assert record.devices[0].share_memory == wanted
        status = bed.statuses.waiting.get(ref.uid)
        assert (status is None) == (wanted is None)
