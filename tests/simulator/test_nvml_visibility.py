"""A process sees what its own /dev holds: on the node, and in a container with part of it."""

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, container, expect, load


@pytest.fixture
def busy_node(make_node: MakeNode) -> SimulatedNode:
    """Give four H100, the third with two partitions."""
    node = make_node(gpus=4)
    node.state.set_mig_mode(2, on=True)
    node.state.partition(2, "1g.10gb", 0)
    node.state.partition(2, "3g.40gb", 4)
    return node


def instances(node: SimulatedNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.gpu(2)["instances"]
    return sorted(found, key=lambda instance: int(instance["start"]))


def capabilities(instance: dict[str, Any]) -> tuple[str, str]:
    (compute,) = instance["computeInstances"]
    return (
        f"nvidia-caps/nvidia-cap{instance['capabilityMinor']}",
        f"nvidia-caps/nvidia-cap{compute['capabilityMinor']}",
    )


def seen() -> list[str]:
    """UUIDs of all devices and MIG devices in NVML's order."""
    uuids = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuids.append(pynvml.nvmlDeviceGetUUID(device))
        for mig in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, mig)
            except pynvml.NVMLError_NotFound:
                break
            uuids.append(pynvml.nvmlDeviceGetUUID(handle))
    return uuids


def use_container(library: Path, use_nvml: UseNvml, node: SimulatedNode) -> None:
    use_nvml(node)  # the fixture shuts NVML down afterwards
    pynvml.nvmlShutdown()
    load(library)
    pynvml.nvmlInit()


def test_node_sees_all(busy_node: SimulatedNode, use_nvml: UseNvml) -> None:
    use_nvml(busy_node)
    gpus = busy_node.show()["gpus"]
    migs = {compute["uuid"] for i in instances(busy_node) for compute in i["computeInstances"]}
    assert set(seen()) == {gpu["uuid"] for gpu in gpus} | migs


def test_indices_count_visible_gpus_only(
    busy_node: SimulatedNode, use_nvml: UseNvml, tmp_path: Path
) -> None:
    library = container(busy_node, tmp_path / "c", "nvidiactl", "nvidia1", "nvidia3")
    use_container(library, use_nvml, busy_node)
    assert seen() == [busy_node.gpu(1)["uuid"], busy_node.gpu(3)["uuid"]]
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetMinorNumber(device) == 3
    assert pynvml.nvmlDeviceGetIndex(device) == 1
    hidden = busy_node.gpu(0)
    expect("NOT_FOUND", pynvml.nvmlDeviceGetHandleByUUID, hidden["uuid"])
    expect("NOT_FOUND", pynvml.nvmlDeviceGetHandleByPciBusId, hidden["pci"])


def test_partition_needs_both_capability_nodes(
    busy_node: SimulatedNode, use_nvml: UseNvml, tmp_path: Path
) -> None:
    first, second = instances(busy_node)
    nodes = (*capabilities(first), capabilities(second)[0])
    library = container(busy_node, tmp_path / "c", "nvidiactl", "nvidia2", *nodes)
    use_container(library, use_nvml, busy_node)
    mig = first["computeInstances"][0]["uuid"]
    assert seen() == [busy_node.gpu(2)["uuid"], mig]
    hidden = second["computeInstances"][0]["uuid"]
    expect("NOT_FOUND", pynvml.nvmlDeviceGetHandleByUUID, hidden)
    (tmp_path / "c/dev" / capabilities(second)[1]).touch()
    assert set(seen()) == {busy_node.gpu(2)["uuid"], mig, hidden}


def test_gpu_node_alone_shows_no_partition(
    busy_node: SimulatedNode, use_nvml: UseNvml, tmp_path: Path
) -> None:
    library = container(busy_node, tmp_path / "c", "nvidiactl", "nvidia2")
    use_container(library, use_nvml, busy_node)
    assert seen() == [busy_node.gpu(2)["uuid"]]


def test_container_can_neither_list_nor_make_instances(
    busy_node: SimulatedNode, use_nvml: UseNvml, tmp_path: Path
) -> None:
    nodes = capabilities(instances(busy_node)[0])
    library = container(busy_node, tmp_path / "c", "nvidiactl", "nvidia2", *nodes)
    use_container(library, use_nvml, busy_node)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    count = ctypes.c_uint()
    array = (pynvml.c_nvmlGpuInstance_t * 7)()
    arguments = (device, 19, array, ctypes.byref(count))
    expect("NO_PERMISSION", pynvml.nvmlDeviceGetGpuInstances, *arguments)
    expect("NO_PERMISSION", pynvml.nvmlDeviceCreateGpuInstance, device, 14)


def test_no_device_at_all(busy_node: SimulatedNode, use_nvml: UseNvml, tmp_path: Path) -> None:
    library = container(busy_node, tmp_path / "c", "nvidiactl")
    use_container(library, use_nvml, busy_node)
    assert seen() == []
    (tmp_path / "c/dev/nvidia0").touch()
    assert seen() == [busy_node.gpu(0)["uuid"]]


def test_no_control_node(busy_node: SimulatedNode, tmp_path: Path) -> None:
    load(container(busy_node, tmp_path / "c", "nvidia0"))
    expect("DRIVER_NOT_LOADED", pynvml.nvmlInit)


def test_library_without_state(busy_node: SimulatedNode, tmp_path: Path) -> None:
    library = container(busy_node, tmp_path / "c", "nvidiactl", "nvidia0")
    for state in library.parent.glob("libnvidia-simstate*"):
        state.unlink()
    load(library)
    expect("DRIVER_NOT_LOADED", pynvml.nvmlInit)


_COUNT_CUDA = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
count, version = ctypes.c_int(-1), ctypes.c_int()
before = cuda.cuDeviceGetCount(ctypes.byref(count))
print(before, cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value,
      cuda.cuDriverGetVersion(ctypes.byref(version)), version.value)
"""


def cuda(library: Path) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_CUDA, str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_cuda_counts_what_nvml_shows(busy_node: SimulatedNode) -> None:
    folder = busy_node.library.parent
    not_initialised, version = 3, 13000
    assert cuda(folder / "libcuda.so.1") == [not_initialised, 0, 0, 3 + 2, 0, version]
    for gpu in range(4):
        (busy_node.root / f"dev/nvidia{gpu}").unlink()
    no_device = 100
    found = cuda(folder / "libcuda.so.1")
    assert found[:3] == [not_initialised, no_device, not_initialised]


@pytest.mark.parametrize(
    ("layout", "tree"), [("lib64", True), ("usr/lib64", True), ("opt/driver/lib", False)]
)
def test_other_library_layouts(
    make_node: MakeNode,
    use_nvml: UseNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    *,
    tree: bool,
) -> None:
    """The state is beside the library wherever that is; of some folders the tree is known too."""
    node = make_node(gpus=2)
    root = tmp_path / "c"
    library = container(node, root, "nvidiactl", "nvidia1")
    folder = root / layout
    folder.parent.mkdir(parents=True, exist_ok=True)
    library.parent.rename(folder)
    if not tree:
        monkeypatch.setenv("SIM_NVML_PREFIX", str(root))
        library = folder / library.name
        load(library)
        expect("DRIVER_NOT_LOADED", pynvml.nvmlInit)  # the environment leads elsewhere
        monkeypatch.setenv("SIM_NVML_STATE", str(next(folder.glob("libnvidia-simstate*"))))
    use_container(folder / library.name, use_nvml, node)
    assert seen() == [node.gpu(1)["uuid"]]
