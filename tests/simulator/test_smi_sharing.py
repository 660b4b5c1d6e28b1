"""nvidia-smi: time-slices and compute modes, who may set them and how long they hold."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.simulator.native_library import error_number
from tests.support.mps import MpsBed
from tests.support.node import SimulatedNode

NAMES = ("Default", "Short", "Medium", "Long")
Change = Callable[[SimulatedNode, str], tuple[int, str]]


def run(node: SimulatedNode, *arguments: str, user: int | None = None) -> tuple[int, str]:
    """Run nvidia-smi, as another user if one is given; gives exit code and output."""
    done = subprocess.run(
        [str(node.root / "usr/bin/nvidia-smi"), *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={}, user=user,
    )  # fmt: skip
    return done.returncode, done.stdout


def unprivileged(node: SimulatedNode, *arguments: str) -> tuple[int, str]:
    """Run nvidia-smi as somebody who may only read the state of the node."""
    state = Path(node.show()["stateFile"])
    if os.geteuid() == 0:
        return run(node, *arguments, user=65534)
    state.chmod(0o444)
    try:
        return run(node, *arguments)
    finally:
        state.chmod(0o644)


def set_slice(node: SimulatedNode, value: object) -> tuple[int, str]:
    uuid = node.gpu(0)["uuid"]
    return run(node, "compute-policy", "-i", uuid, f"--set-timeslice={value}")


def set_mode(node: SimulatedNode, mode: str) -> tuple[int, str]:
    return run(node, "-i", node.gpu(0)["uuid"], "-c", mode)


@pytest.mark.parametrize("value", range(4))
def test_each_interval(mps: MpsBed, value: int) -> None:
    node = mps.node(gpus=2)
    keeper = mps.attached(node)  # as long as somebody has the GPU open, it holds
    bus = node.gpu(0)["pci"].upper()
    code, out = set_slice(node, value)
    assert code == 0
    name = NAMES[value]
    assert out == f"Successfully set timeslice policy with value {name} for GPU 0000{bus}.\n"
    assert [gpu["timeslice"] for gpu in node.show()["gpus"]] == [value, 0]
    assert run(node, "compute-policy", "-l")[1].count(name) == (2 if value == 0 else 1)
    keeper.end()
    assert node.gpu(0)["open"] is False
    assert node.gpu(0)["timeslice"] == 0


@pytest.mark.parametrize("value", ["4", "-1", "short", ""])
def test_wrong_interval(mps: MpsBed, value: str) -> None:
    code, out = set_slice(mps.node(), value)
    assert code == 2
    assert "0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG" in out


@pytest.mark.parametrize("setting", ["computeMode", "timeslice"])
def test_settings_end_with_the_last_client_however_it_ends(mps: MpsBed, setting: str) -> None:
    node = mps.node()
    before = node.gpu(0)[setting]
    first, second = mps.attached(node), mps.attached(node)
    assert set_slice(node, 2)[0] == 0
    assert set_mode(node, "EXCLUSIVE_PROCESS")[0] == 0
    first.kill()
    assert node.gpu(0)[setting] != before
    second.kill()
    assert node.gpu(0)[setting] == before
    mps.attached(node)
    assert node.gpu(0)[setting] == before


@pytest.mark.parametrize("setting", ["computeMode", "timeslice"])
def test_persistence_mode_keeps_settings(mps: MpsBed, setting: str) -> None:
    node = mps.node()
    before = node.gpu(0)[setting]
    node.state.set_persistence(0, on=True)
    assert set_slice(node, 3)[0] == 0
    assert set_mode(node, "EXCLUSIVE_PROCESS")[0] == 0
    mps.attached(node).kill()
    assert node.gpu(0)[setting] != before
    node.state.set_persistence(0, on=False)
    assert node.gpu(0)[setting] == before


@pytest.mark.parametrize(
    ("model", "supported"), [("p4", False), ("t4", True), ("l40s", True), ("gb10", True)]
)
def test_models_without_time_slices(mps: MpsBed, model: str, supported: bool) -> None:  # noqa: FBT001
    node = mps.node(model=model)
    code, out = set_slice(node, 1)
    assert code == (0 if supported else 3)
    assert ("Not Supported" in out) is not supported


def test_partitioned_gpu_has_no_time_slices(mps: MpsBed) -> None:
    node = mps.node()
    node.state.set_mig_mode(0, on=True)
    assert set_slice(node, 1)[0] == 3
    assert set_mode(node, "EXCLUSIVE_PROCESS")[0] == 3  # modes belong to the partitions


def test_unprivileged_people_may_look_but_not_set(mps: MpsBed) -> None:
    node = mps.node()
    mps.attached(node)
    uuid = node.gpu(0)["uuid"]
    code, out = unprivileged(node, "compute-policy", "-i", uuid, "--set-timeslice=1")
    assert code == 4
    assert "Failed to set timeslice policy with value Short" in out
    assert "Insufficient Permissions" in out
    code, out = unprivileged(node, "-i", uuid, "-c", "EXCLUSIVE_PROCESS")
    assert (code, "Insufficient Permissions" in out) == (4, True)
    assert unprivileged(node, "compute-policy", "-l")[0] == 0
    assert (node.gpu(0)["timeslice"], node.gpu(0)["computeMode"]) == (0, "DEFAULT")


def test_one_of_two_gpus_fails(mps: MpsBed) -> None:
    """Of several GPUs those before the one that refuses are set."""
    node = mps.node()
    node.add_gpu("p4", seed="p")
    mps.attached(node)
    code, out = run(node, "compute-policy", "--set-timeslice=2")
    kinds = [gpu["model"] for gpu in node.show()["gpus"]]
    assert code == 3
    assert "Not Supported" in out
    expected = [2 if model == "h100-80gb" and kinds[0] == model else 0 for model in kinds]
    assert [gpu["timeslice"] for gpu in node.show()["gpus"]] == expected


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "TIMEOUT", "GPU_IS_LOST"])
@pytest.mark.parametrize(
    ("call", "change"), [("nvmlDeviceSetComputeMode", set_mode), ("sim_set_timeslice", set_slice)]
)
def test_injected_errors(mps: MpsBed, error: str, call: str, change: Change) -> None:
    node = mps.node()
    value = "DEFAULT" if change is set_mode else "0"
    node.state.fault(0, call, error_number(error), times=1)
    assert change(node, value)[0] == error_number(error)
    assert change(node, value)[0] == 0
