"""Field reports about sharing, played with the real plugin: B08, B24, B33, B34."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from dra_driver.allocation import Claim, DeviceClass, Slice, allocate
from dra_driver.allocation.expression import Subject, matches
from dra_driver.cli.shipped import device_classes
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.native_library import ALL_GPUS, error_number
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.state.sealed import sealed
from tests.support.api import wait_for
from tests.support.kubelet import DRIVER
from tests.support.mps_agent import MakeMpsBed, mps_config
from tests.support.plugin_process import NODE, MakeBed, NodeBed

QUICK = "--prepare-retry=10ms"
EXAMPLES = Path(__file__).parents[2] / "examples/resourceclaims"
MIXED = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]},
            {"model": "gb10"},  # its memory is the CPU's
            {"model": "p4"},
        ]
    }
)
SHARES = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {index: [0]}
  shares: {by: memory, reserve: 1Gi}
- match: {index: [3]}
  shares: {count: 4, rename: true}
"""


def opaque(kind: str, sharing: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}


def slicing(interval: str, kind: str = "GpuConfig") -> dict[str, Any]:
    body = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return opaque(kind, body)


def time_slices(bed: NodeBed) -> list[int]:
    return [gpu["timeslice"] for gpu in bed.node.show()["gpus"]]


def smi_calls(bed: NodeBed) -> list[str]:
    return [call["call"] for call in bed.node.state.calls() if "slice" in call["call"].lower()]


def selectors() -> Mapping[str, str]:
    """All that shipped classes and examples read of devices, by where it stands."""
    found: dict[str, str] = {}

    def collect(place: str, node: Any) -> None:
        if isinstance(node, dict):
            if "cel" in node:
                found[f"{place} {len(found)}"] = node["cel"]["expression"]
            for each in node.values():
                collect(place, each)
        elif isinstance(node, list):
            for each in node:
                collect(place, each)

    for device_class in device_classes():
        collect(device_class["metadata"]["name"], device_class)
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            collect(path.stem, document)
    return found


def test_b08_all_that_we_ship_answers_on_every_device_of_a_node_with_shares(
    make_bed: MakeBed, tmp_path: Path
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(SHARES)
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    assert len(bed.device_names()) == 4
    published = [device for obj in bed.slices() for device in Slice.parse(obj).devices]
    texts = selectors()
    attributes = [
        each["attributes"] for obj in bed.slices() for each in obj["spec"].get("devices", ())
    ]
    assert all("memoryLimit" in each for each in attributes), "on one, so on all"
    for place, text in texts.items():
        for device in published:
            assert matches(text, Subject(device)) in (True, False), place
    classes = list(map(DeviceClass.parse, device_classes()))
    for name in ("gpu.nvidia.com", "mig.nvidia.com"):
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": name}}]}}
        claim = Claim.parse({"metadata": {"name": "c"}, "spec": spec})
        outcome = allocate(NODE, [Slice.parse(obj) for obj in bed.slices()], classes, [claim], None)
        assert not getattr(outcome, "fatal", False), outcome


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (opaque("GpuConfig", {"strategy": "MPS", "mpsConfg": {}}), "mpsConfg"),
        (opaque("GpuConfig", {"strategy": 5}), r"sharing\.strategy"),
        (opaque("GpuConfigs", {"strategy": "MPS"}), "GpuConfigs"),
        ({**slicing("Long"), "apiVersion": "resource.nvidia.com/v1alpha1"}, "v1alpha1"),
    ],
)
def test_b24_what_a_user_writes_wrong_is_refused_and_leaves_nothing_to_give_up(
    make_bed: MakeBed, config: dict[str, Any], words: str
) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve(QUICK)
    ref = bed.claim("wrong", "gpu-0", config=[config])
    with pytest.raises(CallFailed, match=words):
        bed.kubelet.prepare(DRIVER, [ref])
    assert bed.claim_files() == set()
    bed.kubelet.unprepare(DRIVER, [ref])


