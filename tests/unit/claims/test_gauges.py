"""Who has which device, as metrics tell it: from the records on disk, whoever wrote them."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.claims import gauges
from dra_driver.model import (
    AllocatedDevice,
    GpuPolicy,
    Health,
    HealthState,
    Partitioning,
    Placement,
    Slot,
)
from dra_driver.state import reservation
from tests.support.engine import NODE, EngineBed
from tests.support.inventories import SMALL_MEDIA, gpu, inventory
from tests.unit.claims.test_made import ALL, DYNAMIC, FIRST, SLOTS

TWIN = replace(SMALL_MEDIA, ci_profile_id=-1)  # another profile at the first one's place
SICK = Health(HealthState.UNHEALTHY, "xid")
INFO = "gpu_dra_driver_prepared_device_info"


@pytest.fixture
def bed() -> Iterator[EngineBed]:
    held = gpu(3, held_back="layout all-1g.10gb is being applied")
    shared = gpu(2, policy=GpuPolicy(partitioning=Partitioning.EXISTING))
    mixed = (*SLOTS, Slot(TWIN, Placement(0, 1)))
    gpus = (gpu(0, slots=mixed, policy=DYNAMIC), gpu(1, health=SICK), shared, held, gpu(4))
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        made = EngineBed(Path(folder), inventory(*gpus))
        for gi in range(1, 8):
            made.tree.add_partition(0, gi, (2 * gi, 2 * gi + 1))
        made.tree.settle()
        yield made.start()


def samples(bed: EngineBed, name: str) -> dict[tuple[str, ...], float]:
    """Series of a gauge that are not zero, by the values of their labels, sorted by label."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(bed.metrics.exposition().decode())
        for sample in family.samples
        if sample.name == name and sample.value
    }


def test_devices_by_type_health_and_who_has_them(bed: EngineBed) -> None:
    assert samples(bed, "gpu_dra_driver_devices") == {
        ("gpu", "healthy", "free"): 3,
        ("gpu", "unhealthy", "free"): 1,
        ("gpu", "healthy", "held"): 1,
        ("mig", "healthy", "free"): 9,
    }
    bed.prepare(bed.claim("part", FIRST))
    bed.prepare(bed.claim("whole", "gpu-2"))
    watcher = AllocatedDevice("r", NODE, "gpu-1", admin_access=True)
    bed.prepare(bed.claim("watcher", watcher))
    bed.records.reserve(reservation(gpu(4).uuid, 4, "gpu-4", "all-balanced"))
    assert samples(bed, "gpu_dra_driver_devices") == {
        ("gpu", "healthy", "overlapped"): 1,
        ("gpu", "unhealthy", "free"): 1,  # admin access takes nothing
        ("gpu", "healthy", "prepared"): 1,
        ("gpu", "healthy", "held"): 2,
        ("mig", "healthy", "prepared"): 1,
        ("mig", "healthy", "overlapped"): 2,  # the largest, and the other of the same place
        ("mig", "healthy", "free"): 6,
    }
    assert samples(bed, "nvidia_dra_prepared_devices") == {("gpu", "", ""): 2, ("mig", "", ""): 1}


def test_the_info_names_claim_and_device(bed: EngineBed) -> None:
    part, whole = bed.claim("part", ALL), bed.claim("whole", "gpu-2")
    answer = bed.prepare(part)
    bed.prepare(whole)
    told = samples(bed, INFO)
    assert told == {
        ("mig", "part", "default", ALL, bed.settings.driver_name, "7g.80gb", NODE, uuid): 1
        for uuid in (answer.devices[0].uuid,)
    } | {("gpu", "whole", "default", "gpu-2", bed.settings.driver_name, "", NODE, gpu(2).uuid): 1}
    bed.unprepare(part, whole)
    assert samples(bed, INFO) == {}


def test_another_instance_s_claims_are_counted(bed: EngineBed) -> None:
    other = EngineBed(bed.folder, bed.inventory, api=bed.api)
    other.partitions = bed.partitions
    other.start()
    other.prepare(other.claim("theirs", "gpu-2"))
    assert samples(bed, "nvidia_dra_prepared_devices") == {("gpu", "", ""): 1}
    other.unprepare(other.claim("theirs", "gpu-2"))
    assert samples(bed, "nvidia_dra_prepared_devices") == {}


def test_names_are_told_of_so_many_devices_only(
    bed: EngineBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_MOST_TOLD", 2)
    for number in range(4):
        watcher = AllocatedDevice("r", NODE, "gpu-2", admin_access=True)
        bed.prepare(bed.claim(f"c{number}", watcher))
    assert len(samples(bed, INFO)) == 2
    assert samples(bed, "nvidia_dra_prepared_devices") == {("gpu", "", ""): 4}


def test_records_that_can_t_be_listed_leave_the_last_counts(bed: EngineBed) -> None:
    bed.prepare(bed.claim("whole", "gpu-2"))
    before = samples(bed, "nvidia_dra_prepared_devices")
    bed.records_folder.rename(bed.records_folder.with_name("away"))
    bed.records_folder.write_text("no folder")
    assert samples(bed, "nvidia_dra_prepared_devices") == before
