"""Which GPUs and partitions an MPS server has, and what compute modes let it have."""

import pytest

from tests.support.mps import CudaProgram, MpsBed, MpsDaemon, eventually
from tests.support.node import SimulatedNode

GIB = 1 << 30


def set_mode(node: SimulatedNode, mode: str, gpu: int = 0) -> None:
    """Set a compute mode that stays."""
    node.state.set_persistence(gpu, on=True)
    assert node.smi("-i", str(gpu), "-c", mode).returncode == 0


def partitions(node: SimulatedNode, *starts: int) -> list[str]:
    """Make 1g.10gb partitions on GPU 0; gives their UUIDs."""
    node.state.set_mig_mode(0, on=True)
    for start in starts:
        node.state.partition(0, "1g.10gb", start)
    return [gi["computeInstances"][0]["uuid"] for gi in node.gpu(0)["instances"]]


def fails(mps: MpsBed, daemon: MpsDaemon, why: str) -> None:
    """Expect that no server starts, for a program and by hand."""
    failed = mps.program(daemon).event("failed")
    assert failed["error"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    answer = daemon.ask("start_server -uid 0")
    assert answer == ["Failed to start a server for user 0, see server.log"]
    assert "MPS server failed to start" in daemon.server_log()
    assert why in daemon.server_log()
    assert daemon.ask("get_server_list") == []
    assert "exited with status 1" in daemon.control_log()


def devices_of(program: CudaProgram) -> list[str]:
    return [device["uuid"] for device in program.event("attached")["devices"]]


def test_daemon_chooses_the_devices_and_their_order(mps: MpsBed) -> None:
    node = mps.node(gpus=4)
    uuids = [gpu["uuid"] for gpu in node.show()["gpus"]]
    daemon = mps.daemon(node, f"{uuids[2]},{uuids[0]}").start()
    daemon.ask("set_default_device_pinned_mem_limit 0 1G")
    daemon.ask(f"set_default_device_pinned_mem_limit {uuids[0]} 2G")
    event = mps.program(daemon).event("attached")
    limits = [(device["uuid"], device["mpsLimitBytes"]) for device in event["devices"]]
    assert limits == [(uuids[2], GIB), (uuids[0], 2 * GIB)]
    assert devices_of(mps.program(daemon, CUDA_VISIBLE_DEVICES="1")) == [uuids[0]]
    assert devices_of(mps.program(daemon, CUDA_VISIBLE_DEVICES=uuids[0][:12])) == [uuids[0]]
    failed = mps.program(daemon, CUDA_VISIBLE_DEVICES="2").event("failed")
    assert failed["error"] == "CUDA_ERROR_NO_DEVICE"  # of the node's numbers nothing is left


def test_program_uses_both_devices(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node(gpus=2)).start()
    program = mps.attached(daemon, "alloc", "1Gi", "device", "1", "alloc", "2Gi")
    assert [program.event("allocated")["device"] for _ in range(2)] == [0, 1]
    used = [
        [entry["memoryBytes"] for entry in gpu["processes"] if entry["type"] == "mps-client"]
        for gpu in daemon.node.show()["gpus"]
    ]
    assert used == [[GIB], [2 * GIB]]
    assert len(daemon.ask("ps")) == 3
    assert daemon.ask("get_device_client_list") == [f"{i} {program.pid}" for i in (0, 1)]


@pytest.mark.parametrize("devices", ["GPU-00000000-0000", "7", "nonsense"])
def test_unknown_device(mps: MpsBed, devices: str) -> None:
    fails(mps, mps.daemon(mps.node(), devices).start(), "Invalid CUDA_VISIBLE_DEVICES")


def test_no_device(mps: MpsBed) -> None:
    node = mps.node(gpus=2)
    uuid = node.gpu(1)["uuid"]
    daemon = mps.daemon(node, uuid).start()
    (node.root / "dev/nvidia1").unlink()
    fails(mps, daemon, "Invalid CUDA_VISIBLE_DEVICES")


def test_gpus_before_volta(mps: MpsBed) -> None:
    fails(mps, mps.daemon(mps.node(model="p4")).start(), "SM 7.0 or higher")


def test_gpus_before_volta_are_left_out_beside_later_ones(mps: MpsBed) -> None:
    node = mps.node(model="p4")
    node.add_gpu("t4", seed="t")
    (uuid,) = [gpu["uuid"] for gpu in node.show()["gpus"] if gpu["model"] == "t4"]
    assert devices_of(mps.program(mps.daemon(node).start())) == [uuid]


def test_exclusive_process_admits_one_server(mps: MpsBed) -> None:
    node = mps.node()
    set_mode(node, "EXCLUSIVE_PROCESS")
    first, second = mps.daemon(node).start(), mps.daemon(node).start()
    mps.attached(first).gets("1Gi")
    mps.attached(first).gets("1Gi")  # clients of the one server are no processes of their own
    fails(mps, second, "Failed to create a context on device 0")
    direct = mps.attached(node)
    unavailable = direct.tell("alloc 1Gi")
    assert (unavailable["event"], unavailable["code"]) == ("unavailable", 46)
    first.ask("quit -t 0")
    mps.attached(second)


def test_default_mode_admits_several_servers(mps: MpsBed) -> None:
    node = mps.node()
    daemons = [mps.daemon(node).start() for _ in range(2)]
    for daemon in daemons:
        mps.attached(daemon).gets("1Gi")
    mps.attached(node).gets("1Gi")
    assert len(node.show()["mps"]) == 2


def test_exclusive_process_without_mps(mps: MpsBed) -> None:
    node = mps.node()
    set_mode(node, "EXCLUSIVE_PROCESS")
    first, second = mps.attached(node), mps.attached(node)
    first.gets("1Gi")
    assert second.tell("alloc 1Gi")["error"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    first.kill()
    second.gets("1Gi")


def test_server_in_exclusive_mode_waits_for_nobody(mps: MpsBed) -> None:
    node = mps.node()
    set_mode(node, "EXCLUSIVE_PROCESS")
    mps.attached(node).gets("1Gi")
    fails(mps, mps.daemon(node).start(), "is in use or prohibited")


def test_prohibited(mps: MpsBed) -> None:
    node = mps.node()
    set_mode(node, "PROHIBITED")
    assert mps.attached(node).tell("alloc 1Gi")["code"] == 46
    fails(mps, mps.daemon(node).start(), "is in use or prohibited")


def test_daemon_on_each_partition(mps: MpsBed) -> None:
    node = mps.node()
    uuids = partitions(node, 0, 1)
    node.state.set_persistence(0, on=True)
    node.nvml(
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "for index in (0, 1):\n"
        "    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)\n"
        "    pynvml.nvmlDeviceSetComputeMode(mig, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)\n"
    )
    daemons = [mps.daemon(node, uuid).start() for uuid in uuids]
    for number, daemon in enumerate(daemons):
        daemon.ask(f"set_default_device_pinned_mem_limit {uuids[number]} {number + 2}G")
        program = mps.program(daemon)
        assert devices_of(program) == [uuids[number]]
        program.gets(f"{number + 2}Gi")
        assert program.refused_by("1Mi") == "mps"
        memory = program.tell("memory")
        assert memory["totalBytes"] == 9984 << 20  # on partitions the limit does not show
    ids = [gi["id"] for gi in node.gpu(0)["instances"]]
    found = [(entry["gi"], entry["type"]) for entry in node.gpu(0)["processes"]]
    assert sorted(found) == sorted(
        (gi, f"mps-{kind}") for gi in ids for kind in ("client", "server")
    )
    fails(mps, mps.daemon(node, uuids[0]).start(), "is in use or prohibited")


def test_partition_with_a_server_can_not_be_removed(mps: MpsBed) -> None:
    node = mps.node()
    (uuid,) = partitions(node, 0)
    daemon = mps.daemon(node, uuid).start()
    daemon.ask("start_server -uid 0")
    assert node.smi("mig", "-dci").returncode == 19  # in use
    daemon.ask("quit")
    assert node.smi("mig", "-dci").returncode == 0
    assert node.smi("mig", "-dgi").returncode == 0


def test_whole_gpu_is_no_device_while_it_is_partitioned(mps: MpsBed) -> None:
    node = mps.node()
    partitions(node, 0)
    daemon = mps.daemon(node, node.gpu(0)["uuid"]).start()
    fails(mps, daemon, "Invalid CUDA_VISIBLE_DEVICES")


def test_server_keeps_the_gpu_open(mps: MpsBed) -> None:
    node = mps.node()
    daemon = mps.daemon(node).start()
    daemon.ask("start_server -uid 0")
    assert node.gpu(0)["open"] is True
    assert node.smi("-i", "0", "-c", "EXCLUSIVE_PROCESS").returncode == 0
    assert node.gpu(0)["computeMode"] == "EXCLUSIVE_PROCESS"
    daemon.ask("quit")
    assert node.gpu(0)["open"] is False
    assert node.gpu(0)["computeMode"] == "DEFAULT"


def test_reset_ends_server_and_clients(mps: MpsBed) -> None:
    daemon = mps.daemon(mps.node()).start()
    program = mps.attached(daemon)
    program.gets("1Gi")
    assert daemon.node.smi("--gpu-reset", "-i", "0").returncode == 19  # in use
    daemon.node.state.reset(0)
    assert program.event("lost")["event"] == "lost"
    assert daemon.node.gpu(0)["processes"] == []  # those were of the GPU as it was before
    eventually(lambda: daemon.ask("get_server_list") == [], "the server is gone")
