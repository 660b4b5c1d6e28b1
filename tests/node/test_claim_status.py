"""What was made for a claim stands in its status, and nobody waits for that."""

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed

FIRST, LAST, WHOLE = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-6", "gpu-1"
REQUEST_SECONDS = 10.0  # after which a request to the API server is given up
NIC = {"request": "nic", "driver": "net.example.com", "pool": "p", "device": "nic-0"}
NIC_STATUS = {
    **{key: NIC[key] for key in ("driver", "pool", "device")},
    "networkData": {"interfaceName": "eth7"},
}
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic}
"""
WRITES = r'^gpu_dra_driver_claim_status_writes_total\{result="(\w+)"\} (\d+)'


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return f"--config={path}"


@pytest.fixture
def bed(make_bed: MakeBed, config: str) -> NodeBed:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(config)
    return bed


def prepare(bed: NodeBed, ref: ClaimRef) -> float:
    """Prepare a claim; gives the seconds that the kubelet waited."""
    began = time.monotonic()
    bed.kubelet.prepare(DRIVER, [ref])
    return time.monotonic() - began


def stored(bed: NodeBed, name: str) -> dict[str, Any]:
    return bed.api.objects.get("resourceclaims", name)


def told(bed: NodeBed, name: str, driver: str = DRIVER) -> list[dict[str, Any]]:
    entries = stored(bed, name)["status"].get("devices", [])
    return [entry for entry in entries if entry["driver"] == driver]


def uuids(bed: NodeBed, name: str) -> list[str]:
    return [entry["data"]["uuid"] for entry in told(bed, name)]


def standing(bed: NodeBed) -> list[str]:
    """UUIDs of all partitions that the simulated hardware has."""
    return sorted(
        compute["uuid"]
        for instance in bed.node.gpu(0)["instances"]
        for compute in instance["computeInstances"]
    )


def writes(bed: NodeBed) -> dict[str, int]:
    """How often each result was counted, without those that never were."""
    found = re.findall(WRITES, bed.get("/metrics")[1], re.MULTILINE)
    return {result: int(times) for result, times in found if int(times)}


def test_a_partition_is_told_beside_what_others_tell(bed: NodeBed) -> None:
    ref = bed.claim("one", LAST, NIC)
    obj = stored(bed, "one")
    obj["status"]["devices"] = [NIC_STATUS]
    bed.api.objects.replace("resourceclaims", obj, part="status")
    bed.api.requests.clear()
    before = int(time.time())
    prepare(bed, ref)
    eventually(lambda: told(bed, "one"), "the partition is told")
    (entry,) = told(bed, "one")
    gpu = bed.node.gpu(0)
    (instance,) = gpu["instances"]
    (uuid,) = standing(bed)
    assert (entry["pool"], entry["device"]) == (NODE, LAST)
    assert entry["data"] == {
        "type": "mig",
        "uuid": uuid,
        "parentUUID": gpu["uuid"],
        "profile": "1g.10gb",
        "placement": {"start": 6, "size": 1},
        "gpuInstanceID": instance["id"],
        "computeInstanceID": instance["computeInstances"][0]["id"],
        "driverVersion": (bed.node.root / "sys/module/nvidia/version").read_text().strip(),
    }
    (condition,) = entry["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["reason"] == "Prepared"
    assert uuid in condition["message"]
    since = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    assert before <= since <= time.time()
    assert told(bed, "one", NIC["driver"]) == [NIC_STATUS]
    made = [(each.verb, each.resource) for each in bed.api.requests.all()]
    assert [each for each in made if each[1] == "resourceclaims"] == [
        ("get", "resourceclaims"),
        ("patch", "resourceclaims"),
    ]


def test_a_device_that_the_slices_describe_costs_one_request(bed: NodeBed) -> None:
    ref = bed.claim("whole", WHOLE)
    bed.api.requests.clear()
    prepare(bed, ref)
    prepare(bed, bed.claim("other", FIRST))
    eventually(lambda: told(bed, "other"), "the other claim's partition is told")
    claims = [each for each in bed.api.requests.all() if each.resource == "resourceclaims"]
    assert [each.verb for each in claims if "/whole" in each.url] == ["get"]
    assert told(bed, "whole") == []


def test_all_partitions_of_a_claim_are_told(bed: NodeBed) -> None:
    names = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(4)]
    ref = bed.claim("four", *names)
    prepare(bed, ref)
    eventually(lambda: len(told(bed, "four")) == 4, "all four are told")
    assert [entry["device"] for entry in told(bed, "four")] == names
    assert sorted(uuids(bed, "four")) == standing(bed)
    assert bed.api.requests.count("patch", "resourceclaims") == 1


def test_the_kubelet_does_not_wait_for_a_server_that_takes_no_status(bed: NodeBed) -> None:
    bed.api.faults.hang("patch", "/status", seconds=60)
    ref, other = bed.claim("one", LAST), bed.claim("two", FIRST)
    seconds = prepare(bed, ref)
    eventually(lambda: bed.api.requests.count("patch") == 1, "the status is on its way")
    seconds = max(seconds, prepare(bed, other))
    print(f"prepared after {seconds:.2f} s")
    assert seconds < REQUEST_SECONDS, "the request hangs until it is given up"
    bed.kubelet.unprepare(DRIVER, [other])
    bed.api.faults.clear()
    bed.api.end_watches()  # drops the connection that hangs
    eventually(lambda: told(bed, "one"), "the status is written in the end")
    assert told(bed, "two") == [], "nothing is told of a claim that was unprepared"


def test_a_missing_permission_costs_the_status_and_is_said_once(bed: NodeBed, config: str) -> None:
    bed.api.claims.drivers = set()
    refs = [bed.claim(f"c{start}", f"gpu-0-mig-1g10gb-19-{start}") for start in range(3)]
    for ref in refs:
        prepare(bed, ref)
    eventually(lambda: writes(bed) == {"forbidden": 3}, "each is refused once")
    (line,) = bed.processes[-1].lines("claims get no device status")
    assert "associated-node:patch" in line
    assert bed.get("/readyz")[0] == 200
    bed.kubelet.unprepare(DRIVER, [refs[0]])
    bed.processes[-1].stop()
    bed.api.claims.drivers = None
    bed.serve(config)
    eventually(lambda: told(bed, "c1") and told(bed, "c2"), "told after the next start")
    assert told(bed, "c0") == []


def test_a_status_that_a_killed_process_owed_is_written_by_the_next(
    bed: NodeBed, config: str
) -> None:
    bed.api.faults.fail("patch", "/status", status=503)
    prepare(bed, bed.claim("one", LAST))
    bed.processes[-1].kill()
    bed.api.faults.clear()
    assert told(bed, "one") == []
    bed.serve(config)
    eventually(lambda: uuids(bed, "one") == standing(bed), "the next process tells it")


def test_a_restart_changes_no_status(bed: NodeBed, config: str) -> None:
    ref = bed.claim("one", LAST)
    prepare(bed, ref)
    eventually(lambda: told(bed, "one"), "the partition is told")
    before = stored(bed, "one")
    prepare(bed, ref)
    bed.processes[-1].stop()
    bed.serve(config)
    eventually(lambda: writes(bed) == {"written": 1}, "the server has been asked")
    assert stored(bed, "one") == before


def test_a_partition_made_again_after_a_reboot_is_told_with_its_new_uuid(
    bed: NodeBed, config: str
) -> None:
    prepare(bed, bed.claim("one", LAST))
    eventually(lambda: told(bed, "one"), "the partition is told")
    (before,) = uuids(bed, "one")
    bed.processes[-1].kill()
    bed.node.state.reboot()
    bed.serve(config)
    eventually(lambda: standing(bed), "the partition is made again")
    eventually(lambda: uuids(bed, "one") == standing(bed), "what stands is told")
    print(f"{before} became {uuids(bed, 'one')[0]}")


def test_a_claim_that_is_deleted_at_once_leaves_no_trouble(bed: NodeBed) -> None:
    bed.api.faults.fail("patch", "/status", status=503, times=1)
    prepare(bed, bed.claim("short", LAST))
    bed.api.objects.delete("resourceclaims", "short")
    eventually(lambda: writes(bed).get("gone") == 1, "it is given up")
    assert bed.processes[-1].lines("refused") == []
