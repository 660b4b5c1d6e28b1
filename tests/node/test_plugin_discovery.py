"""The hardware changes under the running plugin: published as it is now, without a restart."""

from collections.abc import Iterator

import pytest

from tests.node.test_health_plugin import POLL, taints
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

PARTITION = "gpu-1-mig-2g20gb-14-2"


@pytest.fixture
def bed(make_bed: MakeBed) -> Iterator[NodeBed]:
    made = make_bed(gpus=2)
    made.kubelet.start()
    process = made.serve(POLL)
    yield made
    assert process.running
    assert process.pid == made.processes[-1].pid, "the first process still serves"
    assert process.lines("ERROR") == []


def until_published(bed: NodeBed, *names: str) -> None:
    seconds = eventually(lambda: bed.device_names() == set(names), f"published: {names}")
    print(f"{', '.join(names)}: published after {seconds:.2f} s")


def attribute(bed: NodeBed, device: str, name: str) -> object:
    (found,) = [
        each for obj in bed.slices() for each in obj["spec"]["devices"] if each["name"] == device
    ]
    return found["attributes"][name]


def test_partitions_made_and_removed_by_hand(bed: NodeBed) -> None:
    bed.node.state.set_mig_mode(1, on=True)
    until_published(bed, "gpu-0")
    done = bed.node.smi("mig", "-i", "1", "-cgi", "14:2", "-C")
    assert done.returncode == 0, done.stderr
    until_published(bed, "gpu-0", PARTITION)
    claim = bed.claim("mine", PARTITION)
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])
    (instance,) = bed.node.gpu(1)["instances"]
    bed.node.state.unpartition(1, instance["id"])
    until_published(bed, "gpu-0")
    bed.node.state.set_mig_mode(1, on=False)
    until_published(bed, "gpu-0", "gpu-1")


def test_a_partition_is_found_at_prepare_before_the_poll_finds_it(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve("--poll-interval=1h")
    bed.node.state.set_mig_mode(1, on=True)
    bed.node.state.partition(1, "2g.20gb", 2)
    claim = bed.claim("mine", PARTITION)
    bed.kubelet.prepare(DRIVER, [claim])
    until_published(bed, "gpu-0", PARTITION)
    bed.kubelet.unprepare(DRIVER, [claim])


def test_gpus_added_and_removed(bed: NodeBed) -> None:
    bed.node.add_gpu("l40s", seed="new")
    until_published(bed, "gpu-0", "gpu-1", "gpu-2")
    claim = bed.claim("mine", "gpu-2")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])
    bed.node.remove_gpu(0)
    until_published(bed, "gpu-1", "gpu-2")
    bed.node.state.xid(0, 48)  # events of the GPUs that are left are heard
    eventually(lambda: taints(bed).get("gpu-1"), "tainted")


def test_a_driver_upgrade(bed: NodeBed) -> None:
    held, later = bed.claim("held", "gpu-0"), bed.claim("later", "gpu-1")
    bed.kubelet.prepare(DRIVER, [held])
    bed.node.set_driver_version("590.44.01")
    eventually(
        lambda: attribute(bed, "gpu-0", "driverVersionText") == {"string": "590.44.01"},
        "the new version is published",
    )
    bed.kubelet.prepare(DRIVER, [later])
    common = next(bed.cdi_folder.glob("*-driver.json")).read_text()
    assert "590.44.01" in common
    assert "580.95.05" not in common
    bed.node.state.xid(1, 48)
    eventually(lambda: taints(bed).get("gpu-1"), "events of the new driver are heard")
    bed.kubelet.unprepare(DRIVER, [held, later])
    assert bed.claim_files() == set()


def test_a_driver_reload(bed: NodeBed) -> None:
    bed.node.state.set_mig_mode(1, on=True)
    bed.node.state.partition(1, "2g.20gb", 2)
    until_published(bed, "gpu-0", PARTITION)
    bed.node.state.driver_reload()
    until_published(bed, "gpu-0", "gpu-1")
    bed.node.state.xid(0, 48)
    eventually(lambda: taints(bed).get("gpu-0"), "events are heard again")


def test_a_driver_that_goes_away_for_a_while(bed: NodeBed) -> None:
    claim = bed.claim("held", "gpu-0")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.fault("nvml*", "DRIVER_NOT_LOADED")
    eventually(lambda: "DRIVER_NOT_LOADED" in bed.get("/readyz")[1], "not ready")
    health = bed.kubelet.wait_registered(DRIVER, 60).health
    eventually(
        lambda: {report.state for report in health.reports.values()} == {"UNKNOWN"},
        "nothing is called healthy",
    )
    assert bed.device_names() == {"gpu-0", "gpu-1"}, "slices stay"
    bed.kubelet.unprepare(DRIVER, [claim])
    bed.node.state.clear()
    bed.wait_ready(bed.processes[0])
    eventually(
        lambda: {report.state for report in health.reports.values()} == {"HEALTHY"}, "healthy"
    )
