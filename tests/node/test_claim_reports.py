"""Field reports about claims, on the real process: B05, B15, B18, B20, B21, B22, B25, B32."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

PART = "gpu-1-mig-1g10gb-19-2"
MIXED = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 2}]},
        ]
    }
)


def device_paths(bed: NodeBed, claim: ClaimRef) -> list[str]:
    """Device nodes that the claim's CDI file gives to a container."""
    (path,) = bed.cdi_folder.glob(f"*claim_{claim.uid}.json")
    (device,) = json.loads(path.read_text())["devices"]
    return [node["path"] for node in device["containerEdits"]["deviceNodes"]]


def record_of(bed: NodeBed, claim: ClaimRef) -> dict[str, Any]:
    """What is on disk of a claim."""
    path = bed.data_folder / "claims" / f"{claim.uid}.json"
    record: dict[str, Any] = json.loads(path.read_text().splitlines()[0])
    return record


def test_b05_a_claim_stays_on_its_gpu_when_minors_are_swapped(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    plugin = bed.serve()
    mine, uuid = bed.claim("mine", "gpu-1"), bed.node.gpu(1)["uuid"]
    bed.kubelet.prepare(DRIVER, [mine])
    assert device_paths(bed, mine) == ["/dev/nvidia1"]
    plugin.kill()
    for gpu, minor in ((0, 7), (1, 0), (0, 1)):
        bed.node.set_minor(gpu, minor)
    assert {gpu["minor"]: gpu["uuid"] for gpu in bed.node.show()["gpus"]}[0] == uuid
    bed.serve()
    bed.kubelet.prepare(DRIVER, [mine])
    assert device_paths(bed, mine) == ["/dev/nvidia0"]
    other = bed.claim("other", "gpu-0")  # the name that the held GPU has now
    with pytest.raises(CallFailed, match=r"DeviceInUse.*still held by claim default/mine"):
        bed.kubelet.prepare(DRIVER, [other], 40)
    bed.kubelet.unprepare(DRIVER, [mine, other])
    assert bed.claim_files() == set()


def test_b05_a_claim_on_a_gpu_that_is_gone_is_refused_by_its_uuid(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    plugin = bed.serve()
    mine, uuid = bed.claim("mine", "gpu-0"), bed.node.gpu(0)["uuid"]
    bed.kubelet.prepare(DRIVER, [mine])
    plugin.kill()
    bed.node.remove_gpu(0)
    bed.node.set_minor(0, 0)  # the other card is /dev/nvidia0 and gpu-0 from now on
    bed.serve()
    with pytest.raises(CallFailed, match=f"DeviceNotFound: GPU {uuid}"):
        bed.kubelet.prepare(DRIVER, [mine])
    bed.kubelet.unprepare(DRIVER, [mine])
    assert bed.claim_files() == set()


def test_b15_a_reboot_costs_no_record_and_all_is_set_up_again(make_bed: MakeBed) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    plugin = bed.serve()
    whole, part = bed.claim("whole", "gpu-0"), bed.claim("part", PART)
    bed.kubelet.prepare(DRIVER, [whole, part])
    before = record_of(bed, part)["devices"][0]["uuid"]
    plugin.kill()
    bed.node.reboot()
    for path in bed.cdi_folder.iterdir():
        path.unlink()  # the folder is a tmpfs
    bed.serve()
    bed.kubelet.prepare(DRIVER, [whole])
    assert device_paths(bed, whole) == ["/dev/nvidia0"]
    with pytest.raises(CallFailed, match=f"DeviceNotFound: partition {PART}"):
        bed.kubelet.prepare(DRIVER, [part])
    bed.node.state.set_mig_mode(1, on=True)
    bed.node.state.partition(1, "1g.10gb", 2)
    bed.kubelet.prepare(DRIVER, [part])
    assert len(device_paths(bed, part)) == 3
    made = bed.node.gpu(1)["instances"][0]["computeInstances"][0]["uuid"]
    assert record_of(bed, part)["devices"][0]["uuid"] == made
    assert before.startswith("MIG-")
    bed.kubelet.unprepare(DRIVER, [whole, part])
    assert bed.claim_files() == set()


def test_b18_a_repeated_prepare_changes_nothing(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    plugin = bed.serve()
    mine = bed.claim("mine", "gpu-0")
    first = bed.kubelet.prepare(DRIVER, [mine])
    assert record_of(bed, mine)["phase"] == "prepared"
    (record,) = (bed.data_folder / "claims").glob("*.json")
    written = record.stat().st_mtime_ns
    assert bed.kubelet.prepare(DRIVER, [mine]) == first
    assert record.stat().st_mtime_ns == written, "its state never goes backwards"
    plugin.kill()
    bed.serve()
    with ThreadPoolExecutor(8) as kubelet:
        calls = [kubelet.submit(bed.kubelet.prepare, DRIVER, [mine]) for _ in range(8)]
        assert all(call.result() == first for call in calls)
    assert record.stat().st_mtime_ns == written
    bed.kubelet.unprepare(DRIVER, [mine])
    bed.kubelet.unprepare(DRIVER, [mine])
    assert bed.claim_files() == set()


@pytest.mark.parametrize("step", ["reserve", "cdi", "commit"])
@pytest.mark.parametrize("then", ["unprepare", "prepare"])
def test_b20_a_prepare_that_died_midway_leaves_nothing(
    make_bed: MakeBed, step: str, then: str
) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    plugin = bed.serve(environment={"DRA_DRIVER_FAILPOINT": f"after-prepare:{step}"})
    mine = bed.claim("mine", "gpu-0")
    with pytest.raises(CallFailed):
        bed.kubelet.prepare(DRIVER, [mine])
    assert plugin.wait() == -9
    assert bed.claim_files(), "it died midway"
    bed.serve()
    if then == "prepare":
        bed.kubelet.prepare(DRIVER, [mine])
        assert device_paths(bed, mine) == ["/dev/nvidia0"]
    bed.kubelet.unprepare(DRIVER, [mine])
    assert bed.claim_files() == set()
    bed.kubelet.prepare(DRIVER, [bed.claim("next", "gpu-0")])


def test_b21_a_second_claim_waits_until_the_first_is_unprepared(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    first, second = bed.claim("first", "gpu-0"), bed.claim("second", "gpu-0")
    bed.kubelet.prepare(DRIVER, [first])
    with ThreadPoolExecutor(1) as kubelet:
        waiting = kubelet.submit(bed.kubelet.prepare, DRIVER, [second])
        eventually(
            lambda: bed.processes[0].lines("prepare is tried again", "still held"),
            "the second claim is held back",
        )
        assert len(bed.claim_files()) == 2, "nothing of the second claim is there"
        bed.kubelet.unprepare(DRIVER, [first])
        assert set(waiting.result()) == {second.uid}
    bed.kubelet.unprepare(DRIVER, [second])
    assert bed.claim_files() == set()


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "foreign", "newer"])
def test_b22_a_damaged_record_stops_nothing_and_frees_nothing(
    make_bed: MakeBed, damage: str
) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    plugin = bed.serve("--prepare-retry=1s")
    mine, other = bed.claim("mine", "gpu-0"), bed.claim("other", "gpu-0")
    bed.kubelet.prepare(DRIVER, [mine])
    plugin.kill()
    (path,) = (bed.data_folder / "claims").glob("*.json")
    content = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "zeros": bytes(len(content)),
            "foreign": b'{"kind": "List"}\n',
            "newer": content.replace(b'"schema_number":1', b'"schema_number":9'),
        }[damage]
    )
    bed.serve("--prepare-retry=1s")
    with pytest.raises(CallFailed, match="DeviceInUse"):
        bed.kubelet.prepare(DRIVER, [other])
    bed.kubelet.prepare(DRIVER, [bed.claim("free", "gpu-1")])
    bed.kubelet.unprepare(DRIVER, [mine])
    bed.kubelet.prepare(DRIVER, [other])


