"""Reset, reboot, driver reload and upgrade: what survives them."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, expect, load


def mig(node: SimulatedNode, gpu: int = 0) -> tuple[bool, bool]:
    shown = node.gpu(gpu)["mig"]
    return shown["current"], shown["pending"]


def busy(node: SimulatedNode) -> None:
    """Put something on GPU 1 of everything that a reboot takes away."""
    node.state.set_mig_mode(0, on=True)
    node.state.reset(0)
    node.state.partition(0, "19")
    node.state.process(1, 9, 1 << 30)
    node.state.set_persistence(1, on=True)
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    pynvml.nvmlDeviceSetComputeMode(device, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    pynvml._nvmlCheckReturn(pynvml.nvmlLib.sim_set_timeslice(device, 1))


def volatile(node: SimulatedNode) -> dict[str, Any]:
    first, second = node.gpu(0), node.gpu(1)
    names = ("processes", "persistence", "computeMode", "timeslice")
    return {"instances": first["instances"], **{name: second[name] for name in names}}


NOTHING = {
    "instances": [],
    "processes": [],
    "persistence": False,
    "computeMode": "DEFAULT",
    "timeslice": 0,
}


@pytest.mark.parametrize(
    ("model", "mode_survives"), [("a100-40gb", True), ("h100-80gb", False), ("b200", False)]
)
@pytest.mark.parametrize("event", ["reboot", "driver_reload"])
def test_what_goes_and_what_stays(
    make_node: MakeNode, use_nvml: UseNvml, event: str, model: str, *, mode_survives: bool
) -> None:
    node = make_node(model=model, gpus=2)
    use_nvml(node)
    busy(node)
    boot_id, uuids = node.state.boot_id(), [gpu["uuid"] for gpu in node.show()["gpus"]]
    assert volatile(node)["computeMode"] == "PROHIBITED"
    assert volatile(node)["timeslice"] == 1
    getattr(node.state, event)()
    assert volatile(node) == NOTHING
    assert mig(node) == (mode_survives, mode_survives)
    assert (node.state.boot_id() != boot_id) == (event == "reboot")
    assert [gpu["uuid"] for gpu in node.show()["gpus"]] == uuids


@pytest.mark.parametrize("event", ["reset", "reboot"])
def test_pending_mode_of_ampere(make_node: MakeNode, use_nvml: UseNvml, event: str) -> None:
    node = make_node(model="a100-40gb")
    use_nvml(node)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(device) == [0, 1]
    node.state.reset(0) if event == "reset" else node.state.reboot()
    assert mig(node) == (True, True)
    assert node.state.partition(0, "7g.40gb") == 0


def test_hopper_switches_at_once(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]


def test_clients_must_initialise_again(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    nvml_node.state.reboot()
    expect("DRIVER_NOT_LOADED", pynvml.nvmlDeviceGetUUID, device)
    expect("DRIVER_NOT_LOADED", pynvml.nvmlDeviceGetCount)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(device) == nvml_node.gpu(0)["uuid"]


def test_upgrade_needs_the_new_library(nvml_node: SimulatedNode) -> None:
    nvml_node.set_driver_version("590.44.01")
    expect("LIB_RM_VERSION_MISMATCH", pynvml.nvmlDeviceGetCount)
    pynvml.nvmlShutdown()
    expect("LIB_RM_VERSION_MISMATCH", pynvml.nvmlInit)
    load(nvml_node.library)
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "590.44.01"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13010
    assert Path(nvml_node.show()["stateFile"]).name == "libnvidia-simstate.so.590.44.01"


def test_upgrade_keeps_the_state_of_who_has_it_mapped(nvml_node: SimulatedNode) -> None:
    before = Path(nvml_node.show()["stateFile"]).stat().st_ino
    nvml_node.set_driver_version("590.44.01")
    assert Path(nvml_node.show()["stateFile"]).stat().st_ino == before
    with SimulatedNode(nvml_node.root) as other:
        other.state.lose(1)
    assert nvml_node.gpu(1)["lost"] is True


def test_lost_gpu_comes_back_empty(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    nvml_node.state.process(0, 9, 1 << 30)
    nvml_node.state.lose(0)
    expect("GPU_IS_LOST", pynvml.nvmlDeviceGetName, device)
    assert pynvml.nvmlDeviceGetCount() == 2
    nvml_node.state.restore(0)
    assert pynvml.nvmlDeviceGetName(device)
    assert nvml_node.gpu(0)["processes"] == []


def test_gpu_added_and_removed_while_in_use(nvml_node: SimulatedNode) -> None:
    second = pynvml.nvmlDeviceGetHandleByIndex(1)
    uuid = pynvml.nvmlDeviceGetUUID(second)
    nvml_node.add_gpu("l40s")
    assert pynvml.nvmlDeviceGetCount() == 3
    nvml_node.remove_gpu(nvml_node.state.find_gpu(uuid))
    assert pynvml.nvmlDeviceGetCount() == 2
    expect("INVALID_ARGUMENT", pynvml.nvmlDeviceGetUUID, second)


def test_minors_can_be_swapped(nvml_node: SimulatedNode) -> None:
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    nvml_node.set_minor(0, 1)
    assert [pynvml.nvmlDeviceGetMinorNumber(device) for device in devices] == [1, 0]
