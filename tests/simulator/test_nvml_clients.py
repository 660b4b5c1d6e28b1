"""Settings that hold from the first client of a GPU to the last, and who the clients are."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.node import SimulatedNode

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
DEFAULT = pynvml.NVML_COMPUTEMODE_DEFAULT

_CLIENT = """
import ctypes, os, sys, pynvml
if sys.argv[2] == "read-only":
    if os.geteuid() == 0:
        os.setuid(65534)
    assert not os.access(sys.argv[3], os.W_OK)
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceGetName(gpu)
print("open", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Client:
    """Another process that has GPU 0 open."""

    def __init__(self, node: SimulatedNode, mode: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, str(node.library), mode, node.show()["stateFile"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "open"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return self.answer()

    def mode(self) -> int:
        return int(self.ask("pynvml.nvmlDeviceGetComputeMode(gpu)"))

    def leave(self) -> None:
        self.process.communicate("", timeout=30)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


StartClient = Callable[..., Client]


@pytest.fixture
def start(nvml_node: SimulatedNode) -> Iterator[StartClient]:
    """Start a client of the node; `mode` may be `read-only`."""
    pynvml.nvmlShutdown()
    for path in (nvml_node.root, *nvml_node.root.parents):
        if path == Path(tempfile.gettempdir()):
            break
        path.chmod(path.stat().st_mode | 0o055)  # an unprivileged client must get there
    clients: list[Client] = []

    def begin(mode: str = "read-write") -> Client:
        state = Path(nvml_node.show()["stateFile"])
        state.chmod(0o444 if mode == "read-only" and os.geteuid() else 0o644)
        clients.append(Client(nvml_node, mode))
        state.chmod(0o644)
        return clients[-1]

    yield begin
    for client in clients:
        client.kill()


def set_exclusive(client: Client) -> None:
    client.ask(f"pynvml.nvmlDeviceSetComputeMode(gpu, {EXCLUSIVE})")
    assert client.mode() == EXCLUSIVE


def shown_mode(node: SimulatedNode) -> Any:
    return node.gpu(0)["computeMode"]


def test_mode_ends_with_the_last_client(nvml_node: SimulatedNode, start: StartClient) -> None:
    first, second = start(), start()
    set_exclusive(first)
    first.leave()
    assert second.mode() == EXCLUSIVE
    assert shown_mode(nvml_node) == "EXCLUSIVE_PROCESS"
    second.leave()
    assert shown_mode(nvml_node) == "DEFAULT"
    assert start().mode() == DEFAULT


def test_a_killed_client_counts_no_longer(nvml_node: SimulatedNode, start: StartClient) -> None:
    client = start()
    set_exclusive(client)
    client.kill()
    assert shown_mode(nvml_node) == "DEFAULT"
    assert nvml_node.gpu(0)["open"] is False
    assert start().mode() == DEFAULT


def test_a_short_lived_setter_sets_into_the_void(
    nvml_node: SimulatedNode, start: StartClient
) -> None:
    assert nvml_node.smi("-i", "0", "-c", "3").returncode == 0
    assert start().mode() == DEFAULT
    assert nvml_node.smi("-i", "0", "-c", "3").returncode == 0
    assert shown_mode(nvml_node) == "EXCLUSIVE_PROCESS"


def test_persistence_mode_keeps_it(nvml_node: SimulatedNode, start: StartClient) -> None:
    nvml_node.state.set_persistence(0, on=True)
    client = start()
    set_exclusive(client)
    client.leave()
    assert shown_mode(nvml_node) == "EXCLUSIVE_PROCESS"
    assert start().mode() == EXCLUSIVE


def test_time_slice_is_kept_and_lost_likewise(nvml_node: SimulatedNode, start: StartClient) -> None:
    keeper = start()
    uuid = nvml_node.gpu(0)["uuid"]
    nvml_node.smi("compute-policy", "-i", uuid, "--set-timeslice", "2")
    assert nvml_node.gpu(0)["timeslice"] == 2
    keeper.leave()
    assert nvml_node.gpu(0)["timeslice"] == 0


def test_reader_joins_a_session_and_keeps_it(nvml_node: SimulatedNode, start: StartClient) -> None:
    writer = start()
    set_exclusive(writer)
    reader = start("read-only")
    writer.leave()
    assert reader.mode() == EXCLUSIVE
    assert start().mode() == EXCLUSIVE
    assert shown_mode(nvml_node) == "EXCLUSIVE_PROCESS"


def test_reader_does_not_revive_a_session(nvml_node: SimulatedNode, start: StartClient) -> None:
    writer = start()
    set_exclusive(writer)
    writer.kill()
    reader = start("read-only")
    assert reader.mode() == DEFAULT
    assert nvml_node.gpu(0)["open"] is True
    assert start().mode() == DEFAULT
    assert reader.mode() == DEFAULT


def test_reader_can_change_nothing(nvml_node: SimulatedNode, start: StartClient) -> None:
    reader = start("read-only")
    code = f"pynvml._nvmlGetFunctionPointer('nvmlDeviceSetComputeMode')(gpu, {EXCLUSIVE})"
    assert int(reader.ask(code)) == pynvml.NVML_ERROR_NO_PERMISSION
    assert nvml_node.state.calls() == []


def test_reader_waits_for_events(nvml_node: SimulatedNode, start: StartClient) -> None:
    reader = start("read-only")
    reader.ask("globals().__setitem__('s', pynvml.nvmlEventSetCreate())")
    reader.ask("pynvml.nvmlDeviceRegisterEvents(gpu, 8, s)")
    nvml_node.state.xid(0, 63)
    assert reader.ask("pynvml.nvmlEventSetWait(s, 30000).eventData") == "63"


def test_mig_devices_have_their_own_mode(nvml_node: SimulatedNode, start: StartClient) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    for begin in (0, 1):
        nvml_node.state.partition(0, "1g.10gb", begin)
    client = start()
    for index in (0, 1):
        expression = f"pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, {index})"
        client.ask(f"globals().__setitem__('m{index}', {expression})")
    client.ask(f"pynvml.nvmlDeviceSetComputeMode(m1, {EXCLUSIVE})")
    assert int(client.ask("pynvml.nvmlDeviceGetComputeMode(m0)")) == DEFAULT
    assert int(client.ask("pynvml.nvmlDeviceGetComputeMode(m1)")) == EXCLUSIVE


def test_reset_needs_the_gpu_for_itself(nvml_node: SimulatedNode, start: StartClient) -> None:
    client = start()
    refused = nvml_node.smi("--gpu-reset", "-i", "0")
    assert refused.returncode != 0
    client.leave()
    assert nvml_node.smi("--gpu-reset", "-i", "0").returncode == 0


def test_driver_reload_ends_all_sessions(nvml_node: SimulatedNode, start: StartClient) -> None:
    client = start()
    set_exclusive(client)
    nvml_node.state.driver_reload()
    assert nvml_node.gpu(0)["open"] is False
    assert start().mode() == DEFAULT
