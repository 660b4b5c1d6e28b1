"""One state, many processes: nothing is torn, whoever is killed at whatever moment."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.native_library import SimState, SimulatorError
from tests.support.node import MakeNode, SimulatedNode

# Where struct sim_file has undo_valid: set while a writer is at work (native/state.h).
_UNDO_VALID_OFFSET = 24


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    node = make_node(gpus=2)
    for gpu in (0, 1):
        node.state.set_mig_mode(gpu, on=True)
    return node


@contextmanager
def worker(work: Callable[[], Any]) -> Iterator[int]:
    """Run `work` over and over in a forked process; give its pid; kill it in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def churn(root: Path, gpu: int) -> Callable[[], None]:
    """Make and remove partitions, each with a process of a size that follows from its pid."""
    state: list[SimState] = []
    generator = random.Random(gpu)  # noqa: S311

    def work() -> None:
        if not state:
            state.append(SimState(root))
        start = generator.randrange(7)
        try:
            gi = state[0].partition(gpu, "1g.10gb", start)
        except SimulatorError:
            gi = 7 + start
            state[0].process(gpu, 100 + gi, 0, gi_id=gi, ci_id=0)
            state[0].unpartition(gpu, gi)
        else:
            state[0].process(gpu, 100 + gi, gi << 20, sm_percent=gi, gi_id=gi, ci_id=0)

    return work


def check(shown: dict[str, Any]) -> None:
    """Every partition is whole, no two overlap, every process is what it was made as."""
    for gpu in shown["gpus"]:
        taken: set[int] = set()
        for instance in gpu["instances"]:
            (compute,) = instance["computeInstances"]
            slices = set(range(instance["start"], instance["start"] + instance["size"]))
            assert not taken & slices
            taken |= slices
            assert instance["id"] == 7 + instance["start"]
            assert compute["uuid"].startswith("MIG-")
        for process in gpu["processes"]:
            number = process["pid"] - 100
            assert process["memoryBytes"] == number << 20
            assert process["smPercent"] == process["gi"] == number
            assert number - 7 in taken


def test_killed_writers_leave_the_old_or_the_new_state(node: SimulatedNode) -> None:
    state_file = Path(node.show()["stateFile"])
    generator = random.Random(1)  # noqa: S311
    caught = kills = 0
    for _ in range(400):
        with worker(churn(node.root, 0)):
            time.sleep(0.002 + generator.random() * 0.01)
        kills += 1
        (undo_valid,) = struct.unpack_from("I", state_file.read_bytes(), _UNDO_VALID_OFFSET)
        caught += undo_valid
        found = node.show()
        check(found)
        node.state.set_persistence(1, on=False)  # a writer puts the copy back
        assert node.show() == found
        (undo_valid,) = struct.unpack_from("I", state_file.read_bytes(), _UNDO_VALID_OFFSET)
        assert undo_valid == 0
        if caught >= 40:
            break
    print(f"{kills} kills, {caught} of them in the middle of a change")
    assert caught >= 40


def test_readers_see_whole_states_beside_two_writers(node: SimulatedNode) -> None:
    with worker(churn(node.root, 0)), worker(churn(node.root, 1)), SimState(node.root) as reader:
        begun, seen = time.monotonic(), 0
        while time.monotonic() - begun < 1.5 or seen <= 20:
            check(reader.show())
            seen += 1
    print(f"{seen} reads")


_MAKE_AND_REMOVE = """
import ctypes, sys, time, pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
made = lost = 0
while made < 100:
    try:
        gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    except pynvml.NVMLError_InsufficientResources:
        lost += 1
        continue
    ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)
    made += 1
    time.sleep(0.001)  # let the other one have a chance
print(lost)
"""


def test_two_processes_through_nvml_at_once(node: SimulatedNode) -> None:
    for start in range(6):  # one slot is left: they fight for it
        node.state.partition(0, "1g.10gb", start)
    before = node.gpu(0)["instances"]
    command = [sys.executable, "-c", _MAKE_AND_REMOVE, str(node.library)]
    programs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outcomes = [program.communicate(timeout=60) for program in programs]
    assert [errors for _, errors in outcomes] == ["", ""]
    print(f"refused {[int(out) for out, _ in outcomes]} times")
    assert node.gpu(0)["instances"] == before
    creations = [c for c in node.state.calls() if c["call"] == "nvmlDeviceCreateGpuInstance"]
    assert {c["result"] for c in creations} <= {"SUCCESS", "INSUFFICIENT_RESOURCES"}


def test_forked_child_has_its_own_lock(node: SimulatedNode) -> None:
    """Parent and child share one descriptor after a fork, and would not exclude each other."""
    state = node.state

    def work() -> None:
        gi = state.partition(0, "1g.10gb", 0)
        state.unpartition(0, gi)

    with worker(work):
        for _ in range(100):
            gi = state.partition(1, "1g.10gb", 1)
            check(state.show())
            state.unpartition(1, gi)


def test_full_disk_is_met_at_creation(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    limit = 'ulimit -f 8; exec "$0" -c "$1" "$2"'
    code = (
        "import signal, sys; from pathlib import Path;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from dra_driver.simulator.native_library import SimState;"
        "SimState.create(Path(sys.argv[1]), '580.95.05', 13000)"
    )
    done = subprocess.run(
        ["bash", "-c", limit, sys.executable, code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "File too large" in done.stderr
    assert list(folder.iterdir()) == []


def test_state_of_another_build_is_refused(node: SimulatedNode) -> None:
    state_file = Path(node.show()["stateFile"])
    with state_file.open("r+b") as stream:
        stream.seek(8)
        stream.write(struct.pack("Q", 999))
    with pytest.raises(SimulatorError, match="made by another build"):
        SimState(node.root)


@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_damaged_state_is_refused(node: SimulatedNode, content: bytes) -> None:
    Path(node.show()["stateFile"]).unlink()
    (node.library.parent / "libnvidia-simstate.so.580.95.05").write_bytes(content)
    with pytest.raises(SimulatorError, match="size of a simulated state"):
        SimState(node.root)


def test_second_state_is_refused(node: SimulatedNode) -> None:
    with pytest.raises(SimulatorError, match="exists already"):
        SimState.create(node.root, "590.44.01", 13010)


def test_every_call_is_counted(node: SimulatedNode) -> None:
    before = node.state.call_count()
    node.nvml("pynvml.nvmlDeviceGetCount(); pynvml.nvmlSystemGetDriverVersion()")
    assert node.state.call_count() == before + 3  # nvmlInit too
    assert node.show()["nvmlCalls"] == before + 3


def test_waits_for_events_are_not_counted(node: SimulatedNode) -> None:
    before = node.state.call_count()
    node.nvml(
        """
events = pynvml.nvmlEventSetCreate()
try:
    pynvml.nvmlEventSetWait_v2(events, 20)
except pynvml.NVMLError_Timeout:
    pass
"""
    )
    assert node.state.call_count() == before + 2
