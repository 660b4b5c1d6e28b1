"""Field reports about drivers, reboots and repeated calls, on the real process."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.reports import (
    PART,
    WITH_PARTITION,
    cdi_file,
    nodes_of,
    prepare,
    record_file,
    refused,
    started,
    unprepare,
    while_dead,
)
from tests.support.cdi_rules import edits
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

# B12: CDI files follow the driver


def test_b12_a_new_driver_reaches_claims_without_a_restart(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    old, new = bed.node.state.driver_version(), "590.44.01"
    running = bed.claim("running", "gpu-0")
    prepare(bed, running)
    common = bed.cdi_folder / f"k8s.{DRIVER}-driver.json"
    assert old in common.read_text()
    bed.node.set_driver_version(new)
    prepare(bed, bed.claim("next", "gpu-1"))
    assert old not in common.read_text()
    mounts = edits(common, "common")["mounts"]
    assert any(mount["containerPath"].endswith(f"libcuda.so.{new}") for mount in mounts)
    assert [mount for mount in mounts if not Path(mount["hostPath"]).exists()] == []
    eventually(lambda: driver_versions(bed) == {"590.44.1"}, "the new version is published")


def test_b12_also_those_that_are_prepared_already(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    old = bed.node.state.driver_version()
    prepare(bed, bed.claim("running", "gpu-0"))
    common = bed.cdi_folder / f"k8s.{DRIVER}-driver.json"
    bed.node.set_driver_version("590.44.01")
    eventually(lambda: old not in common.read_text(), "its file names the new libraries")


def test_b12_a_driver_that_is_not_complete_is_named_and_tried_again(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("mine", "gpu-0")
    (library,) = bed.node.library.parent.glob("libcuda.so.[0-9]*.*")
    library.rename(library.with_name("gone"))
    assert refused(bed, claim) == "DriverFilesMissing"
    assert bed.claim_files() == set()
    library.with_name("gone").rename(library)
    prepare(bed, claim)


def driver_versions(bed: NodeBed) -> set[str]:
    return {
        device["attributes"]["driverVersion"]["version"]
        for each in bed.slices()
        for device in each["spec"]["devices"]
    }


# B15: a reboot takes files, numbers and partitions


def test_b15_after_a_reboot_the_same_gpu_is_set_up_again(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    uuid = bed.node.gpu(0)["uuid"]
    claim = bed.claim("mine", "gpu-0")
    prepare(bed, claim)
    with while_dead(bed):
        shutil.rmtree(bed.cdi_folder)
        bed.node.reboot()
        for gpu, minor in ((0, 5), (1, 0)):  # they came up in another order
            bed.node.set_minor(gpu, minor)
        bed.node.set_minor(bed.node.state.find_gpu(uuid), 1)
    eventually(cdi_file(bed, claim).exists, "the CDI file is back before anybody asks")
    assert prepare(bed, claim) == ["gpu-0"]
    assert nodes_of(bed, claim) == {"/dev/nvidia1"}
    assert uuid in record_file(bed, claim).read_text()
    unprepare(bed, claim)
    assert bed.claim_files() == set()


def test_b15_a_partition_that_a_reboot_took_is_named_and_comes_back(make_bed: MakeBed) -> None:
    bed = started(make_bed(spec=WITH_PARTITION))
    claim = bed.claim("mine", PART)
    prepare(bed, claim)
    with while_dead(bed):
        shutil.rmtree(bed.cdi_folder)
        bed.node.reboot()
    assert refused(bed, claim) == "DeviceNotFound"
    (line,) = bed.processes[-1].lines("call failed", "operation=prepare")
    assert PART in line
    other = bed.node.state.partition(1, "1g.10gb", 1)
    assert refused(bed, claim) == "DeviceNotFound", "another placement is another partition"
    bed.node.state.partition(1, "1g.10gb", 0)
    assert prepare(bed, claim) == [PART]
    assert len(nodes_of(bed, claim)) == 3
    bed.node.state.unpartition(1, other)
    unprepare(bed, claim)
    assert bed.claim_files() == set()


def test_b15_after_a_reboot_devices_are_held_until_unprepare(make_bed: MakeBed) -> None:
    bed = started(make_bed(spec=WITH_PARTITION))
    claims = [bed.claim("whole", "gpu-0"), bed.claim("part", PART)]
    for claim in claims:
        prepare(bed, claim)
    with while_dead(bed):
        shutil.rmtree(bed.cdi_folder)
        bed.node.reboot()
    bed.node.state.partition(1, "1g.10gb", 0)
    other = bed.claim("other", "gpu-0")
    overlapping = bed.claim("overlapping", PART)
    assert (refused(bed, other), refused(bed, overlapping)) == ("DeviceInUse", "DeviceInUse")
    for claim in claims:
        unprepare(bed, claim)
    assert bed.claim_files() == set()
    assert (refused(bed, other), refused(bed, overlapping)) == ("", "")


def test_b15_a_plain_restart_touches_nothing_that_works(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("mine", "gpu-0")
    prepare(bed, claim)
    files = (cdi_file(bed, claim), record_file(bed, claim))
    before = [path.stat() for path in files]
    with while_dead(bed):
        pass
    prepare(bed, claim)
    after = [path.stat() for path in files]
    assert [(s.st_ino, s.st_mtime_ns) for s in after] == [(s.st_ino, s.st_mtime_ns) for s in before]


# B18: Prepare is called again


def test_b18_many_pods_that_share_a_claim_start_at_once(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("shared", "gpu-0")
    with ThreadPoolExecutor(16) as pods:
        answers = list(pods.map(lambda _: bed.kubelet.prepare(DRIVER, [claim]), range(16)))
    assert all(answer == answers[0] for answer in answers)
    unprepare(bed, claim)
    assert bed.claim_files() == set()


# B20: what was begun is finished or taken back


def test_b20_a_prepare_that_failed_half_way_holds_nothing(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    claim = bed.claim("mine", "gpu-0")
    bed.cdi_folder.touch()  # a file
    assert refused(bed, claim) == "StorageFailed"
    assert bed.claim_files() == set()
    bed.cdi_folder.unlink()
    other = bed.claim("other", "gpu-0")
    assert prepare(bed, other) == ["gpu-0"], "without waiting for an Unprepare of the first"
    unprepare(bed, other)
    assert prepare(bed, claim) == ["gpu-0"]
