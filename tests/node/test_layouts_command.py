"""`dra-driver layout export` and `assert` on simulated nodes."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dra_driver.config import load_layouts
from dra_driver.simulator.node_file import NodeSpec
from tests.support.node import MakeNode, SimulatedNode

PROGRAM = Path(sys.executable).with_name("dra-driver")
SPEC = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb", "partitions": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]},
            {"model": "t4"},
            {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb"}, {"profile": "3g.40gb"}]},
        ]
    }
)


def run(node: SimulatedNode, *arguments: str) -> "subprocess.CompletedProcess[str]":
    root = [f"--nvidia-driver-root={node.root}", f"--host-root={node.root}"]
    return subprocess.run(
        [str(PROGRAM), "layout", *arguments, *root],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node(spec=SPEC)


def test_what_is_exported_is_read_and_is_so(node: SimulatedNode, tmp_path: Path) -> None:
    done = run(node, "export", "--name", "mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout) == {
        "version": "v1",
        "mig-configs": {
            "mine": [
                {
                    "devices": [0, 2],
                    "mig-enabled": True,
                    "mig-devices": {"1g.10gb": 1, "3g.40gb": 1},
                },
                {"devices": [1], "mig-enabled": False, "mig-devices": {}},
            ]
        },
    }
    assert list(load_layouts(done.stdout)) == ["mine"]
    file = tmp_path / "mine.yaml"
    file.write_text(done.stdout)
    done = run(node, "assert", str(file), "--layout=mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{file}: the GPUs have layout mine\n"
    node.state.unpartition(0, node.gpu(0)["instances"][0]["id"])
    done = run(node, "assert", str(file), "--layout=mine")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: GPU 0 (GPU-")
    assert line.endswith("has 1 x 1g.10gb, wanted 1 x 1g.10gb, 1 x 3g.40gb")
    assert run(node, "assert", str(file), "--layout=mine", "--mode-only").returncode == 0
    assert run(node, "assert", str(file), "--layout=mine", "--valid-config").returncode == 0


def test_gpus_that_are_alike_are_all(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    (entry,) = yaml.safe_load(run(node, "export").stdout)["mig-configs"]["current"]
    assert entry == {"devices": "all", "mig-enabled": False, "mig-devices": {}}


def test_what_a_gpu_can_not_have_is_a_finding(node: SimulatedNode, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(
        "version: v1\nmig-configs:\n  big:\n  - devices: [0]\n    mig-enabled: true\n"
        "    mig-devices: {7g.80gb: 2}\n"
    )
    done = run(node, "assert", str(file), "--layout=big", "--valid-config")
    assert (done.returncode, "has no room for 2 x 7g.80gb" in done.stderr) == (1, True)
    done = run(node, "assert", str(file), "--layout=all-disabled", "--mode-only")
    assert done.returncode == 1
    assert done.stderr.count("MIG mode is on, wanted off") == 2
    done = run(node, "assert", str(file), "--layout=nowhere")
    assert done.returncode == 1


@pytest.mark.parametrize("content", ["version: v1\nmig-configs: {a: [{}]}\n", "\xff: [", ""])
def test_a_wrong_file_is_a_finding_with_its_line(
    node: SimulatedNode, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(content, encoding="latin-1")
    done = run(node, "assert", str(file), "--layout=a")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {file}: ")
    assert done.stderr.count("\n") == 1


def test_what_can_not_be_told_is_named(make_node: MakeNode) -> None:
    node = make_node(gpus=1)
    node.state.set_mig_mode(0, on=True)
    node.state.partition(0, "1g.10gb", 0, compute_instance=False)
    done = run(node, "export")
    assert done.returncode == 1
    assert "has no compute instance that takes all of it" in done.stderr
    assert yaml.safe_load(done.stdout)["mig-configs"]["current"][0]["mig-devices"] == {}
