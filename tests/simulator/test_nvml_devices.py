"""What NVML says of the devices of each model, through pynvml alone."""

import ctypes
import re
from typing import Any

import pynvml
import pytest

from dra_driver.simulator import models
from dra_driver.simulator.identities import identity
from dra_driver.simulator.models import GpuModel
from dra_driver.simulator.node_file import NodeSpec
from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, expect

MODELS = sorted(models.MODELS)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> GpuModel:
    return models.model(request.param)


def test_identity(model: GpuModel, make_node: MakeNode, use_nvml: UseNvml) -> None:
    node = make_node(model=model.key, gpus=2)
    use_nvml(node)
    assert pynvml.nvmlDeviceGetCount() == 2
    for index in range(2):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        shown = node.gpu(index)
        assert pynvml.nvmlDeviceGetIndex(device) == index
        assert pynvml.nvmlDeviceGetName(device) == model.name
        assert pynvml.nvmlDeviceGetUUID(device) == shown["uuid"]
        assert pynvml.nvmlDeviceGetMinorNumber(device) == shown["minor"]
        assert pynvml.nvmlDeviceGetSerial(device) == shown["serial"]
        assert pynvml.nvmlDeviceGetBrand(device) == model.brand
        assert pynvml.nvmlDeviceGetArchitecture(device) == model.architecture
        assert pynvml.nvmlDeviceGetVbiosVersion(device) == model.vbios
        capability = (model.compute_major, model.compute_minor)
        assert tuple(pynvml.nvmlDeviceGetCudaComputeCapability(device)) == capability


def test_pci_address(model: GpuModel, make_node: MakeNode, use_nvml: UseNvml) -> None:
    node = make_node(model=model.key)
    use_nvml(node)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    domain, rest = node.gpu(0)["pci"].split(":", 1)
    assert pci.busId == f"0000{domain}:{rest}".upper()
    assert pci.busIdLegacy == f"{domain}:{rest}".upper()
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (model.pci_device_id, model.pci_subsystem_id)
    for text in (pci.busId, pci.busId.lower(), pci.busIdLegacy, node.gpu(0)["pci"]):
        again = pynvml.nvmlDeviceGetHandleByPciBusId(text)
        assert pynvml.nvmlDeviceGetUUID(again) == node.gpu(0)["uuid"]


def test_memory(model: GpuModel, make_node: MakeNode, use_nvml: UseNvml) -> None:
    node = make_node(model=model.key)
    use_nvml(node)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    if not model.abilities & models.MEMORY_INFO:
        expect("NOT_SUPPORTED", pynvml.nvmlDeviceGetMemoryInfo, device)
        return
    node.state.process(0, 77, 3 << 30, sm_percent=40)
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    assert (first.total, second.total) == (model.memory_bytes, model.memory_bytes)
    assert (first.used, second.used) == (model.reserved_bytes + (3 << 30), 3 << 30)
    assert first.free == second.free == first.total - first.used
    assert second.reserved == model.reserved_bytes


