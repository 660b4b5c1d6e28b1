"""What can go wrong with MPS daemons, as `dra-driver simulate mps` lets it go wrong."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from dra_driver.cli import main
from tests.support.mps import CudaProgram, MpsBed, MpsDaemon, eventually
from tests.support.node import SimulatedNode

SHORT = 1.0  # seconds of a delay
LONG = 5  # in which a busy machine does what is to come before


def simulate(*arguments: object) -> int:
    """Run `dra-driver simulate …`; gives the exit code."""
    with pytest.raises(SystemExit) as left:
        main(["simulate", *map(str, arguments)])
    return int(left.value.code or 0)


def inject(where: MpsDaemon | SimulatedNode, action: str, *options: object) -> None:
    node = where.node if isinstance(where, MpsDaemon) else where
    assert simulate("mps", node.root, action, *options) == 0


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def answers(daemon: MpsDaemon) -> bool:
    return daemon.control(say="get_server_list\n").returncode == 0


def is_silent(running: subprocess.Popen[str]) -> bool:
    """Whether a command has no answer in a second; a marker that comes later is not needed."""
    time.sleep(SHORT)
    return running.poll() is None


def test_slow_start(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node())
    inject(daemon, "slow", "--seconds", LONG, "--times", 1)
    began = time.monotonic()
    daemon.start()
    assert time.monotonic() - began < LONG
    assert daemon.control(say="get_server_list\n").returncode == 1
    assert not (daemon.pipe / "control").exists()
    assert daemon.control("-d").returncode == 1  # it is there already
    eventually(lambda: answers(daemon), "the daemon is ready")
    assert time.monotonic() - began >= LONG
    daemon.ask("quit")
    daemon.start()
    assert answers(daemon)


def test_exit_at_start(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node())
    inject(daemon, "exit")
    daemon.start()
    eventually(lambda: "Failed to start" in daemon.control_log(), "it has failed")
    assert not answers(daemon)
    assert daemon.control("-f").returncode == 1
    assert daemon.node.show()["mps"] == []
    assert simulate("clear", daemon.node.root) == 0
    daemon.start()
    assert answers(daemon)


def test_silent(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "silent", "--command", "get_server_list")
    running = daemon.talk("get_server_list")
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]
    inject(daemon, "silent")
    other = daemon.talk("get_default_active_thread_percentage")
    assert is_silent(running)
    assert is_silent(other)
    mps.attached(daemon)  # programs are served all the same
    for process in (running, other):
        process.kill()
        process.wait()
    simulate("clear", daemon.node.root)
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]


def test_answer_that_comes_late(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "silent", "--seconds", SHORT, "--times", 1)
    began = time.monotonic()
    assert daemon.ask("set_default_active_thread_percentage 10") == ["10.0"]
    assert time.monotonic() - began >= SHORT


def test_refused_command(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "refuse", "--command", "set_default_device_pinned_mem_limit", "--times", 1)
    answer = daemon.ask("set_default_device_pinned_mem_limit 0 1G")
    assert answer == ["set_default_device_pinned_mem_limit failed: Unknown Error"]
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == ["0M"]
    assert daemon.ask("set_default_device_pinned_mem_limit 0 1G") == []


def test_crash_in_use(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    program = mps.attached(daemon)
    pid, server = daemon.pid, daemon.server()
    inject(daemon, "crash")
    eventually(lambda: not lives(pid), "the daemon is dead")
    assert daemon.node.show()["mps"] == []
    program.gets("1Gi")
    assert lives(server)
    daemon.start()
    assert answers(daemon)


def test_crash_of_the_server(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    program = mps.attached(daemon)
    inject(daemon, "server-crash")
    assert program.event("lost")["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    eventually(lambda: daemon.ask("get_server_list") == [], "the daemon has seen it")
    mps.attached(daemon)


def test_only_daemons_of_one_gpu(mps: MpsBed) -> None:
    node = mps.node(gpus=2)
    daemons = [mps.daemon(node, gpu["uuid"]).start() for gpu in node.show()["gpus"]]
    pids = [daemon.pid for daemon in daemons]
    inject(node, "crash", "--gpu", 1)
    eventually(lambda: not lives(pids[1]), "the daemon of GPU 1 is dead")
    assert answers(daemons[0])
    assert node.show()["faults"] == []


def test_server_that_is_slow(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "server-slow", "--seconds", SHORT, "--times", 1)
    program = mps.program(daemon)
    eventually(lambda: daemon.ask("get_server_list") != [], "the server starts")
    assert daemon.ask(f"get_server_status {daemon.server()}") == ["INITIALIZING"]
    program.event("attached")
    assert daemon.ask(f"get_server_status {daemon.server()}") == ["ACTIVE"]


def failure(program: CudaProgram) -> str:
    return str(program.event("failed")["error"])


def test_server_that_does_not_start(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "server-exit", "--times", 1)
    assert failure(mps.program(daemon)) == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert "Unknown Error" in daemon.server_log()
    mps.attached(daemon)


def test_programs_that_are_not_let_in(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    inject(daemon, "reject", "--times", 1)
    assert failure(mps.program(daemon)) == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    inject(daemon, "stall", "--seconds", SHORT, "--times", 1)
    began = time.monotonic()
    mps.attached(daemon)
    assert time.monotonic() - began >= SHORT
    inject(daemon, "stall")
    stalled = mps.program(daemon)
    time.sleep(SHORT)
    assert stalled.process.poll() is None
    assert daemon.ask(f"get_client_list {daemon.server()}") != [str(stalled.pid)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["crash", "--seconds", 1],
        ["slow", "--command", "quit"],
        ["explode"],
        ["slow", "--gpu", 3],
        ["crash"],  # nothing runs
    ],
)
def test_wrong_usage(mps: MpsBed, arguments: list[object]) -> None:
    node = mps.node()
    assert simulate("mps", node.root, *arguments) == 2
    assert node.show()["faults"] == []


def test_shown(mps: MpsBed, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = mps.daemon(mps.node()).start()
    mps.attached(daemon).gets("1Gi")
    inject(daemon, "silent", "--command", "quit")
    capsys.readouterr()
    assert simulate("show", daemon.node.root) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if str(daemon.pipe) in line]
    assert row == [str(daemon.pid), str(daemon.pipe), "all", "100%", str(daemon.server()),
                   "active", "1"]  # fmt: skip
    (fault,) = [line for line in lines if "mps.command.quit" in line]
    assert fault.split() == ["all", "mps.command.quit", "-", "for", "ever", "for", "ever"]
    assert sum("mps-client" in line for line in lines) == 1
    assert simulate("show", daemon.node.root, "-o", "json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["mps"]
    assert entry["server"]["status"] == "ACTIVE"