@pytest.mark.parametrize(
    "stored",
    [
        {"strategy": "GreenContexts", "greenContexts": {"of": "a newer release"}},
        {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long", "burst": True}},
        {"strategy": ["MPS"]},
        "MPS",
    ],
)
def test_b24_what_another_release_has_stored_can_be_given_up(
    make_bed: MakeBed, stored: Any
) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve(QUICK)
    ref = bed.claim("old", "gpu-0", config=[slicing("Long")])
    bed.kubelet.prepare(DRIVER, [ref])
    assert bed.processes[-1].stop() == 0
    path = bed.data_folder / "claims" / f"{ref.uid}.json"
    content = json.loads(path.read_bytes().splitlines()[0])
    content["devices"][0]["sharing"] = stored
    path.write_bytes(sealed(json.dumps(content).encode()))
    bed.api.objects.delete("resourceclaims", "old", "default")  # its config is gone, too
    bed.serve(QUICK)
    bed.kubelet.unprepare(DRIVER, [ref])
    assert bed.claim_files() == set()
    assert time_slices(bed) == [0]
    bed.kubelet.prepare(DRIVER, [bed.claim("next", "gpu-0", config=[slicing("Short")])])
    assert time_slices(bed) == [1]


def test_b33_a_claim_without_a_wish_makes_no_call(make_bed: MakeBed) -> None:
    bed = make_bed(model="p4")
    bed.kubelet.start()
    bed.serve(QUICK)
    bed.node.state.fault(ALL_GPUS, "sim_set_timeslice", error_number("NOT_SUPPORTED"), times=0)
    ref = bed.claim("plain", "gpu-0")
    bed.kubelet.prepare(DRIVER, [ref])
    bed.kubelet.unprepare(DRIVER, [ref])
    assert smi_calls(bed) == []


def test_b33_of_two_gpus_the_one_that_can_is_put_back(make_bed: MakeBed) -> None:
    spec = NodeSpec.model_validate({"gpus": [{"model": "l40s"}, {"model": "p4"}]})
    bed = make_bed(spec=spec)
    bed.kubelet.start()
    bed.serve(QUICK)
    both = bed.claim("both", "gpu-0", "gpu-1", config=[slicing("Long")])
    uuid = bed.node.gpu(1)["uuid"]
    with pytest.raises(CallFailed, match=rf"Long of GPU {uuid} .*Not Supported"):
        bed.kubelet.prepare(DRIVER, [both])
    assert time_slices(bed) == [0, 0]
    assert bed.claim_files() == set()
    bed.kubelet.prepare(DRIVER, [bed.claim("default", "gpu-1", config=[slicing("Default")])])


def test_b33_a_partition_takes_the_setting_without_effect_and_says_so(make_bed: MakeBed) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    bed.serve(QUICK)
    (name,) = (each for each in bed.device_names() if "mig" in each)
    config = opaque("MigDeviceConfig", {"strategy": "TimeSlicing"})
    ref = bed.claim("part", name, config=[config])
    bed.kubelet.prepare(DRIVER, [ref])
    assert set(time_slices(bed)) == {0}
    wait_for(lambda: "ConfigWithoutEffect" in {e["reason"] for e in events(bed)}, "an Event")
    bed.kubelet.unprepare(DRIVER, [ref])
    assert bed.claim_files() == set()


def test_b33_without_the_right_to_set_it_the_claim_says_so(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve(QUICK)
    bed.node.state.fault(ALL_GPUS, "sim_set_timeslice", error_number("NO_PERMISSION"), times=0)
    ref = bed.claim("one", "gpu-0", config=[slicing("Long")])
    with pytest.raises(CallFailed, match=r"PermissionMissing: time-slice Long .*run the plugin as"):
        bed.kubelet.prepare(DRIVER, [ref])
    bed.node.state.clear()
    bed.kubelet.unprepare(DRIVER, [ref])
    bed.kubelet.prepare(DRIVER, [bed.claim("plain", "gpu-0")])


def test_b34_a_claim_that_was_deleted_by_force_leaves_no_daemon(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    refs = [bed.share(name, "gpu-0") for name in ("first", "second")]
    for ref in refs:
        bed.prepare(ref)
        bed.api.objects.delete("resourceclaims", ref.name, "default")
    bed.unprepare(refs[0])
    assert len(bed.daemons()) == 1
    bed.unprepare(refs[1])
    assert bed.leftovers() == []
    bed.prepare(bed.claim(f"next-{uuid4()}", "gpu-0", config=[mps_config()]))


def events(bed: NodeBed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bed.api.objects.select("events")
    return found
