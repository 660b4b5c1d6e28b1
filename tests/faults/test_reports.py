"""Field reports about GPU drivers, renumbered GPUs and reboots, on the real process."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import GpuSpec, NodeSpec
from tests.faults.reports import (
    MADE,
    PART,
    WITH_PARTITION,
    cdi_file,
    dynamic,
    line_of,
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

THREE = NodeSpec(gpus=(*WITH_PARTITION.gpus, GpuSpec(model="h100-80gb")))

# B05: names and minor numbers are not the hardware


def test_b05_a_claim_stays_on_its_gpu_when_minors_are_swapped(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    mine, uuid = bed.claim("mine", "gpu-1"), bed.node.gpu(1)["uuid"]
    prepare(bed, mine)
    assert nodes_of(bed, mine) == {"/dev/nvidia1"}
    with while_dead(bed):
        for gpu, minor in ((0, 7), (1, 0), (0, 1)):
            bed.node.set_minor(gpu, minor)
    assert {gpu["minor"]: gpu["uuid"] for gpu in bed.node.show()["gpus"]}[0] == uuid
    prepare(bed, mine)
    assert nodes_of(bed, mine) == {"/dev/nvidia0"}
    other = bed.claim("other", "gpu-0")  # the name that the held GPU has now
    assert refused(bed, other) == "DeviceInUse"
    assert "held by claim default/mine" in line_of(bed, other)
    unprepare(bed, mine)
    assert refused(bed, other) == ""


def test_b05_a_claim_on_a_gpu_that_is_gone_is_refused_by_its_uuid(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    mine, uuid = bed.claim("mine", "gpu-0"), bed.node.gpu(0)["uuid"]
    prepare(bed, mine)
    with while_dead(bed):
        bed.node.remove_gpu(0)
        bed.node.set_minor(0, 0)  # the other card is /dev/nvidia0 and gpu-0 from now on
    assert refused(bed, mine) == "DeviceNotFound"
    assert uuid in line_of(bed, mine)
    unprepare(bed, mine)
    assert bed.claim_files() == set()


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
    assert PART in line_of(bed, claim)
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


# B32: Pods end while there is no GPU driver


def test_b32_without_a_gpu_driver_pods_end_and_others_hear_why_they_wait(
    make_bed: MakeBed,
) -> None:
    bed = make_bed(spec=THREE)
    bed.kubelet.start()
    plugin = bed.serve(*dynamic(bed))
    slow = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": slow}
    whole = bed.claim("whole", "gpu-2", config=[config])
    part, made = bed.claim("part", PART), bed.claim("made", MADE)
    claims = (whole, part, made)
    for claim in claims:
        prepare(bed, claim)
    plugin.kill()
    with no_gpu_driver(bed):
        bed.serve(*dynamic(bed), wait=False)
        late = bed.claim("late", "gpu-2")
        eventually(lambda: is_told(bed, late, "DriverNotReady"), "it answers all the same")
        assert "libnvidia-ml" in line_of(bed, late)
        for claim in claims:
            unprepare(bed, claim)
        assert bed.claim_files() == set()
    eventually(lambda: bed.get("/readyz")[0] == 200, "ready when the GPU driver is back")
    for claim in (whole, made):
        prepare(bed, claim)
    assert refused(bed, part) == "DeviceNotFound", "partitions end with the GPU driver"


def is_told(bed: NodeBed, claim: ClaimRef, reason: str) -> bool:
    """Whether a claim is refused so; the kubelet may still ask the plugin that was killed."""
    with pytest.raises(CallFailed) as told:
        prepare(bed, claim)
    return reason in str(told.value)


@contextmanager
def no_gpu_driver(bed: NodeBed) -> Iterator[None]:
    """Remove the GPU driver from the host, its library and its kernel module, and bring it back."""
    root = bed.node.root
    devices = root / "proc/devices"
    text = devices.read_text()
    away = (bed.node.library, root / "proc/driver/nvidia")
    for path in away:
        path.rename(path.with_name("away"))
    devices.write_text("Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n")
    yield
    bed.node.state.driver_reload()
    devices.write_text(text)
    for path in away:
        path.with_name("away").rename(path)
