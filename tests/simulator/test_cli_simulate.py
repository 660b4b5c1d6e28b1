"""`dra-driver simulate`: each command as the issue tracker's contract words it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli import main
from tests.support.node import MakeNode, SimulatedNode

Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dra-driver simulate …`; gives exit code, output and errors."""

    def simulate(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(["simulate", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return simulate


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    """Give a node with an H100 that has MIG on, an H100 without, and nothing else."""
    node = make_node(gpus=2)
    node.state.set_mig_mode(0, on=True)
    return node


def shown(run: Run, root: Path) -> dict[str, Any]:
    code, out, _ = run("show", root, "-o", "json")
    assert code == 0
    state: dict[str, Any] = json.loads(out)
    return state


def test_create_makes_what_is_asked_for(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "node"
    code, out, err = run(
        "create", root, "--model", "h200", "--gpus", 4, "--driver-version", "570.86.15",
        "--device-nodes", "plain", "--seed", "x",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out == f"{root}: 4 x h200, driver 570.86.15\n"
    state = shown(run, root)
    assert [gpu["model"] for gpu in state["gpus"]] == ["h200"] * 4
    assert state["driverVersion"] == "570.86.15"


def test_create_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("gpus: [{model: t4, count: 2}, {model: gb10}]")
    code, _, _ = run("create", tmp_path / "node", "--file", tmp_path / "node.yaml")
    assert code == 0
    models = [gpu["model"] for gpu in shown(run, tmp_path / "node")["gpus"]]
    assert sorted(models) == ["gb10", "t4", "t4"]


def test_zero_gpus_are_possible(run: Run, tmp_path: Path) -> None:
    assert run("create", tmp_path / "node", "--gpus", 0)[0] == 0
    assert shown(run, tmp_path / "node")["gpus"] == []
    assert run("add", tmp_path / "node", "--model", "t4")[:2] == (0, "0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "h1000"], "model 'h1000' is not known; there are a100-40gb, "),
        (["--gpus", "17"], "17 is not in the range 0<=x<=16"),
        (["--driver-version", "../../x"], "driver version '../../x' should look like 580.95.05"),
        (["--file", "x", "--gpus", "2"], "leave out --model and --gpus"),
        (["--file", "/absent/node.yaml"], "cannot read /absent/node.yaml"),
    ],
)
def test_wrong_usage_of_create(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, err = run("create", tmp_path / "node", *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "node").exists()


def test_mig_mode_and_partitions(run: Run, node: SimulatedNode) -> None:
    assert run("mig-mode", node.root, "--gpu", 1, "on")[0] == 0
    code, gi, _ = run("partition", node.root, "--gpu", 1, "--profile", "3g.40gb", "--start", 4)
    assert code == 0
    (instance,) = node.gpu(1)["instances"]
    assert (instance["id"], instance["start"]) == (int(gi), 4)
    assert len(instance["computeInstances"]) == 1
    assert run("unpartition", node.root, "--gpu", 1, "--gi", gi.strip())[0] == 0
    assert node.gpu(1)["instances"] == []
    assert run("mig-mode", node.root, "--gpu", 1, "off")[0] == 0
    assert node.gpu(1)["mig"]["current"] is False


def test_partition_without_compute_instance(run: Run, node: SimulatedNode) -> None:
    arguments = ("--gpu", 0, "--profile", "1g.10gb", "--no-compute-instance")
    assert run("partition", node.root, *arguments)[0] == 0
    (instance,) = node.gpu(0)["instances"]
    assert instance["computeInstances"] == []


def test_ampere_mode_is_pending_until_reset(run: Run, make_node: MakeNode) -> None:
    node = make_node(model="a100-40gb")
    query = ("--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader")
    run("mig-mode", node.root, "--gpu", 0, "on")
    assert node.smi(*query).stdout == "Disabled, Enabled\n"
    assert run("reset", node.root, "--gpu", 0)[0] == 0
    assert node.smi(*query).stdout == "Enabled, Enabled\n"


def test_unknown_profile_lists_those_there_are(run: Run, node: SimulatedNode) -> None:
    code, _, err = run("partition", node.root, "--gpu", 0, "--profile", "1g.11gb")
    assert code == 2
    assert "--profile 1g.11gb: h100-80gb has 1g.10gb (19), 1g.10gb+me (20), " in err
    assert "7g.80gb (0)" in err


def test_gpu_without_mig_is_explained(run: Run, make_node: MakeNode) -> None:
    code, _, err = run("mig-mode", make_node(model="t4").root, "--gpu", 0, "on")
    assert code == 1
    assert "MIG" in err


@pytest.mark.parametrize("command", ["ecc", "lose", "restore", "reset", "remove"])
def test_gpu_out_of_range_is_explained(run: Run, node: SimulatedNode, command: str) -> None:
    code, _, err = run(command, node.root, "--gpu", 7)
    assert (code, err) == (2, "Error: --gpu 7: the node has GPUs 0 to 1\n")


def test_gpu_by_uuid_and_bus_id(run: Run, node: SimulatedNode) -> None:
    for text in (node.gpu(1)["uuid"], node.gpu(1)["pci"]):
        assert run("lose", node.root, "--gpu", text)[0] == 0
        assert [gpu["lost"] for gpu in node.show()["gpus"]] == [False, True]
        assert run("restore", node.root, "--gpu", text)[0] == 0
        assert [gpu["lost"] for gpu in node.show()["gpus"]] == [False, False]
    code, _, err = run("lose", node.root, "--gpu", "GPU-absent")
    assert code == 2
    assert "--gpu GPU-absent: " in err


def test_fault_counts_down_and_clear_forgets(run: Run, node: SimulatedNode) -> None:
    fault = ("fault", node.root, "--gpu", 1, "--call", "nvmlDeviceGetUUID")
    assert run(*fault, "--error", "NOT_SUPPORTED", "--times", 1)[0] == 0
    listing = node.smi("-L").stdout
    assert listing.splitlines()[1].endswith("(UUID: ERR!)")
    assert "ERR!" not in node.smi("-L").stdout
    assert run(*fault, "--error", "NVML_ERROR_UNKNOWN")[0] == 0
    assert "ERR!" in node.smi("-L").stdout
    assert "nvmlDeviceGetUUID" in run("show", node.root)[1]
    assert run("clear", node.root)[0] == 0
    assert "ERR!" not in node.smi("-L").stdout


def test_fault_on_all_gpus_and_hanging(run: Run, node: SimulatedNode) -> None:
    run("fault", node.root, "--gpu", "all", "--call", "nvmlDeviceGetName", "--hang", "0.2")
    fault = shown(run, node.root)["faults"][0]
    assert fault["call"] == "nvmlDeviceGetName"
    assert node.smi("-L").stdout.count("NVIDIA H100") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--call", "nvmlDeviceGetUUID", "--error", "NO_SUCH"],
            2,
            "NVML has no error named NO_SUCH",
        ),
        (["--call", "nvmlDeviceFly", "--error", "UNKNOWN"], 2, "has no function nvmlDeviceFly"),
        (["--call", "nvmlDeviceGetUUID"], 2, "--error or --hang is needed"),
        (["--call", "nvmlDeviceGetUUID", "--hang", "-1"], 2, "not in the range"),
    ],
)
def test_wrong_fault_is_refused(
    run: Run, node: SimulatedNode, arguments: list[str], code: int, message: str
) -> None:
    left, _, err = run("fault", node.root, "--gpu", "all", *arguments)
    assert left == code
    assert message in err
    assert shown(run, node.root)["faults"] == []


def test_events_are_raised(run: Run, node: SimulatedNode) -> None:
    run("partition", node.root, "--gpu", 0, "--profile", "1g.10gb")
    gi = node.gpu(0)["instances"][0]["id"]
    waited = node.nvml(
        "import subprocess\n"
        "events = pynvml.nvmlEventSetCreate()\n"
        "kinds = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError\n"
        "for i in (0, 1):\n"
        "    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(i), kinds, events)\n"
        f"cli = [sys.executable, '-m', 'dra_driver.cli', 'simulate']\n"
        f"root = {str(node.root)!r}\n"
        "for more in (['xid', root, '--gpu', '1', '--xid', '79'],\n"
        f"             ['xid', root, '--gpu', '0', '--xid', '31', '--gi', '{gi}', '--ci', '0'],\n"
        "             ['ecc', root, '--gpu', '1']):\n"
        "    subprocess.run(cli + more, check=True)\n"
        "got = [pynvml.nvmlEventSetWait_v2(events, 5000) for _ in range(3)]\n"
        "print(json.dumps([[e.eventType, e.eventData, e.gpuInstanceId, e.computeInstanceId]"
        " for e in got]))"
    )
    none = 0xFFFFFFFF
    assert waited[:2] == [[8, 79, none, none], [8, 31, gi, 0]]
    assert waited[2][0] == 2  # nvmlEventTypeDoubleBitEccError


def test_processes_come_and_go(run: Run, node: SimulatedNode) -> None:
    query = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    arguments = ("process", node.root, "--gpu", 1, "--pid", 4242)
    assert run(*arguments, "--memory", "4Gi", "--sm", 30)[0] == 0
    assert node.smi(*query).stdout == "4242, 4096\n"
    assert node.smi("-i", "1", "--query-gpu=utilization.gpu", "--format=csv,noheader").stdout == (
        "30 %\n"
    )
    assert "4242" in run("show", node.root)[1]
    assert run(*arguments, "--memory", 0)[0] == 0
    assert node.smi(*query).stdout == ""
    code, _, err = run(*arguments, "--memory", "lots")
    assert code == 2
    assert "'lots' is not a quantity such as 10Gi" in err


def test_add_and_remove(run: Run, node: SimulatedNode) -> None:
    code, out, _ = run("add", node.root, "--model", "l40s")
    assert code == 0
    assert node.gpu(int(out))["model"] == "l40s"
    assert run("remove", node.root, "--gpu", out.strip())[0] == 0
    assert [gpu["model"] for gpu in node.show()["gpus"]] == ["h100-80gb"] * 2
    code, _, err = run("add", node.root, "--model", "l41s")
    assert code == 2
    assert "there are a100-40gb" in err


def test_reboot_reload_and_upgrade(run: Run, node: SimulatedNode) -> None:
    first = node.show()["bootId"]
    run("partition", node.root, "--gpu", 0, "--profile", "1g.10gb")
    assert run("driver-reload", node.root)[0] == 0
    assert node.show()["bootId"] == first
    assert node.gpu(0)["instances"] == []
    assert run("reboot", node.root)[0] == 0
    assert node.show()["bootId"] != first
    assert run("driver-version", node.root, "590.44.01")[0] == 0
    assert "Driver Version: 590.44.01" in node.smi().stdout
    code, _, err = run("driver-version", node.root, "new")
    assert code == 2
    assert "should look like 580.95.05" in err


def test_calls_tell_who_changed_what(run: Run, node: SimulatedNode) -> None:
    node.smi("mig", "-i", "0", "-cgi", "19", "-C")
    made = json.loads(run("calls", node.root, "-o", "json")[1])
    functions = [call["call"] for call in made]
    assert functions[-2:] == [
        "nvmlDeviceCreateGpuInstance",
        "nvmlGpuInstanceCreateComputeInstance",
    ]
    table = run("calls", node.root)[1]
    assert "nvmlDeviceCreateGpuInstance" in table
    assert "nvidia-smi" in table


def test_further_commands(run: Run, node: SimulatedNode) -> None:
    assert run("minor", node.root, "--gpu", 0, "--minor", 5)[0] == 0
    assert node.gpu(0)["minor"] == 5
    assert (node.root / "dev/nvidia5").exists()
    assert run("persistence", node.root, "--gpu", 0, "on")[0] == 0
    mode = node.smi("-i", "0", "--query-gpu=persistence_mode", "--format=csv,noheader").stdout
    assert mode == "Enabled\n"
    assert run("recovery-action", node.root, "--gpu", 0, "gpu-reset")[0] == 0
    assert run("capability-nodes", node.root, "remove")[0] == 0
    assert not (node.root / "dev/nvidia-caps").exists()
    assert run("capability-nodes", node.root, "restore")[0] == 0
    assert (node.root / "dev/nvidia-caps/nvidia-cap1").exists()


def test_folder_without_node_can_not_be_reached(run: Run, tmp_path: Path) -> None:
    for command in ("show", "calls", "reboot"):
        code, _, err = run(command, tmp_path)
        assert code == 3
        assert err == (
            f"Error: {tmp_path} holds no simulated node; make one with "
            "`dra-driver simulate create`\n"
        )


def test_help_needs_no_command_to_be_imported() -> None:
    script = (
        "import sys\n"
        "from dra_driver.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as left: assert left.code == 0\n"
        "assert 'dra_driver.cli.simulate' not in sys.modules\n"
        "assert 'dra_driver.simulator' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["simulat"])
    assert left.value.code == 2
    assert "No such command" in capsys.readouterr().err