def test_h100_memory_is_the_real_one(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 81559 << 20
    assert nvml_node.gpu(0)["memoryBytes"] == 81559 << 20


def test_wrong_structure_version(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    expect("ARGUMENT_VERSION_MISMATCH", pynvml.nvmlDeviceGetMemoryInfo, device, 7)


def test_texts_need_room(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    short = ctypes.create_string_buffer(10)
    function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetUUID")
    assert function(device, short, 10) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    exact = ctypes.create_string_buffer(41)
    assert function(device, exact, 41) == pynvml.NVML_SUCCESS
    assert re.fullmatch(r"GPU-[0-9a-f-]{36}", exact.value.decode())


def test_versions(nvml_node: SimulatedNode) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.95.05"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000


def test_processes_and_utilisation(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
    nvml_node.state.process(0, 10, 1 << 30, sm_percent=30)
    nvml_node.state.process(0, 11, 2 << 30, sm_percent=20)
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert {(p.pid, p.usedGpuMemory) for p in found} == {(10, 1 << 30), (11, 2 << 30)}
    assert {p.gpuInstanceId for p in found} == {0xFFFFFFFF}
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 50
    samples = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
    assert {(s.pid, s.smUtil) for s in samples} == {(10, 30), (11, 20)}
    nvml_node.state.process(0, 10, 0)
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses_v2(device)] == [11]


def test_mixed_node_is_in_pci_order(make_node: MakeNode, use_nvml: UseNvml) -> None:
    described = ["h100-80gb", "gb10", "a100-40gb", "gb200", "t4", "h100-80gb"]
    spec = NodeSpec.model_validate({"gpus": [{"model": key} for key in described]})
    node = make_node(spec=spec)
    use_nvml(node)
    devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(len(described))]
    pci = [pynvml.nvmlDeviceGetPciInfo(device) for device in devices]
    names = [pynvml.nvmlDeviceGetName(device) for device in devices]
    assert names == [models.model(key).name for key in described]
    addresses = [(info.domain, info.bus) for info in pci]
    assert addresses == sorted(addresses)


def test_sixteen_gpus_of_any_model_fit(model: GpuModel) -> None:
    taken: list[tuple[int, int]] = []
    for _ in range(16):
        taken.append(identity(model, "x", taken).pci_address)
    assert len(set(taken)) == 16


def test_topology(make_node: MakeNode, use_nvml: UseNvml) -> None:
    node = make_node(gpus=8)
    use_nvml(node)
    devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
    numa = [gpu["numaNode"] for gpu in node.show()["gpus"]]
    assert numa == [0] * 4 + [1] * 4
    far = pynvml.nvmlDeviceGetTopologyCommonAncestor(devices[0], devices[7])
    near = pynvml.nvmlDeviceGetTopologyCommonAncestor(devices[0], devices[3])
    assert (near, far) == (pynvml.NVML_TOPOLOGY_NODE, pynvml.NVML_TOPOLOGY_SYSTEM)
    nearest = pynvml.nvmlDeviceGetTopologyNearestGpus(devices[0], pynvml.NVML_TOPOLOGY_NODE)
    assert {pynvml.nvmlDeviceGetIndex(device) for device in nearest} == {1, 2, 3}
    module_ids = [pynvml.nvmlDeviceGetModuleId(device) for device in devices]
    assert module_ids == list(range(1, 9))


def test_fabric_of_each_version(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    for version, kind in (
        (pynvml.nvmlGpuFabricInfo_v2, pynvml.c_nvmlGpuFabricInfo_v2_t),
        (pynvml.nvmlGpuFabricInfo_v3, pynvml.c_nvmlGpuFabricInfo_v3_t),
    ):
        info = kind()
        info.version = version
        pynvml.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
        assert info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        assert info.status == pynvml.NVML_SUCCESS


def test_ecc_counts_remaps_and_asks_for_a_reset(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

    def picture() -> tuple[Any, ...]:
        counters = [
            pynvml.nvmlDeviceGetTotalEccErrors(device, uncorrected, counter)
            for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
        ]
        rows = pynvml.nvmlDeviceGetRemappedRows(device)
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        action = pynvml.nvmlDeviceGetFieldValues(device, [field])[0]
        assert action.nvmlReturn == pynvml.NVML_SUCCESS
        return (*counters, *rows, action.value.uiVal)

    assert picture() == (0, 0, 0, 0, 0, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    nvml_node.state.ecc(0)
    assert picture() == (1, 1, 0, 1, 1, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    nvml_node.state.reset(0)
    assert picture() == (0, 1, 0, 1, 0, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)


def test_unknown_fields_say_so_one_by_one(nvml_node: SimulatedNode) -> None:
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    wanted = [pynvml.NVML_FI_DEV_ECC_CURRENT, pynvml.NVML_FI_DEV_POWER_AVERAGE]
    known, unknown = pynvml.nvmlDeviceGetFieldValues(device, wanted)
    assert (known.nvmlReturn, known.value.uiVal) == (pynvml.NVML_SUCCESS, 1)
    assert unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
