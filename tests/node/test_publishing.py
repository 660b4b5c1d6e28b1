"""What the real plugin publishes of a simulated node, and how it keeps it that way."""

import time
from typing import Any

import yaml

from dra_driver.allocation import DeviceClass, Slice
from dra_driver.allocation.expression import Subject, matches
from dra_driver.simulator.api_server import ApiError
from dra_driver.simulator.node_file import NodeSpec
from tests.support.api import wait_for
from tests.support.plugin_process import NODE, MakeBed, NodeBed
from tests.unit.slices.test_devices import CLASSES

MIXED = """
driverVersion: 550.127.08
gpus:
- model: h100-80gb
- model: h100-80gb
  partitions:
  - {profile: 1g.10gb, start: 0}
  - {profile: 1g.10gb, start: 1, computeInstance: false}
  - {profile: 3g.40gb, start: 4}
- model: gb10
- model: l40s
- model: p4
"""
PROMISED_REPAIR = 5.0  # seconds


def spec(text: str) -> NodeSpec:
    return NodeSpec.model_validate(yaml.safe_load(text))


def devices(bed: NodeBed) -> dict[str, dict[str, Any]]:
    return {
        device["name"]: device for obj in bed.slices() for device in obj["spec"].get("devices", [])
    }


def test_b06_b08_a_mixed_node_is_published_as_the_classes_need_it(make_bed: MakeBed) -> None:
    bed = make_bed(spec=spec(MIXED))
    bed.kubelet.start()
    bed.serve()
    found = devices(bed)
    assert set(found) == {
        "gpu-0",
        "gpu-1-mig-1g10gb-19-0",
        "gpu-1-mig-3g40gb-9-4",
        "gpu-2",
        "gpu-3",
        "gpu-4",
    }
    for device in found.values():
        assert device["attributes"]["driverVersion"] == {"version": "550.127.8"}
        assert device["attributes"]["driverVersionText"] == {"string": "550.127.08"}
    assert "memory" not in found["gpu-2"].get("capacity", {})
    assert found["gpu-2"]["attributes"]["memoryType"] == {"string": "unified"}
    assert found["gpu-0"]["capacity"]["memory"] == {"value": "81559Mi"}
    published = [device for obj in bed.slices() for device in Slice.parse(obj).devices]
    matching: dict[str, set[str]] = {}
    for path in sorted(CLASSES.glob("*.yaml")):
        for device_class in map(DeviceClass.parse, yaml.safe_load_all(path.read_text())):
            matching[device_class.name] = {
                device.id.device
                for device in published
                if all(matches(text, Subject(device)) for text in device_class.selectors)
            }
    assert matching["gpu.nvidia.com"] == {"gpu-0", "gpu-2", "gpu-3", "gpu-4"}
    assert matching["mig.nvidia.com"] == set(found) - matching["gpu.nvidia.com"]
    assert matching["mig-1g.10gb.gpu.nvidia.com"] == {"gpu-1-mig-1g10gb-19-0"}


def test_slices_that_others_touch_are_repaired_in_time(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=8)
    bed.kubelet.start()
    bed.serve()
    (obj,) = bed.slices()
    bed.api.objects.delete("resourceslices", obj["metadata"]["name"])
    deleted = wait_for(lambda: len(devices(bed)) == 8, "repair after a delete")
    (obj,) = bed.slices()
    obj["spec"]["devices"] = obj["spec"]["devices"][:2]
    bed.api.objects.replace("resourceslices", obj)
    changed = wait_for(lambda: len(devices(bed)) == 8, "repair after a change")
    print(f"promised: {PROMISED_REPAIR} s; deleted: {deleted:.2f} s, changed: {changed:.2f} s")


def test_an_idle_node_writes_nothing(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve("--poll-interval=100ms")
    bed.api.requests.clear()
    time.sleep(2)  # twenty looks at the hardware
    bed.node.add_gpu("h100-80gb")
    wait_for(lambda: len(devices(bed)) == 3, "the marker: a GPU was added")
    (write,) = bed.api.requests.writes()
    assert (write.verb, write.status) == ("update", 200)


def test_hardware_changes_while_the_api_server_is_away(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve("--poll-interval=100ms")
    bed.api.stop()
    bed.node.add_gpu("h100-80gb")

    def told() -> bool:
        status, text = bed.get("/readyz")
        return status == 503 and "API server does not answer" in text

    wait_for(told, "/readyz says why")
    assert bed.get("/healthz") == (200, "ok\n")
    bed.api.start()
    wait_for(lambda: len(devices(bed)) == 3, "published after the API server is back")
    bed.wait_ready(bed.processes[0])


def test_a_plugin_killed_while_it_publishes_leaves_no_mess(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.api.faults.hang("create", r"resourceslices$", seconds=0.5, times=1)
    process = bed.serve(wait=False)
    wait_for(
        lambda: [each for each in bed.api.requests.writes() if each.verb == "create"],
        "in the middle of its first write",
    )
    process.kill()
    bed.serve()
    (obj,) = bed.slices()
    assert set(devices(bed)) == {"gpu-0", "gpu-1"}
    assert obj["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}


def test_b06_a_device_that_the_server_refuses_does_not_hide_the_others(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=3)
    admit = bed.api.slices

    def policy(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        if any(device["name"] == "gpu-1" for device in new["spec"].get("devices", [])):
            raise ApiError(422, "Invalid", "a policy of this cluster says no")
        return admit(new, old)

    bed.api.objects.admit_with({"resourceslices": policy})
    bed.kubelet.start()
    bed.serve()
    assert set(devices(bed)) == {"gpu-0", "gpu-2"}
    wait_for(lambda: bed.api.objects.select("events"), "an Event on the Node")
    (event,) = bed.api.objects.select("events")
    assert event["reason"] == "DeviceNotPublished"
    assert event["involvedObject"]["name"] == NODE
    assert "gpu-1" in event["message"]
    assert "a policy of this cluster says no" in event["message"]


def test_b27_only_our_own_results_are_prepared(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("mixed", "gpu-1")
    obj = bed.api.objects.get("resourceclaims", "mixed")
    allocation = obj["status"]["allocation"]["devices"]
    foreign = {"driver": "other.example.com", "pool": NODE}
    allocation["results"] += [
        {"request": "theirs", "device": "gpu-0-mig-1g10gb-19-0", **foreign},
        {"request": "elsewhere", "device": "gpu-0", "driver": "gpu.nvidia.com", "pool": "node-b"},
    ]
    allocation["config"] = [
        {"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": {"a": 1}}}
    ]
    bed.api.objects.replace("resourceclaims", obj, part="status")
    (device,) = bed.kubelet.prepare("gpu.nvidia.com", [claim])[claim.uid]
    assert device.name == "gpu-1"
    bed.kubelet.unprepare("gpu.nvidia.com", [claim])
    assert bed.claim_files() == set()


def test_b27_a_claim_with_none_of_our_devices_succeeds_with_none(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("foreign", "gpu-0")
    obj = bed.api.objects.get("resourceclaims", "foreign")
    obj["status"]["allocation"]["devices"]["results"][0]["driver"] = "other.example.com"
    bed.api.objects.replace("resourceclaims", obj, part="status")
    assert list(bed.kubelet.prepare("gpu.nvidia.com", [claim])[claim.uid]) == []
    bed.kubelet.unprepare("gpu.nvidia.com", [claim])
    assert bed.claim_files() == set()
