"""`dra-driver devices` and `prepared` on a node that is at work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed

PROGRAM = Path(sys.executable).with_name("dra-driver")
SPEC = NodeSpec(
    gpus=(
        GpuSpec(model="h100-80gb"),
        GpuSpec(model="h100-80gb", partitions=(PartitionSpec(profile="1g.10gb", start=0),)),
    )
)
PARTITION = "gpu-1-mig-1g10gb-19-0"


def run(bed: NodeBed, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    flags = [
        f"--cdi-root={bed.cdi_folder}",
        f"--kubelet-plugins-directory-path={bed.folder / 'plugins'}",
    ]
    if command == "devices":
        flags += [f"--nvidia-driver-root={bed.node.root}", f"--host-root={bed.node.root}"]
    return subprocess.run(
        [str(PROGRAM), command, *flags, *arguments],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def document(bed: NodeBed, command: str, status: int = 0) -> Any:
    done = run(bed, command, "-o", "json")
    assert done.returncode == status, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def bed(make_bed: MakeBed) -> NodeBed:
    bed = make_bed(spec=SPEC)
    bed.kubelet.start()
    bed.serve()
    return bed


def test_devices_and_claims_of_a_node_at_work(bed: NodeBed) -> None:
    one, two = bed.claim("one", "gpu-0"), bed.claim("two", PARTITION)
    bed.kubelet.prepare(DRIVER, [one, two])
    shown = document(bed, "devices")
    gpu, partition = shown["devices"]
    truth = bed.node.show()["gpus"]
    assert gpu == {
        "name": "gpu-0",
        "type": "gpu",
        "model": "NVIDIA H100 80GB HBM3",
        "memory": "81559Mi",
        "uuid": truth[0]["uuid"],
        "health": "healthy",
        "message": None,
        "claims": ["default/one"],
        "pciBusID": truth[0]["pci"],
        "numaNode": truth[0]["numaNode"],
        "architecture": "Hopper",
        "isolation": "alone",
    }
    assert (partition["name"], partition["type"], partition["model"]) == (
        PARTITION,
        "mig",
        "1g.10gb",
    )
    assert partition["claims"] == ["default/two"]
    assert shown["problems"] == []
    claims = document(bed, "prepared")["claims"]
    assert [(each["name"], each["uid"], each["phase"]) for each in claims] == [
        ("one", one.uid, "prepared"),
        ("two", two.uid, "prepared"),
    ]
    assert claims[1]["cdiFile"] is True
    assert claims[1]["devices"][0]["cdiDeviceIDs"][0] == (
        f"k8s.gpu.nvidia.com/claim={two.uid}-{PARTITION}"
    )
    assert claims[1]["devices"][0]["pool"] == NODE
    bed.kubelet.unprepare(DRIVER, [one, two])
    assert [each["claims"] for each in document(bed, "devices")["devices"]] == [[], []]
    assert document(bed, "prepared") == {"claims": [], "damaged": []}


def test_tables_are_for_people_and_yaml_is_the_json(bed: NodeBed) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("one", "gpu-0")])
    head, first, _ = run(bed, "devices").stdout.splitlines()
    assert head.split() == ["NAME", "TYPE", "MODEL", "MEMORY", "UUID", "HEALTH", "CLAIMS"]
    assert first.startswith("gpu-0")
    assert first.endswith("healthy   default/one")
    wide = run(bed, "devices", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[-2:] == ["ISOLATION", "WHY"]
    assert [line.split()[-2] for line in wide[1:]] == ["alone", "partition"]
    ways = json.loads(run(bed, "devices", "--isolation", "-o", "json").stdout)["ways"]
    assert {"alone", "partition"} < {way["key"] for way in ways}
    head, first = run(bed, "prepared").stdout.splitlines()
    assert head.split() == ["NAMESPACE", "NAME", "UID", "PHASE", "DEVICES"]
    assert "k8s.gpu.nvidia.com/driver=common" in run(bed, "prepared", "-o", "wide").stdout
    for command in ("devices", "prepared"):
        assert yaml.safe_load(run(bed, command, "-o", "yaml").stdout) == document(bed, command)


def test_health_is_the_plugins_word(bed: NodeBed) -> None:
    """A look at the hardware does not show an XID that came and went."""
    bed.node.state.xid(0, 48)

    def unhealthy() -> bool:
        done = run(bed, "devices", "-o", "json")
        return bool(json.loads(done.stdout)["devices"][0]["health"] == "unhealthy")

    eventually(unhealthy, "the device is shown as unhealthy")
    done = run(bed, "devices")
    assert done.returncode == 1
    assert "gpu-0: XID 48" in done.stdout


def test_what_is_held_and_missing_is_shown(bed: NodeBed) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("two", PARTITION)])
    bed.node.state.unpartition(1, bed.node.show()["gpus"][1]["instances"][0]["id"])
    missing = document(bed, "devices", status=1)["devices"][-1]
    assert (missing["name"], missing["health"]) == (PARTITION, "missing")
    assert missing["claims"] == ["default/two"]


def test_records_are_shown_without_plugin_and_without_a_gpu_driver(bed: NodeBed) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("one", "gpu-0")])
    assert bed.processes[0].stop() == 0
    before = {path: path.stat().st_mtime_ns for path in bed.data_folder.rglob("*")}
    assert document(bed, "devices")["devices"][0]["claims"] == ["default/one"]
    shutil.rmtree(bed.node.root / "usr")
    assert document(bed, "prepared")["claims"][0]["name"] == "one"
    assert {path: path.stat().st_mtime_ns for path in bed.data_folder.rglob("*")} == before
    done = run(bed, "devices")
    assert done.returncode == 3
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_findings_have_an_exit_code(bed: NodeBed) -> None:
    one = bed.claim("one", "gpu-0")
    bed.kubelet.prepare(DRIVER, [one])
    assert bed.processes[0].stop() == 0
    (file,) = bed.cdi_folder.glob("*claim_*")
    file.unlink()
    done = run(bed, "prepared")
    assert done.returncode == 1
    assert "default/one has no CDI file" in done.stdout
    (bed.data_folder / "claims" / f"{one.uid}.json").write_text("rubbish")
    shown = document(bed, "prepared", status=1)
    assert shown["claims"] == []
    assert shown["damaged"][0]["uid"] == one.uid


def test_a_node_without_the_plugin_is_told_apart_from_one_without_claims(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(PROGRAM), "prepared", f"--kubelet-plugins-directory-path={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert "the plugin has not run on this node yet" in done.stderr
