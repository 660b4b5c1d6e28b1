"""nvidia-cuda-mps-control on a simulated node: options, commands and their answers."""

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.mps import MpsBed, MpsDaemon, eventually, needs_root

NOBODY = 65534


@pytest.fixture
def daemon(mps: MpsBed) -> MpsDaemon:
    """Give a running daemon of a node with two H100."""
    return mps.daemon(mps.node(gpus=2)).start()


def test_files_of_the_pipe_folder(daemon: MpsDaemon) -> None:
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in daemon.pipe.iterdir()}
    assert modes == {
        "control": "srw-rw-rw-",
        "control_lock": "-rw-rw-rw-",
        "control_privileged": "srwxr-xr-x",
        "nvidia-cuda-mps-control.pid": "-rw-rw-rw-",
    }
    command = Path(f"/proc/{daemon.pid}/cmdline").read_bytes().split(b"\0")
    assert command[0].endswith(b"/usr/bin/nvidia-cuda-mps-control")
    assert command[1] == b"-d"
    assert os.getsid(daemon.pid) == daemon.pid


def test_no_daemon(mps: MpsBed) -> None:
    done = mps.daemon(mps.node()).control(say="get_server_list\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Cannot find MPS control daemon process\n"


def test_second_daemon_in_one_folder(daemon: MpsDaemon) -> None:
    done = daemon.control("-d")
    assert done.returncode == 1
    assert done.stdout == "An instance of this daemon is already running\n"
    assert daemon.ask("get_server_list") == []


def test_folder_of_a_killed_daemon_is_taken_over(daemon: MpsDaemon) -> None:
    killed = daemon.pid
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: daemon.node.show()["mps"] == [], "the daemon is dead")
    assert daemon.control(say="get_server_list\n").returncode == 1
    assert (daemon.pipe / "control").exists()
    daemon.start()
    assert daemon.pid != killed
    assert daemon.ask("get_server_list") == []


def test_pipe_folder_with_too_long_a_path(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node())
    long = daemon.pipe.parent / ("long" * 25)
    daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(long)
    done = daemon.control("-d")
    assert done.returncode == 1
    assert "Cannot find MPS control daemon process" in done.stderr
    assert "File name too long" in daemon.control_log()


def test_foreground(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node())
    program = str(daemon.node.root / "usr/bin/nvidia-cuda-mps-control")
    with subprocess.Popen([program, "-f"], env=daemon.environment) as running:
        eventually((daemon.pipe / "nvidia-cuda-mps-control.pid").exists, "it starts")
        assert daemon.pid == running.pid
        assert daemon.ask("quit") == []
        assert running.wait(timeout=60) == 0


@pytest.mark.parametrize("arguments", [["-x"], ["-d", "-f"], ["-M"]])
def test_wrong_options(mps: MpsBed, arguments: list[str]) -> None:
    assert mps.daemon(mps.node()).control(*arguments).returncode == 1


def test_quit_leaves_nothing_that_is_in_use(daemon: MpsDaemon) -> None:
    pid = daemon.pid
    daemon.ask("start_server -uid 0")
    server = daemon.server()
    assert daemon.ask("quit") == []
    assert not Path(f"/proc/{server}").exists()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the daemon is gone")
    assert [path.name for path in daemon.pipe.iterdir()] == ["control_lock"]
    assert daemon.node.show()["mps"] == []
    assert daemon.node.gpu(0)["processes"] == []
    daemon.start()


def test_server_by_hand(daemon: MpsDaemon) -> None:
    assert daemon.ask("start_server -uid 0") == []
    server = daemon.server()
    assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]
    assert daemon.ask(f"get_client_list {server}") == []
    assert daemon.ask("get_device_client_list") == ["0", "1"]
    assert Path(f"/proc/{server}/cmdline").read_bytes() == b"nvidia-cuda-mps-server\0"
    assert [line.split()[0] for line in daemon.ask("start_server -uid 0")] == ["Server"]
    assert daemon.ask(f"shutdown_server {server}") == []
    eventually(lambda: daemon.ask("get_server_list") == [], "the server leaves")
    assert f"Server {server} exited with status 0" in daemon.control_log()


def test_server_can_not_be_started_alone(daemon: MpsDaemon) -> None:
    program = str(daemon.node.root / "usr/bin/nvidia-cuda-mps-server")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "nvidia-cuda-mps-control" in done.stderr


def test_thread_percentage(daemon: MpsDaemon) -> None:
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]
    assert daemon.ask("set_default_active_thread_percentage 25") == ["25.0"]
    daemon.ask("start_server -uid 0")
    server = daemon.server()
    assert daemon.ask("set_default_active_thread_percentage 12.5") == ["12.5"]
    assert daemon.ask(f"get_active_thread_percentage {server}") == ["25.0"]
    assert daemon.ask(f"set_active_thread_percentage {server} 50") == ["50.0"]
    assert daemon.ask(f"get_active_thread_percentage {server}") == ["50.0"]
    assert daemon.ask("get_default_active_thread_percentage") == ["12.5"]


@pytest.mark.parametrize("value", ["0", "101", "-1", "all", "10%"])
def test_invalid_percentage(daemon: MpsDaemon, value: str) -> None:
    (line,) = daemon.ask(f"set_default_active_thread_percentage {value}")
    assert line == f"Invalid active thread percentage {value}"
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("10G", "10G"), ("900M", "900M"), ("1024M", "1G"), ("1044M", "1G"), ("81559M", "79G")],
)
def test_limits_are_shown_in_whole_gibibytes(daemon: MpsDaemon, given: str, shown: str) -> None:
    assert daemon.ask(f"set_default_device_pinned_mem_limit 0 {given}") == []
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == [shown]
    number, unit = int(given[:-1]), {"M": 1 << 20, "G": 1 << 30}[given[-1]]
    assert daemon.shown()["pinnedMemoryLimits"] == {"0": number * unit}


