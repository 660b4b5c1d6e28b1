"""CUDA programs without MPS: contexts, memory, limits by cgroup, and what NVML says of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mps import CudaProgram, MpsBed, needs_root
from tests.support.node import SimulatedNode

GIB = 1 << 30
DRIVER_WITH_LIMITS = "615.10.01"
NO_LIMIT = 0xFFFFFFFFFFFFFFFF


@pytest.fixture
def node(mps: MpsBed) -> SimulatedNode:
    """Give a node whose driver can limit cgroups."""
    made = mps.node(gpus=2)
    made.set_driver_version(DRIVER_WITH_LIMITS)
    return made


def limit(node: SimulatedNode, cgroup: Path, hard: int, gpu: int = 0) -> None:
    node.nvml(
        f"gpu = pynvml.nvmlDeviceGetHandleByIndex({gpu})\n"
        f"wanted = pynvml.c_nvmlSetMemoryLimits_v1_t({str(cgroup).encode()!r}, 0, {hard})\n"
        "pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, wanted)\n"
    )


def current_use(node: SimulatedNode, cgroup: Path) -> int:
    used: int = node.nvml(
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        f"limits = pynvml.c_nvmlGetMemoryLimits_v1_t({str(cgroup).encode()!r}, 0, 0, 0)\n"
        "pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, limits)\n"
        "print(limits.currentUsed)"
    )
    return used


def in_cgroup(mps: MpsBed, where: Any, cgroup: Path | str, **more: Any) -> CudaProgram:
    return mps.attached(where, SIM_NVML_CGROUP=str(cgroup), **more)


def pod(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    (path / "container").mkdir(parents=True)
    return path


def test_memory_of_a_program(mps: MpsBed, node: SimulatedNode) -> None:
    program = mps.attached(node)
    total = (81559 - 551) << 20
    assert program.tell("memory") == {
        "event": "memory", "device": 0, "freeBytes": total, "totalBytes": total
    }  # fmt: skip
    program.gets("60Gi")
    assert program.refused_by("20Gi") == "device"
    program.gets("10Gi")
    memory = node.nvml(
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)\n"
        "print(json.dumps([pynvml.nvmlDeviceGetMemoryInfo(gpu).used,\n"
        "    [(process.pid, process.usedGpuMemory) for process in running],\n"
        "    pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)]))"
    )
    assert memory == [70 * GIB + (551 << 20), [[program.pid, 70 * GIB]], []]
    assert program.tell("free")["event"] == "freed"
    assert node.gpu(0)["processes"] == []
    program.gets("70Gi")
    program.kill()
    assert node.gpu(0)["processes"] == []


def test_hard_limit_counts_all_processes_of_the_cgroup(
    mps: MpsBed, node: SimulatedNode, tmp_path: Path
) -> None:
    one, other = pod(tmp_path, "pod1"), pod(tmp_path, "pod2")
    limit(node, one, 10 * GIB)
    limit(node, other, 4 * GIB)
    first = in_cgroup(mps, node, one / "container")
    second = in_cgroup(mps, node, one / "container")
    third = in_cgroup(mps, node, other / "container")
    free = mps.attached(node)
    first.gets("6Gi")
    assert second.refused_by("5Gi") == "cgroup"
    second.gets("4Gi")
    assert first.refused_by("1") == "cgroup"
    assert third.refused_by("5Gi") == "cgroup"
    third.gets("4Gi")
    free.gets("20Gi")
    assert [current_use(node, cgroup) for cgroup in (one, other)] == [10 * GIB, 4 * GIB]
    first.kill()
    second.gets("6Gi")


def test_limit_is_of_one_gpu_and_can_be_changed_and_cleared(
    mps: MpsBed, node: SimulatedNode, tmp_path: Path
) -> None:
    cgroup = pod(tmp_path, "pod")
    limit(node, cgroup, GIB)
    program = in_cgroup(mps, node, cgroup)
    assert program.refused_by("2Gi") == "cgroup"
    limit(node, cgroup, 3 * GIB)
    program.gets("2Gi")
    limit(node, cgroup, GIB)  # below what there is: nothing more is given
    assert program.refused_by("1Mi") == "cgroup"
    limit(node, cgroup, NO_LIMIT)
    program.gets("20Gi")
    limit(node, cgroup, GIB)
    other = in_cgroup(mps, node, cgroup, CUDA_VISIBLE_DEVICES="1")
    other.gets("20Gi")


def test_limit_ends_with_its_cgroup(mps: MpsBed, node: SimulatedNode, tmp_path: Path) -> None:
    cgroup = tmp_path / "pod"
    cgroup.mkdir()
    limit(node, cgroup, GIB)
    program = in_cgroup(mps, node, cgroup)
    assert program.refused_by("2Gi") == "cgroup"
    cgroup.rmdir()
    program.gets("2Gi")


def test_path_may_be_of_another_mount(mps: MpsBed, node: SimulatedNode, tmp_path: Path) -> None:
    """A container knows its cgroup without the mount below which the limit was set."""
    cgroup = tmp_path / "kubepods" / "besteffort" / "pod1"
    (cgroup / "ctr").mkdir(parents=True)
    limit(node, cgroup, GIB)
    program = in_cgroup(mps, node, "/kubepods/besteffort/pod1/ctr")
    assert program.refused_by("2Gi") == "cgroup"
    in_cgroup(mps, node, "/kubepods/besteffort/pod11/ctr").gets("2Gi")
    in_cgroup(mps, node, "/besteffort").gets("2Gi")
    in_cgroup(mps, node, "/").gets("2Gi")


def test_limit_by_cgroup_holds_under_mps_too(
    mps: MpsBed, node: SimulatedNode, tmp_path: Path
) -> None:
    cgroup = pod(tmp_path, "pod")
    limit(node, cgroup, 2 * GIB)
    daemon = mps.daemon(node).start()
    daemon.ask("set_default_device_pinned_mem_limit 0 3G")
    first, second = (in_cgroup(mps, daemon, cgroup / "container") for _ in range(2))
    first.gets("1Gi")
    assert second.refused_by("2Gi") == "cgroup"
    assert mps.attached(daemon).refused_by("4Gi") == "mps"


@needs_root
def test_unprivileged_program_with_a_state_it_can_only_read(
    mps: MpsBed, node: SimulatedNode, tmp_path: Path
) -> None:
    cgroup = pod(tmp_path, "pod")
    limit(node, cgroup, 4 * GIB)
    first, second = (in_cgroup(mps, node, cgroup, user=user) for user in (1000, 1001))
    first.gets("3Gi")
    assert second.refused_by("2Gi") == "cgroup"
    second.gets("1Gi")
    found = {entry["pid"]: entry["memoryBytes"] for entry in node.gpu(0)["processes"]}
    assert found == {first.pid: 3 * GIB, second.pid: GIB}


@needs_root
def test_program_in_a_pid_namespace_is_listed_by_the_pid_outside(
    mps: MpsBed, node: SimulatedNode
) -> None:
    program = str(node.root / "usr/bin/sim-mps-client")
    command = ["unshare", "--pid", "--fork", "--kill-child", program, "alloc", "1Gi", "hold"]
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        events = [json.loads(running.stdout.readline()) for _ in range(3)]
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
        (process,) = node.gpu(0)["processes"]
        running.kill()
        running.stdout.read()
    assert [event["event"] for event in events] == ["attached", "allocated", "holding"]
    assert events[0]["pid"] == 1
    assert process["pid"] == int(children)


def test_parallel_programs_never_exceed_the_limit(
    mps: MpsBed, node: SimulatedNode, tmp_path: Path
) -> None:
    cgroup = pod(tmp_path, "pod")
    limit(node, cgroup, 8 * GIB)
    words = ["alloc", "64Mi"] * 30
    programs = [
        mps.program(node, *words, SIM_NVML_CGROUP=str(cgroup / "container")) for _ in range(6)
    ]
    answers = [
        [program.event()["event"] for _ in range(31)].count("allocated") for program in programs
    ]
    assert sum(answers) == 128
    assert current_use(node, cgroup) == 8 * GIB


def test_driver_api_for_other_programs(mps: MpsBed) -> None:
    node = mps.node()
    node.state.set_mig_mode(0, on=True)
    node.state.partition(0, "1g.10gb", 0)
    uuid = node.gpu(0)["instances"][0]["computeInstances"][0]["uuid"]
    script = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
count, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
name, raw = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
codes = [cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), cuda.cuInit(0),
         cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceGetName(name, 96, 0),
         cuda.cuDeviceGetUuid_v2(raw, 0), cuda.cuMemAlloc_v2(ctypes.byref(pointer), 8),
         cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 1),
         cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
         cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
         cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
         cuda.cuMemFree_v2(pointer), cuda.cuMemFree_v2(pointer)]
print(json.dumps([codes, count.value, name.value.decode(), bytes(raw).hex(),
                  total.value - free.value]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(node.library.with_name("libcuda.so.1"))],
        check=True, capture_output=True, text=True, timeout=60,
        env={"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"},
    )  # fmt: skip
    codes, count, name, raw, used = json.loads(done.stdout)
    assert codes == [3, 0, 0, 0, 0, 201, 101, 0, 0, 0, 0, 1]
    assert (count, name, used) == (1, "NVIDIA H100 80GB HBM3", GIB)
    assert raw == uuid.removeprefix("MIG-").replace("-", "")


def test_program_without_gpus_or_with_wrong_words(mps: MpsBed) -> None:
    empty = mps.program(mps.node(gpus=0))
    assert empty.event("failed")["error"] == "CUDA_ERROR_NO_DEVICE"
    assert empty.process.wait(timeout=60) == 3
    wrong = mps.attached(mps.node(), "dance")
    assert wrong.process.wait(timeout=60) == 2
    talkative = mps.attached(mps.node())
    assert talkative.tell("alloc lots")["event"] == "misunderstood"
