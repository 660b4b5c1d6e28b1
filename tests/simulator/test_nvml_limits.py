"""Memory limits by cgroup: set, read, cleared, gone with the cgroup."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, expect

GIB = 1 << 30
NO_LIMIT = 0xFFFFFFFFFFFFFFFF


@pytest.fixture
def node(make_node: MakeNode, use_nvml: UseNvml) -> SimulatedNode:
    node = make_node(gpus=2)
    node.set_driver_version("615.10.01")
    use_nvml(node)
    return node


@pytest.fixture
def gpu(node: SimulatedNode) -> Any:
    assert node.state.driver_version() == "615.10.01"
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def make_cgroup(path: Path, *pids: int) -> Path:
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids), encoding="ascii")
    return path


def set_limit(gpu: Any, cgroup: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(cgroup).encode(), soft, hard)
    pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, limits)


def get_limit(gpu: Any, cgroup: Path) -> tuple[int, int, int]:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(cgroup).encode(), 0, 0, 0)
    pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, limits)
    return limits.softLimit, limits.hardLimit, limits.currentUsed


def test_set_read_change_clear(node: SimulatedNode, gpu: Any, tmp_path: Path) -> None:
    cgroup = make_cgroup(tmp_path / "pod")
    set_limit(gpu, cgroup, 0, 4 * GIB)
    assert get_limit(gpu, cgroup) == (0, 4 * GIB, 0)
    set_limit(gpu, cgroup, GIB, 8 * GIB)
    assert get_limit(gpu, cgroup) == (GIB, 8 * GIB, 0)
    shown = {"cgroup": str(cgroup), "softBytes": GIB, "hardBytes": 8 * GIB}
    assert node.gpu(0)["memoryLimits"] == [shown]
    set_limit(gpu, cgroup, 0, NO_LIMIT)
    expect("NOT_FOUND", get_limit, gpu, cgroup)
    assert node.gpu(0)["memoryLimits"] == []
    set_limit(gpu, cgroup, 0, NO_LIMIT)


def test_each_gpu_and_cgroup_has_its_own(node: SimulatedNode, gpu: Any, tmp_path: Path) -> None:
    first, second = make_cgroup(tmp_path / "a"), make_cgroup(tmp_path / "b")
    set_limit(gpu, first, 0, GIB)
    set_limit(gpu, second, 0, 2 * GIB)
    assert get_limit(gpu, first)[1] == GIB
    assert get_limit(gpu, second)[1] == 2 * GIB
    expect("NOT_FOUND", get_limit, pynvml.nvmlDeviceGetHandleByIndex(1), first)
    assert len(node.gpu(0)["memoryLimits"]) == 2


def test_gone_with_the_cgroup(node: SimulatedNode, gpu: Any, tmp_path: Path) -> None:
    cgroup = make_cgroup(tmp_path / "pod")
    set_limit(gpu, cgroup, 0, GIB)
    (cgroup / "cgroup.procs").unlink()
    cgroup.rmdir()
    expect("OPERATING_SYSTEM", get_limit, gpu, cgroup)
    assert node.gpu(0)["memoryLimits"] == []
    (tmp_path / "in-between").mkdir()  # takes the inode's number, if the file system hands it out
    make_cgroup(cgroup)
    expect("NOT_FOUND", get_limit, gpu, cgroup)


def test_many_short_lived_cgroups_leave_room(gpu: Any, tmp_path: Path) -> None:
    for number in range(300):
        cgroup = tmp_path / f"pod-{number}"
        cgroup.mkdir()
        set_limit(gpu, cgroup, 0, GIB)
        cgroup.rmdir()


def test_used_memory_is_that_of_the_processes_below(
    node: SimulatedNode, gpu: Any, tmp_path: Path
) -> None:
    pod = make_cgroup(tmp_path / "pod", 10)
    make_cgroup(pod / "container", 11, 12)
    for pid in (10, 11, 12, 13):
        node.state.process(0, pid, GIB)
    set_limit(gpu, pod, 0, 8 * GIB)
    assert get_limit(gpu, pod) == (0, 8 * GIB, 3 * GIB)


def test_calls_are_logged(node: SimulatedNode, gpu: Any, tmp_path: Path) -> None:
    cgroup = make_cgroup(tmp_path / "pod")
    set_limit(gpu, cgroup, 0, GIB)
    (call,) = [call for call in node.state.calls() if "Limits" in call["call"]]
    uuid = node.gpu(0)["uuid"]
    assert call["arguments"] == f"{uuid} soft=0 hard={GIB} cgroup={cgroup}"
    assert call["result"] == "SUCCESS"


def test_reboot_forgets(node: SimulatedNode, gpu: Any, tmp_path: Path) -> None:
    set_limit(gpu, make_cgroup(tmp_path / "pod"), 0, GIB)
    node.reboot()
    assert node.gpu(0)["memoryLimits"] == []
