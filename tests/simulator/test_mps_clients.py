"""CUDA programs as clients of MPS: attaching, users, numbers, limits, how they end."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.mps import CudaProgram, MpsBed, MpsDaemon, eventually, needs_root

GIB = 1 << 30
ALICE, BOB = 1000, 1001


@pytest.fixture
def daemon(mps: MpsBed) -> MpsDaemon:
    """Give a running daemon of a node with one H100."""
    return mps.daemon(mps.node()).start()


def used(daemon: MpsDaemon, kind: str) -> dict[int, int]:
    """Give the memory of processes of this type, by pid."""
    processes = daemon.node.gpu(0)["processes"]
    return {entry["pid"]: entry["memoryBytes"] for entry in processes if entry["type"] == kind}


def is_gone(daemon: MpsDaemon, program: CudaProgram) -> bool:
    return str(program.pid) not in daemon.ask(f"get_client_list {daemon.server()}")


def test_first_client_starts_the_server(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.program(daemon)
    event = program.event("attached")
    server = daemon.server()
    assert event["mps"] is True
    assert (event["server"], event["uid"]) == (server, os.geteuid())
    assert event["activeThreadPercentage"] == 100.0
    assert [device["uuid"] for device in event["devices"]] == [daemon.node.gpu(0)["uuid"]]
    assert daemon.ask(f"get_client_list {server}") == [str(program.pid)]
    assert daemon.shown()["server"]["clients"] == [{"pid": program.pid, "uid": os.geteuid()}]
    program.gets("1Gi")
    uuid = daemon.node.gpu(0)["uuid"]
    row = daemon.ask("ps")[1].split(" ", 5)
    namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    assert row[:5] == [str(program.pid), "0", str(server), uuid[:22], namespace]
    assert row[5].endswith("/usr/bin/sim-mps-client -")
    assert daemon.ask("get_device_client_list") == [f"0 {program.pid}"]
    assert program.end() == 0
    eventually(lambda: is_gone(daemon, program), "the client is gone")
    assert daemon.server() == server  # it stays for the next one
    log = daemon.server_log()
    assert f"Client {{PID: {program.pid}, Context ID: 0}} connected" in log
    assert f"Client {{PID: {program.pid}, Context ID: 0}} exit" in log


def test_nvml_lists_client_and_server(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.attached(daemon)
    program.gets("3Gi")
    server = daemon.server()
    lists = daemon.node.nvml(
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "lists = [pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu),\n"
        "         pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]\n"
        "print(json.dumps([[(p.pid, p.usedGpuMemory) for p in l] for l in lists]))"
    )
    assert lists == [[[program.pid, 3 * GIB]], [[server, 30 << 20]]]
    table = daemon.node.smi().stdout
    assert f"{program.pid}    M+C   sim-mps-client" in table
    assert f"{server}      C   nvidia-cuda-mps-server" in table
    query = daemon.node.smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout
    assert query == f"{server}, 30 MiB\n{program.pid}, 3072 MiB\n"
    program.kill()
    assert used(daemon, "mps-client") == {}
    assert used(daemon, "mps-server") == {server: 30 << 20}


def test_default_limit_holds_for_each_client(mps: MpsBed, daemon: MpsDaemon) -> None:
    daemon.ask("set_default_device_pinned_mem_limit 0 10240M")
    first, second = mps.attached(daemon), mps.attached(daemon)
    for program in (first, second):
        assert program.refused_by("10241Mi") == "mps"
        program.gets("10Gi")
        assert program.refused_by("1") == "mps"
    memory = first.tell("memory")
    assert (memory["freeBytes"], memory["totalBytes"]) == (0, 10 * GIB)
    assert used(daemon, "mps-client") == {first.pid: 10 * GIB, second.pid: 10 * GIB}


def test_limits_and_percentages_are_those_of_the_time_of_attaching(
    mps: MpsBed, daemon: MpsDaemon
) -> None:
    daemon.ask("set_default_device_pinned_mem_limit 0 4G")
    old = mps.attached(daemon)
    server = daemon.server()
    daemon.ask("set_default_device_pinned_mem_limit 0 1G")  # only for the next server
    daemon.ask(f"set_device_pinned_mem_limit {server} 0 8G")  # may be above the default
    daemon.ask(f"set_active_thread_percentage {server} 50")
    new = mps.program(daemon)
    event = new.event("attached")
    assert event["devices"][0]["mpsLimitBytes"] == 8 * GIB
    assert event["activeThreadPercentage"] == 50.0
    assert old.refused_by("5Gi") == "mps"
    new.gets("5Gi")


@pytest.mark.parametrize(
    ("variable", "amount", "by"),
    [("0=2G", "3Gi", "client"), ("0=2048MB", "3Gi", "client"), ("0=8G", "5Gi", "mps")],
)
def test_own_variable_only_lowers(
    mps: MpsBed, daemon: MpsDaemon, variable: str, amount: str, by: str
) -> None:
    daemon.ask("set_default_device_pinned_mem_limit 0 4G")
    program = mps.attached(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=variable)
    assert program.refused_by(amount) == by
    program.gets("2Gi")


def test_own_variable_by_uuid_and_own_percentage(mps: MpsBed, daemon: MpsDaemon) -> None:
    daemon.ask("set_default_active_thread_percentage 50")
    uuid = daemon.node.gpu(0)["uuid"]
    lower = mps.program(
        daemon,
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"{uuid}=1G",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="20",
    ).event("attached")
    assert lower["devices"][0]["ownLimitBytes"] == GIB
    assert lower["activeThreadPercentage"] == 20.0
    higher = mps.program(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90").event("attached")
    assert higher["activeThreadPercentage"] == 50.0


def test_own_variable_counts_under_mps_only(mps: MpsBed) -> None:
    program = mps.attached(mps.node(), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")
    program.gets("2Gi")


def test_all_clients_together_have_no_more_than_the_gpu(mps: MpsBed, daemon: MpsDaemon) -> None:
    programs = [mps.attached(daemon) for _ in range(8)]
    answers = [program.tell("alloc 10Gi") for program in programs]
    assert [answer["event"] for answer in answers] == ["allocated"] * 7 + ["refused"]
    assert answers[7]["by"] == "device"
    programs[0].kill()
    programs[7].gets("10Gi")


@needs_root
def test_another_user_waits_until_the_clients_are_gone(mps: MpsBed, daemon: MpsDaemon) -> None:
    first = mps.attached(daemon, user=ALICE)
    alices = daemon.server()
    assert Path(f"/proc/{alices}").stat().st_uid == ALICE
    second = mps.program(daemon, user=BOB)
    eventually(lambda: daemon.shown()["pending"] == 1, "the other user's program waits")
    third = mps.program(daemon, user=ALICE)
    eventually(lambda: daemon.shown()["pending"] == 2, "nobody is let in any more")
    assert daemon.server() == alices
    first.gets("1Gi")
    assert first.end() == 0
    second.event("attached")
    server = daemon.server()
    assert server != alices
    assert Path(f"/proc/{server}").stat().st_uid == BOB
    assert daemon.ask(f"get_client_list {server}") == [str(second.pid)]
    second.end()
    third.event("attached")
    assert "push client to pending list" in daemon.control_log()


@needs_root
def test_multi_user_server_takes_all(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start("-multiuser-server")
    programs = [mps.attached(daemon, user=user) for user in (ALICE, BOB, 0)]
    server = daemon.server()
    assert Path(f"/proc/{server}").stat().st_uid == 0
    shown = daemon.shown()
    assert shown["multiUser"] is True
    assert [client["uid"] for client in shown["server"]["clients"]] == [ALICE, BOB, 0]
    for program in programs:
        program.gets("1Gi")
    assert used(daemon, "mps-client") == {program.pid: GIB for program in programs}


@pytest.mark.parametrize(("driver", "most"), [("580.95.05", 48), ("590.44.01", 60)])
def test_number_of_clients(mps: MpsBed, driver: str, most: int) -> None:
    node = mps.node()
    node.set_driver_version(driver)
    daemon = mps.daemon(node).start()
    programs = [mps.attached(daemon) for _ in range(most)]
    failed = mps.program(daemon).event("failed")
    assert failed["error"] == "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
    assert len(daemon.ask(f"get_client_list {daemon.server()}")) == most
    programs[0].kill()
    eventually(lambda: is_gone(daemon, programs[0]), "there is room again")
    mps.attached(daemon)


def test_terminated_client(mps: MpsBed, daemon: MpsDaemon) -> None:
    victim, other = mps.attached(daemon), mps.attached(daemon)
    victim.gets("2Gi")
    other.gets("1Gi")
    server = daemon.server()
    assert daemon.ask(f"terminate_client {server} 1") == ["Client 1 not found"]
    assert daemon.ask(f"terminate_client {server} {victim.pid}") == ["0"]
    assert victim.event("lost")["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert used(daemon, "mps-client") == {other.pid: GIB}
    assert victim.tell("alloc 1Gi")["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert victim.end() == 4
    other.gets("1Gi")
    assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]
    mps.attached(daemon)


def test_killed_server_ends_its_clients(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.attached(daemon)
    program.gets("1Gi")
    server = daemon.server()
    os.kill(server, signal.SIGKILL)
    assert program.event("lost")["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    eventually(lambda: daemon.node.gpu(0)["processes"] == [], "their memory is free")
    eventually(lambda: daemon.ask("get_server_list") == [], "the daemon notices")
    assert f"Server {server} exited with status 9" in daemon.control_log()
    mps.attached(daemon)
    assert daemon.server() != server


def test_killed_daemon_leaves_clients_attached(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.attached(daemon)
    server = daemon.server()
    os.kill(daemon.pid, signal.SIGKILL)
    program.gets("1Gi")
    assert mps.program(daemon).event("attached")["mps"] is False
    assert program.end() == 0
    eventually(lambda: not Path(f"/proc/{server}").exists(), "the server leaves after its clients")


def test_fatal_fault_ends_all_clients(mps: MpsBed, daemon: MpsDaemon) -> None:
    faulty, other = mps.attached(daemon), mps.attached(daemon)
    other.gets("1Gi")
    assert faulty.tell("fault")["event"] == "faulted"
    for program in (faulty, other):
        assert program.event("lost")["error"] == "CUDA_ERROR_LAUNCH_FAILED"
    server = daemon.server()
    assert daemon.ask(f"get_server_status {server}") == ["FAULT"]
    refused = mps.program(daemon).event("failed")
    assert refused["error"] == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    faulty.end()
    assert daemon.ask(f"get_server_status {server}") == ["FAULT"]
    other.end()
    eventually(lambda: daemon.ask(f"get_server_status {server}") == ["ACTIVE"], "it recovers")
    mps.attached(daemon)


def test_without_the_same_shared_memory_there_is_no_client(mps: MpsBed, tmp_path: Path) -> None:
    daemon = mps.daemon(mps.node())
    daemon.environment["SIM_MPS_SHM"] = str(tmp_path / "not-there")
    daemon.start()
    failed = mps.program(daemon).event("failed")
    assert failed["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    segments = Path("/dev/shm").glob(f"cuda.shm.*.{daemon.server():x}.*")
    assert list(segments) == []
    assert "MPS Server failed to create/open SHM segment." in daemon.server_log()


def test_quit_waits_for_clients_unless_told_how_long(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.attached(daemon)
    assert daemon.ask("quit -t 0") == []
    assert program.event("lost")["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"
    daemon.start()
    program = mps.attached(daemon)
    with daemon.talk("quit") as quitting:
        eventually(lambda: daemon.shown()["server"]["status"] == "LEAVING", "the server leaves")
        failed = mps.program(daemon).event("failed")
        assert failed["error"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert quitting.poll() is None
        program.gets("1Gi")
        assert program.end() == 0
        assert quitting.wait(timeout=60) == 0
    assert daemon.node.show()["mps"] == []


def test_forced_shutdown_of_a_server(mps: MpsBed, daemon: MpsDaemon) -> None:
    program = mps.attached(daemon)
    server = daemon.server()
    daemon.ask(f"shutdown_server {server}")
    program.gets("1Gi")
    daemon.ask(f"shutdown_server {server} -f")
    assert program.event("lost")["error"] == "CUDA_ERROR_MPS_RPC_FAILURE"


def test_a_daemon_that_is_slow_to_read_hears_of_every_end(mps: MpsBed, daemon: MpsDaemon) -> None:
    programs = [mps.attached(daemon) for _ in range(45)]
    os.kill(daemon.pid, signal.SIGSTOP)
    for program in programs:
        program._say("alloc 1Mi\nfree\n" * 3)  # more news than the socket to the daemon holds
    time.sleep(0.5)  # for what its server does without waiting
    for program in programs:
        program.kill()
    time.sleep(0.5)
    os.kill(daemon.pid, signal.SIGCONT)
    eventually(lambda: daemon.shown()["server"]["clients"] == [], "the daemon knows of all ends")
