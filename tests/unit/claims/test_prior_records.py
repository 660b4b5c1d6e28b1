"""Claims of the other driver as records: found on the hardware, or held all the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.claims.prior_records import PriorRecords
from dra_driver.model import (
    ClaimRef,
    Gpu,
    GpuPolicy,
    Inventory,
    Partitioning,
    Placement,
    SharingSettings,
    Slot,
    Strategy,
    TimeSlice,
)
from dra_driver.model.errors import RecordDamaged
from dra_driver.state import ClaimRecord, Holding, Phase, holdings, read_checkpoint
from tests.support import predecessor as prior
from tests.support.inventories import SMALL, WHOLE, gpu, inventory, partitioned
from tests.support.predecessor import PriorDriver

ONE = ClaimRef("default", "one", "11111111-5f4c-4a2e-9d35-3f6d5e0f7a11")
TWO = ClaimRef("default", "two", "22222222-5f4c-4a2e-9d35-3f6d5e0f7a22")
NAME = "gpu-0-mig-1g10gb-19-2"
DYNAMIC = GpuPolicy(partitioning=Partitioning.DYNAMIC)
SLOTS = (Slot(SMALL, Placement(2, 1)), Slot(WHOLE, Placement(0, 8)))


@pytest.fixture
def driver(tmp_path: Path) -> PriorDriver:
    return PriorDriver(tmp_path / "data", tmp_path / "cdi")


def maker(driver: PriorDriver, found: Inventory) -> PriorRecords:
    state = read_checkpoint(_text(driver))
    folders = ("/mps/pipe", "/mps/shm")
    return PriorRecords(state, found, prior.DRIVER, prior.NODE, lambda _: folders)


def records(driver: PriorDriver, *gpus: Gpu) -> list[ClaimRecord]:
    """All completed claims, by UID."""
    make = maker(driver, inventory(*gpus))
    return [make.completed(each) for each in read_checkpoint(_text(driver)).claims]


def begun(driver: PriorDriver, *gpus: Gpu) -> list[ClaimRecord | None]:
    make = maker(driver, inventory(*gpus))
    claims = read_checkpoint(_text(driver)).claims
    return [make.begun(each) for each in claims if not each.is_complete]


def _text(driver: PriorDriver) -> bytes:
    driver.write()
    return driver.checkpoint.read_bytes()


def mig(of: Gpu, start: int = 2) -> dict[str, Any]:
    """Give the small partition of a GPU at a place, as the other driver has it."""
    (part,) = (each for each in of.partitions if each.placement.start == start)
    name = NAME.replace("gpu-0", f"gpu-{of.minor}")
    return prior.mig(name, part.uuid or "", of.uuid, part.gi_id, of.minor)


def takes(record: ClaimRecord, of: Gpu, span: Placement | None) -> bool:
    """Whether nobody else can have that part of a GPU."""
    (held,) = holdings(record)
    other = Holding(TWO, "x", of.uuid, span, None, admin_access=False)
    return held.conflicts_with(other)


def test_a_gpu_is_found_by_its_uuid_whatever_its_number(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-1", gpu(1).uuid))
    (record,) = records(driver, gpu(0), replace(gpu(1), minor=5))
    (device,) = record.devices
    assert (device.device, device.gpu_uuid, device.gpu_minor) == ("gpu-1", gpu(1).uuid, 5)
    assert (record.phase, record.taken_over, record.boot_id) == (Phase.PREPARED, True, "boot-1")
    assert (device.request, device.pool) == ("request-0", prior.NODE)


def test_a_gpu_that_is_gone_is_held(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-1", gpu(1).uuid))
    (record,) = records(driver, gpu(0))
    assert takes(record, gpu(1), None)


def test_a_partition_is_found_by_its_uuid(driver: PriorDriver) -> None:
    parent = partitioned(0, 1, 2)
    driver.complete(ONE, mig(parent))
    (device,) = records(driver, parent)[0].devices
    assert (device.span, device.gi_profile_id) == (Placement(2, 1), 19)
    assert (device.gi_id, device.ci_id, device.made) == (9, 0, False)


def test_old_releases_tell_no_parent(driver: PriorDriver) -> None:
    parent = partitioned(0, 2)
    driver.complete(ONE, prior.old_mig("gpu-0-mig-19-2-1", parent.partitions[0].uuid or ""))
    (device,) = records(driver, gpu(1), parent)[0].devices
    assert (device.gpu_uuid, device.span) == (parent.uuid, Placement(2, 1))


@pytest.mark.parametrize("slots", [SLOTS, ()])
def test_a_partition_that_is_gone_is_given_to_nobody(
    driver: PriorDriver, slots: tuple[Slot, ...]
) -> None:
    driver.complete(ONE, mig(partitioned(0, 2)))
    now = gpu(0, slots=slots)
    (record,) = records(driver, now)
    assert takes(record, now, None)
    assert takes(record, now, Placement(2, 1))
    assert takes(record, now, Placement(4, 1)) == (not slots)  # nobody knows where it was


def test_partitions_are_removed_only_where_this_driver_makes_them(driver: PriorDriver) -> None:
    there = partitioned(0, 2)
    driver.complete(ONE, mig(there))
    (left,) = records(driver, there)
    assert not left.devices[0].made
    assert "partition gpu-0-mig-1g10gb-19-2 stays" in left.left_behind[0]
    (made,) = records(driver, replace(there, policy=DYNAMIC))
    assert made.devices[0].made
    assert made.left_behind == ()


def test_partitions_beside_one_that_no_claim_has_are_somebody_elses(driver: PriorDriver) -> None:
    there = partitioned(0, 2, 4, policy=DYNAMIC)
    driver.complete(ONE, mig(there))
    assert not records(driver, there)[0].devices[0].made
    driver.begin(TWO, "gpu-0-mig-1g10gb-19-4")
    assert maker(driver, inventory(there)).completed(read(driver, ONE)).devices[0].made


def read(driver: PriorDriver, ref: ClaimRef) -> Any:
    return next(each for each in read_checkpoint(_text(driver)).claims if each.uid == ref.uid)


def test_what_a_prepare_that_was_cut_off_made_is_found_by_name(driver: PriorDriver) -> None:
    driver.begin(ONE, NAME, "gpu-1")
    there = partitioned(0, 2, policy=DYNAMIC)
    (record,) = begun(driver, there, gpu(1))
    assert record is not None
    assert (record.phase, record.ref) == (Phase.PREPARING, ONE)
    assert [(each.device, each.made) for each in record.devices] == [(NAME, True)]
    assert begun(driver, gpu(0, policy=DYNAMIC, slots=SLOTS)) == [None]
    assert begun(driver, partitioned(0, 2)) == [None]


def sharing(strategy: str, **more: Any) -> dict[str, Any]:
    words = {"strategy": strategy} | more
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": words}


def test_time_slices_become_ours_and_mps_stays_the_other_drivers(driver: PriorDriver) -> None:
    long = sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"})
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid), config=[long])
    driver.complete(TWO, prior.gpu("gpu-1", gpu(1).uuid), config=[sharing("MPS")], daemon="d-1")
    sliced, by_mps = records(driver, gpu(0), gpu(1))
    assert sliced.devices[0].sharing == {
        "strategy": "TimeSlicing",
        "timeSlicingConfig": {"interval": "Long"},
    }
    (device,) = by_mps.devices
    assert (device.sharing, device.mps_set) == (None, None)
    assert device.mps_folders == ("/mps/pipe", "/mps/shm")
    (left,) = by_mps.left_behind
    assert "Deployment mps-control-daemon-d-1 of the driver before still runs" in left
    assert left.endswith("umount /mps/shm")


def test_the_nodes_default_was_not_there_then(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid))
    default = GpuPolicy(sharing=SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG))
    assert records(driver, gpu(0, policy=default))[0].devices[0].sharing is None


@pytest.mark.parametrize("config", [[{"kind": "Else"}], [sharing("Else")], [{}]])
def test_a_config_that_is_not_known_keeps_nobody_from_being_taken_over(
    driver: PriorDriver, config: list[dict[str, Any]]
) -> None:
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid), config=config)
    (record,) = records(driver, gpu(0))
    assert [each.sharing for each in record.devices] == [None]


def test_shares_and_admin_access_are_what_the_claim_says(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid), shareID="s-1")
    driver.complete(TWO, prior.gpu("gpu-0", gpu(0).uuid), adminAccess=True)
    share, admin = records(driver, gpu(0))
    assert share.devices[0].share_id == "s-1"
    assert admin.devices[0].admin_access


def test_a_device_is_held_though_the_allocation_is_not_told(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid))
    driver.claims[ONE.uid]["status"] = {"allocation": {"devices": {"results": "rubbish"}}}
    (record,) = records(driver, gpu(0))
    assert takes(record, gpu(0), None)


def test_a_claim_that_tells_no_device_is_refused(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.gpu("gpu-0", gpu(0).uuid))
    driver.claims[ONE.uid]["preparedDevices"] = []
    with pytest.raises(RecordDamaged, match="does not tell which"):
        records(driver, gpu(0))


def test_a_gpu_on_vfio_is_held_and_told(driver: PriorDriver) -> None:
    driver.complete(ONE, prior.vfio("gpu-vfio-0", gpu(0).uuid))
    (record,) = records(driver, gpu(1))
    assert takes(record, gpu(0), None)
    assert "stays bound to vfio-pci" in record.left_behind[0]