@pytest.mark.parametrize("value", ["10", "-1M", "10K", "lots", "1.5G", "99999999999999999999G"])
def test_invalid_limit(daemon: MpsDaemon, value: str) -> None:
    (line,) = daemon.ask(f"set_default_device_pinned_mem_limit 0 {value}")
    assert line == f"Invalid device pinned memory limit {value}"
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == ["0M"]


def test_default_limits_by_position_and_by_uuid_are_kept_apart(daemon: MpsDaemon) -> None:
    uuids = [gpu["uuid"] for gpu in daemon.node.show()["gpus"]]
    daemon.ask(f"set_default_device_pinned_mem_limit {uuids[0]} 2G")
    daemon.ask("set_default_device_pinned_mem_limit 1 3G")
    daemon.ask(f"set_default_device_pinned_mem_limit {uuids[1]} 4G")
    daemon.ask("set_default_device_pinned_mem_limit 7 5G")
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == ["0M"]
    assert daemon.ask(f"get_default_device_pinned_mem_limit {uuids[0]}") == ["2G"]
    daemon.ask("start_server -uid 0")
    server = daemon.server()
    for position, limit in enumerate(["2G", "4G"]):  # what was set last holds
        assert daemon.ask(f"get_device_pinned_mem_limit {server} {position}") == [limit]
        assert daemon.ask(f"get_device_pinned_mem_limit {server} {uuids[position]}") == [limit]
    assert daemon.ask(f"set_device_pinned_mem_limit {server} {uuids[0]} 9G") == []
    assert daemon.ask(f"get_device_pinned_mem_limit {server} 0") == ["9G"]
    assert daemon.ask(f"get_device_pinned_mem_limit {server} 7") == ["Device 7 not found"]


def test_old_drivers_apply_limits_by_position_only(mps: MpsBed) -> None:
    node = mps.node()
    node.set_driver_version("550.54.15")
    daemon = mps.daemon(node).start()
    uuid = node.gpu(0)["uuid"]
    assert daemon.ask(f"set_default_device_pinned_mem_limit {uuid} 2G") == []
    daemon.ask("start_server -uid 0")
    assert daemon.shown()["server"]["devices"] == [{"uuid": uuid, "pinnedMemoryLimit": 0}]


def test_defaults_from_the_environment(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node())
    daemon.environment |= {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=512MB,nonsense",
    }
    daemon.start()
    assert daemon.ask("get_default_active_thread_percentage") == ["30.0"]
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == ["1G"]
    assert daemon.ask("get_default_device_pinned_mem_limit 1") == ["512M"]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("frobnicate", "Unknown command frobnicate"),
        ("get_server_status", "Invalid number of arguments for get_server_status"),
        ("get_server_status 1", "Server 1 not found"),
        ("get_client_list x", "Server x not found"),
        ("terminate_client 1 2", "Server 1 not found"),
        ("start_server 0 -uid", "Usage: start_server -uid <user id>"),
        ("ps -x 1", "Usage: ps [-p <PID>]"),
        ("ps", "PID ID SERVER DEVICE NAMESPACE COMMAND"),
    ],
)
def test_answers_without_a_server(daemon: MpsDaemon, command: str, answer: str) -> None:
    assert daemon.ask(command) == [answer]


def test_several_commands_in_one_go(daemon: MpsDaemon) -> None:
    say = "set_default_active_thread_percentage 40\n\nget_default_active_thread_percentage\n"
    assert daemon.control(say=say).stdout == "40.0\n40.0\n"


def test_control_log(daemon: MpsDaemon) -> None:
    daemon.ask("get_default_active_thread_percentage")
    eventually(lambda: daemon.control_log().endswith("UI closed\n"), "the UI is gone")
    lines = daemon.control_log().splitlines()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} Control +\d+\] "
    texts = [re.sub(stamp, "", line) for line in lines]
    assert all(re.match(stamp, line) for line in lines)
    variable = f"CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}"
    assert texts[:2] == [
        f"Starting control daemon using socket {daemon.pipe}/control",
        f"To connect CUDA applications to this daemon, set env {variable}",
    ]
    command = "Cmd:get_default_active_thread_percentage"
    assert texts[2:] == ["Accepting connection...", "NEW UI", command, "100.0", "UI closed"]


@needs_root
def test_other_users_may_ask_but_not_change(daemon: MpsDaemon) -> None:
    assert daemon.ask("get_server_list", user=NOBODY) == []
    (line,) = daemon.ask("set_default_active_thread_percentage 10", user=NOBODY)
    assert line == "Insufficient permission for set_default_active_thread_percentage"
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]


def test_state_of_the_node_shows_it(daemon: MpsDaemon) -> None:
    daemon.ask("set_default_active_thread_percentage 20")
    shown = daemon.shown()
    assert shown["pid"] == daemon.pid
    assert shown["logDirectory"] == str(daemon.log)
    assert (shown["multiUser"], shown["server"], shown["pending"]) == (False, None, 0)
    assert shown["activeThreadPercentage"] == 20.0
    os.kill(daemon.pid, signal.SIGKILL)
    eventually(lambda: daemon.node.show()["mps"] == [], "a killed daemon is shown no longer")


def test_reboot_ends_daemon_and_server(daemon: MpsDaemon) -> None:
    daemon.ask("start_server -uid 0")
    pids = (daemon.pid, daemon.server())
    daemon.node.reboot()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both are gone")
    assert daemon.node.show()["mps"] == []
