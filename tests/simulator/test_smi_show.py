"""nvidia-smi on a simulated node: what it shows. Expected values come from the state."""

import csv
import io
import os
import re
import shutil
from pathlib import Path

import pytest

from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.native_library import error_number
from dra_driver.simulator.node_file import NodeSpec
from tests.support.node import MakeNode, SimulatedNode

MIXED = {
    "gpus": [
        {
            "model": "h100-80gb",
            "partitions": [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb+me"}],
        },
        {"model": "gb10"},
        {"model": "p4"},
    ]
}


@pytest.fixture
def mixed(make_node: MakeNode) -> SimulatedNode:
    return make_node(spec=NodeSpec.model_validate(MIXED))


def query(node: SimulatedNode, fields: str, *more: str) -> list[list[str]]:
    done = node.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more)
    assert done.returncode == 0, done.stdout
    return [[word.strip() for word in row] for row in csv.reader(io.StringIO(done.stdout))]


def test_list_holds_every_gpu_and_mig_device(mixed: SimulatedNode) -> None:
    expected = []
    for number, gpu in enumerate(mixed.show()["gpus"]):
        expected.append(f"GPU {number}: {gpu['name']} (UUID: {gpu['uuid']})")
        instances = [
            (compute["profile"], compute["uuid"])
            for instance in gpu["instances"]
            for compute in instance["computeInstances"]
        ]
        expected += [
            f"  MIG {profile:<11} Device {index:2}: (UUID: {uuid})"
            for index, (profile, uuid) in enumerate(instances)
        ]
    done = mixed.smi("-L")
    assert done.returncode == 0
    assert sorted(re.sub(r"Device +\d+", "", line) for line in done.stdout.splitlines()) == sorted(
        re.sub(r"Device +\d+", "", line) for line in expected
    )
    assert done.stdout == mixed.smi("--list-gpus").stdout
    assert re.search(r"^  MIG 3g\.40gb     Device  \d: \(UUID: MIG-", done.stdout, re.MULTILINE)


def test_table_is_as_wide_as_the_real_one(mixed: SimulatedNode) -> None:
    (h100,) = (gpu for gpu in mixed.show()["gpus"] if gpu["model"] == "h100-80gb")
    number, instance = h100["index"], h100["instances"][0]["id"]
    mixed.state.process(number, 4242, 3 << 30, gi_id=instance, ci_id=0)
    lines = mixed.smi().stdout.splitlines()
    assert {len(line) for line in lines[1:] if line} == {91}
    text = "\n".join(lines)
    assert "NVIDIA-SMI 580.95.05" in text
    assert "CUDA Version: 13.0" in text
    assert "NVIDIA H100 80GB HBM3" in text
    assert re.search(r"MiB /  81559MiB", text)
    assert "Not Supported" in text  # memory of gb10
    assert re.search(rf"\|  {number} +\d+   0   \d  \|", text)
    assert re.search(rf"{number} +{instance} +0 +4242 +C .* 3072MiB \|", text)


def test_table_without_mig_and_processes(make_node: MakeNode) -> None:
    text = make_node(model="t4").smi().stdout
    assert "MIG devices" not in text
    assert "No running processes found" in text