def test_b25_a_late_retry_takes_nothing_after_unprepare(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    mine = bed.claim("mine", "gpu-0")
    bed.api.faults.hang("get", f"resourceclaims/{mine.name}", seconds=4, times=1)
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        bed.kubelet.prepare(DRIVER, [mine], 0.5)
    bed.kubelet.unprepare(DRIVER, [mine])
    eventually(
        lambda: (
            bed.processes[0].lines("call failed", "Cancelled")
            or bed.processes[0].lines("gave up its call")
        ),
        "the late call has ended",
    )
    assert bed.claim_files() == set()
    bed.kubelet.prepare(DRIVER, [mine])


def test_b32_unprepare_works_without_gpu_driver_and_prepare_says_why_not(
    make_bed: MakeBed,
) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    plugin = bed.serve("--prepare-retry=1s")
    whole, part = bed.claim("whole", "gpu-0"), bed.claim("part", PART)
    bed.kubelet.prepare(DRIVER, [whole, part])
    plugin.kill()
    library = bed.node.library
    library.rename(library.with_name("away"))
    bed.serve("--prepare-retry=1s", wait=False)
    late, told = bed.claim("late", "gpu-0"), list[str]()

    def is_refused() -> bool:
        """Ask until the kubelet has dropped the killed plugin for the new one."""
        with pytest.raises(CallFailed) as refused:
            bed.kubelet.prepare(DRIVER, [late])
        told.append(str(refused.value))
        return "DriverNotReady" in told[-1]

    eventually(is_refused, "the plugin answers without a GPU driver")
    assert "libnvidia-ml" in told[-1]
    bed.kubelet.unprepare(DRIVER, [whole, part])
    assert bed.claim_files() == set()
    library.with_name("away").rename(library)
    eventually(lambda: bed.get("/readyz")[0] == 200, "ready when the GPU driver is back")
    bed.kubelet.prepare(DRIVER, [whole])
