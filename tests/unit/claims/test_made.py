"""Claims on partitions that this driver makes for them, with partitions that are only remembered.

That the hardware follows is shown on the simulated node.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.model import (
    AllocatedDevice,
    GpuPolicy,
    Health,
    HealthState,
    Inventory,
    Partitioning,
    Placement,
    Slot,
)
from dra_driver.model.errors import DeviceInUse, DeviceNotFound, DeviceUnhealthy, HardwareBusy
from tests.support.engine import NODE, EngineBed
from tests.support.inventories import SMALL, WHOLE, gpu, inventory, partition

SLOTS = (
    *(Slot(replace(SMALL, ci_profile_id=-1), Placement(start, 1)) for start in range(7)),
    Slot(replace(WHOLE, ci_profile_id=-1), Placement(0, 8)),
)
DYNAMIC = GpuPolicy(partitioning=Partitioning.DYNAMIC)
FIRST, SECOND, ALL = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1", "gpu-0-mig-7g80gb-0-0"


def dynamic(**changes: object) -> Inventory:
    return inventory(gpu(0, slots=SLOTS, policy=DYNAMIC, **changes))


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        made = EngineBed(Path(folder), dynamic())
        for gi in range(1, 8):
            made.tree.add_partition(0, gi, (2 * gi, 2 * gi + 1))
        made.tree.settle()
        yield made.start()


def test_a_partition_is_made_for_the_claim_and_removed_with_it(bed: EngineBed) -> None:
    ref = bed.claim("one", FIRST)
    answer = bed.prepare(ref)
    (made,) = bed.partitions.made
    assert made == (gpu(0).uuid, SMALL.gi_profile_id, Placement(0, 1))
    assert answer.devices[0].uuid.startswith("MIG-")
    assert bed.prepare(ref) == answer
    assert bed.partitions.calls == 1
    bed.unprepare(ref)
    assert (bed.partitions.made, bed.leftovers()) == ({}, [])


def test_a_partition_of_others_is_given_as_it_is_and_left(bed: EngineBed) -> None:
    """It is published where the API server keeps no counters."""
    theirs = partition(gpu(0), 0, gi_id=1)
    bed.hardware.inventory = dynamic(mig_enabled=True, partitions=(theirs,), foreign=(theirs,))
    ref = bed.claim("one", FIRST)
    assert bed.prepare(ref).devices[0].uuid == theirs.uuid
    with pytest.raises(DeviceInUse):
        bed.prepare(bed.claim("other", FIRST))
    bed.unprepare(ref)
    assert (bed.partitions.calls, bed.leftovers()) == (0, [])


def test_what_overlaps_is_refused_whatever_the_scheduler_says(bed: EngineBed) -> None:
    bed.prepare(bed.claim("one", FIRST))
    for other in (FIRST, ALL, "gpu-0"):
        with pytest.raises(DeviceInUse, match="still held by claim default/one"):
            bed.prepare(bed.claim("other", other))
    bed.prepare(bed.claim("beside", SECOND))
    assert len(bed.partitions.made) == 2


def test_after_a_reboot_the_partition_is_made_again(bed: EngineBed) -> None:
    ref = bed.claim("one", FIRST)
    bed.prepare(ref)
    bed.partitions.reboot()
    bed.start()
    bed.prepare(ref)
    assert len(bed.partitions.made) == 1
    bed.partitions.reboot()
    bed.start().engine.restore(ref)
    assert len(bed.partitions.made) == 1


def test_a_record_that_was_lost_leaves_no_partition_behind(bed: EngineBed) -> None:
    """Its CDI file tells what Unprepare has to remove, also before the janitor has come by."""
    ref = bed.claim("one", FIRST)
    answer = bed.prepare(ref)
    (bed.records_folder / f"{ref.uid}.json").unlink()
    assert bed.prepare(ref) == answer
    (bed.records_folder / f"{ref.uid}.json").unlink()
    bed.unprepare(ref)
    assert (bed.partitions.made, bed.leftovers()) == ({}, [])


def test_a_claim_outlives_a_change_of_the_configuration(bed: EngineBed) -> None:
    ref = bed.claim("one", FIRST)
    answer = bed.prepare(ref)
    bed.hardware.inventory = inventory(gpu(0))
    assert bed.prepare(ref) == answer
    bed.unprepare(ref)
    assert bed.partitions.made == {}


def test_a_failure_takes_the_partition_back(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise HardwareBusy("not now")

    monkeypatch.setattr(bed.specs, "apply", busy)
    with pytest.raises(HardwareBusy):
        bed.prepare(bed.claim("one", FIRST))
    assert (bed.partitions.made, bed.records.holdings()) == ({}, [])


def test_admin_access_makes_nothing_and_sees_what_is_there(bed: EngineBed) -> None:
    admin = bed.claim("admin", AllocatedDevice("look", NODE, FIRST, admin_access=True))
    with pytest.raises(DeviceNotFound, match="does not exist now"):
        bed.prepare(admin)
    assert bed.partitions.made == {}
    there = partition(gpu(0), 0, gi_id=1)
    bed.hardware.inventory = dynamic(mig_enabled=True, partitions=(there,))
    assert bed.prepare(admin).devices[0].uuid == there.uuid
    bed.unprepare(admin)
    assert bed.partitions.made == {}


def test_a_sick_gpu_gives_no_partition(bed: EngineBed) -> None:
    ref = bed.claim("one", FIRST)
    bed.prepare(ref)
    bed.hardware.inventory = dynamic(health=Health(HealthState.UNHEALTHY, "xid", "XID 79"))
    for each in (ref, bed.claim("other", SECOND)):
        with pytest.raises(DeviceUnhealthy, match="XID 79"):
            bed.prepare(each)


def test_a_sick_partition_is_refused_and_its_neighbour_is_not(bed: EngineBed) -> None:
    ref, other = bed.claim("one", FIRST), bed.claim("other", SECOND)
    bed.prepare(ref)
    sick = partition(gpu(0), 0, health=Health(HealthState.UNHEALTHY, "xid", "XID 63"))
    bed.hardware.inventory = dynamic(mig_enabled=True, partitions=(sick,))
    with pytest.raises(DeviceUnhealthy, match="XID 63"):
        bed.prepare(ref)
    bed.prepare(other)