def test_query_tells_the_states_values(mixed: SimulatedNode) -> None:
    rows = query(mixed, "index,uuid,name,serial,pci.bus_id,memory.total,compute_cap")
    gpus = mixed.show()["gpus"]
    assert [row[:2] for row in rows] == [[str(n), gpu["uuid"]] for n, gpu in enumerate(gpus)]
    by_name = {row[2]: row for row in rows}
    assert by_name["NVIDIA H100 80GB HBM3"][5:] == ["81559", "9.0"]
    assert by_name["Tesla P4"][5:] == ["7680", "6.1"]
    assert by_name["NVIDIA GB10"][5:] == ["[N/A]", "12.1"]
    assert all(re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:00\.0", row[4]) for row in rows)


def test_query_header_and_units(make_node: MakeNode) -> None:
    done = make_node(model="t4").smi("--query-gpu=gpu_name,memory.total", "--format=csv")
    assert done.stdout == "name, memory.total [MiB]\nTesla T4, 15360 MiB\n"


def test_every_listed_field_can_be_queried(mixed: SimulatedNode) -> None:
    listing = mixed.smi("--help-query-gpu").stdout
    fields = [name for line in listing.splitlines() for name in re.findall(r'^"([^"]+)"', line)]
    assert len(fields) >= 30
    fields = [field for field in fields if not field.startswith("--")]
    rows = query(mixed, ",".join(fields))
    assert {len(row) for row in rows} == {len(fields)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query-gpu=index,colour", "--format=csv"], 'Field "colour" is not a valid field'),
        (["--query-gpu=index"], '"csv" is required'),
        (["--query-gpu=index", "--format=json"], '"json" is not a valid format'),
        (["--colour"], 'Option "--colour" is not recognized'),
        (["-i"], 'Missing value for option "-i"'),
        (["mig", "-dgi", "-gi", "1," * 600], "Argument 3 is too long"),
        (["-L=1"], "not recognized"),
        (["--list-gpus=1"], "takes no value"),
        (["compute-policy", "--set-timeslice", "4"], '"4" is not a time-slice'),
        (["mig", "-lgi", "-lci"], "Invalid combination"),
        (["mig", "-i", "0"], "Invalid combination"),
        (["-c", "SOMETIMES"], '"SOMETIMES" is not a valid argument'),
    ],
)
def test_wrong_arguments(make_node: MakeNode, arguments: list[str], message: str) -> None:
    done = make_node(model="t4").smi(*arguments)
    assert done.returncode == 2
    assert message in done.stdout


def test_selection_by_number_uuid_and_bus_id(mixed: SimulatedNode) -> None:
    gpus = mixed.show()["gpus"]
    bus_ids = [row[0] for row in query(mixed, "pci.bus_id")]
    for ids in (f"0,{gpus[2]['uuid']}", f"{bus_ids[0]},2"):
        rows = query(mixed, "uuid", "-i", ids)
        assert rows == [[gpus[0]["uuid"]], [gpus[2]["uuid"]]]
    for absent in ("7", "GPU-absent", "00000000:FF:00.0"):
        done = mixed.smi("-i", absent, "-L")
        assert (done.returncode, done.stdout) == (6, "No devices were found\n")


def test_lost_gpu_does_not_hide_the_others(make_node: MakeNode) -> None:
    node = make_node(gpus=3)
    node.state.lose(1)
    listed = node.smi("-L").stdout
    assert node.gpu(0)["uuid"] in listed
    assert node.gpu(2)["uuid"] in listed
    table = node.smi().stdout
    assert table.count("NVIDIA H100") >= 2


def test_no_gpu_and_no_driver(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(gpus=0)
    assert node.smi().stdout == "No devices were found\n"
    assert node.smi("-L").returncode == 6
    (node.root / "dev/nvidiactl").unlink()
    done = node.smi()
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_failing_init_is_named(make_node: MakeNode) -> None:
    node = make_node()
    node.state.fault(-1, "nvmlInit", error_number("UNKNOWN"))
    done = node.smi()
    assert done.stdout == "Failed to initialize NVML: Unknown Error\n"
    assert done.returncode != 0


def test_tree_that_holds_only_some_nodes_shows_only_those(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """A container: its own /dev, the state file mounted, nvidia-smi, and nothing else."""
    node = make_node(gpus=3)
    container = tmp_path / "container"
    state = next((node.root / LIBRARY_FOLDER).glob("libnvidia-simstate.so.*"))
    for path in (node.root / "usr/bin/nvidia-smi", state):
        (container / path.relative_to(node.root)).parent.mkdir(parents=True)
    os.link(state, container / state.relative_to(node.root))
    shutil.copy(node.root / "usr/bin/nvidia-smi", container / "usr/bin/nvidia-smi")
    (container / "dev").mkdir()
    for name in ("nvidiactl", "nvidia2"):
        (container / "dev" / name).touch()
    with_one = SimulatedNode(container)
    try:
        uuid = node.gpu(2)["uuid"]
        assert with_one.smi("-L").stdout == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"
    finally:
        with_one.close()


def test_program_is_static(make_node: MakeNode) -> None:
    program = (make_node().root / "usr/bin/nvidia-smi").read_bytes()
    assert b"/lib64/ld-linux" not in program
    assert b"ld-linux-aarch64" not in program


def test_version_and_help(make_node: MakeNode) -> None:
    node = make_node()
    assert "DRIVER version      : 580.95.05" in node.smi("--version").stdout
    for arguments in (["-h"], ["mig", "-h"], ["compute-policy", "-h"], ["mig"], ["compute-policy"]):
        done = node.smi(*arguments)
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) > 5
