"""`dra-driver devices --config` on a node whose partitions are made on request."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.node_file import GpuSpec, NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

PROGRAM = Path(sys.executable).with_name("dra-driver")
LAST, BIG = "gpu-0-mig-1g10gb-19-6", "gpu-1-mig-3g40gb-9-4"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- match: {index: [0, 1, 2]}
  partitioning: {mode: Dynamic}
"""
SPEC = NodeSpec(gpus=(GpuSpec(model="h100-80gb", count=2), GpuSpec(model="l40s")))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def bed(make_bed: MakeBed, config: Path) -> NodeBed:
    bed = make_bed(spec=SPEC)
    bed.kubelet.start()
    bed.serve(f"--config={config}")
    return bed


def run(bed: NodeBed, *arguments: str) -> "subprocess.CompletedProcess[str]":
    flags = [
        f"--cdi-root={bed.cdi_folder}",
        f"--kubelet-plugins-directory-path={bed.folder / 'plugins'}",
        f"--nvidia-driver-root={bed.node.root}",
        f"--host-root={bed.node.root}",
    ]
    return subprocess.run(
        [str(PROGRAM), "devices", *flags, *arguments],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def lines(bed: NodeBed, config: Path, *, status: int = 0) -> dict[str, dict[str, Any]]:
    done = run(bed, f"--config={config}", "-o", "json")
    assert done.returncode == status, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["devices"]}


def table(bed: NodeBed, config: Path, *arguments: str) -> list[str]:
    done = run(bed, f"--config={config}", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def states(found: dict[str, dict[str, Any]], gpu: str) -> Counter[str]:
    return Counter(each["state"] for name, each in found.items() if name.startswith(f"{gpu}-mig-"))


def test_a_table_shows_gpus_and_what_exists_of_their_partitions(bed: NodeBed, config: Path) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("one", LAST), bed.claim("big", BIG)])
    head, *rows = table(bed, config)
    assert head.split() == ["NAME", "TYPE", "MODEL", "MEMORY", "UUID", "HEALTH", "MODE", "CLAIMS"]
    assert [row.split()[0] for row in rows] == ["gpu-0", LAST, "gpu-1", BIG, "gpu-2"]
    assert [row.split()[-2:] for row in rows] == [
        ["Dynamic", "-"],
        ["Dynamic", "default/one"],
        ["Dynamic", "-"],
        ["Dynamic", "default/big"],
        ["Existing", "-"],
    ]
    assert "MIG-" in rows[1]
    wide = table(bed, config, "-o", "wide")
    assert "CAN BE MADE" in wide[0]
    assert (
        "6 x 1g.10gb, 1 x 1g.10gb+me, 3 x 1g.20gb, 3 x 2g.20gb, 1 x 3g.40gb, 1 x 4g.40gb"
        in (wide[1])
    )
    assert "7g.80gb" not in wide[1]


def test_json_has_all_that_can_be_made_and_what_has_become_of_it(
    bed: NodeBed, config: Path
) -> None:
    before = lines(bed, config)
    assert set(before) == bed.device_names()
    assert {each["state"] for each in before.values()} == {"free"}
    assert before["gpu-0"]["mode"] == "Dynamic"
    assert before["gpu-0"]["canBeMade"]["1g.10gb"] == 7
    assert before["gpu-0"]["canBeMade"]["7g.80gb"] == 1
    assert before["gpu-2"]["mode"] == "Existing"
    assert "canBeMade" not in before["gpu-2"]
    ref = bed.claim("one", LAST)
    bed.kubelet.prepare(DRIVER, [ref])
    found = lines(bed, config)
    assert set(found) == set(before)
    assert found[LAST]["state"] == "prepared"
    assert found[LAST]["claims"] == ["default/one"]
    assert found["gpu-0"]["state"] == "blocked"
    assert found["gpu-0-mig-3g40gb-9-4"]["state"] == "blocked"
    assert found["gpu-0-mig-3g40gb-9-0"]["state"] == "free"
    assert states(found, "gpu-0")["prepared"] == 1
    assert states(found, "gpu-1") == {"free": 25}
    bed.kubelet.unprepare(DRIVER, [ref])
    whole = bed.claim("whole", "gpu-0")
    bed.kubelet.prepare(DRIVER, [whole])
    found = lines(bed, config)
    assert found["gpu-0"]["state"] == "prepared"
    assert found["gpu-0"]["canBeMade"] == {}
    assert states(found, "gpu-0") == {"blocked": 25}


def test_partitions_of_others_are_told_apart(bed: NodeBed, config: Path) -> None:
    bed.node.state.set_mig_mode(0, on=True)
    bed.node.state.partition(0, "3g.40gb", 4)
    name = "gpu-0-mig-3g40gb-9-4"
    eventually(lambda: name not in bed.device_names(), "the plugin has withdrawn it")
    bed.kubelet.prepare(DRIVER, [bed.claim("one", "gpu-0-mig-1g10gb-19-0")])
    found = lines(bed, config)
    assert (found[name]["state"], found[name]["claims"]) == ("foreign", [])
    assert found["gpu-0"]["state"] == "blocked"
    assert found["gpu-0"]["canBeMade"]["1g.10gb"] == 3
    assert "3g.40gb" not in found["gpu-0"]["canBeMade"]
    assert found["gpu-0-mig-1g10gb-19-0"]["state"] == "prepared"
    assert LAST not in found
    (row,) = [row for row in table(bed, config) if row.startswith(name)]
    assert row.endswith("foreign: not made by this driver")


def test_a_promised_partition_that_is_gone_is_a_finding(bed: NodeBed, config: Path) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("one", LAST)])
    bed.processes[0].kill()
    bed.node.state.reboot()
    found = lines(bed, config, status=1)
    assert (found[LAST]["health"], found[LAST]["state"]) == ("missing", "prepared")
    assert LAST in run(bed, f"--config={config}").stdout


def test_without_configuration_nothing_is_said_of_modes(bed: NodeBed) -> None:
    bed.kubelet.prepare(DRIVER, [bed.claim("one", LAST)])
    done = run(bed, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["devices"]
    assert [each["name"] for each in found] == [LAST, "gpu-1", "gpu-2"]
    assert not any("mode" in each or "state" in each for each in found)
    assert " MODE " not in run(bed, "-o", "wide").stdout


def test_a_wrong_configuration_is_explained_in_a_line(bed: NodeBed, config: Path) -> None:
    config.write_text(CONFIG.replace("Dynamic", "dynamic"))
    done = run(bed, f"--config={config}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {config}: line 6: rules[0].partitioning.mode")
    assert done.stderr.count("\n") == 1
    config.write_text(CONFIG.replace("index: [0, 1, 2]", "nodeLabels: {pool: train}"))
    assert "Dynamic" not in run(bed, f"--config={config}").stdout
    assert "Dynamic" in run(bed, f"--config={config}", "--node-label=pool=train").stdout
