"""nvidia-smi on a simulated node: what it changes."""

import re

import pytest

from tests.support.node import MakeNode, SimulatedNode


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    """Give two H100 of which the first has MIG on."""
    node = make_node(gpus=2)
    node.state.set_mig_mode(0, on=True)
    return node


def instances(node: SimulatedNode) -> list[tuple[int, int]]:
    """Give (id, compute instances) of the first GPU's instances."""
    return sorted(
        (instance["id"], len(instance["computeInstances"])) for instance in node.gpu(0)["instances"]
    )


def rows(text: str) -> list[list[str]]:
    """Give the words of the lines in a table that begin with a number."""
    return [line.strip("|").split() for line in text.splitlines() if re.match(r"\| +\d", line)]


def test_profiles_with_what_is_left(node: SimulatedNode) -> None:
    node.state.partition(0, "3g.40gb", 4)
    text = node.smi("mig", "-lgip", "-i", "0").stdout
    assert {len(line) for line in text.splitlines()} == {81}
    found = {row[2]: row for row in rows(text) if row[1] == "MIG"}
    assert found["1g.10gb"][3:] == ["19", "4/7", "9.75", "No", "16", "1", "0"]
    assert found["3g.40gb"][3:5] == ["9", "1/2"]
    assert found["7g.80gb"][3:5] == ["0", "0/1"]
    assert found.keys() >= {"1g.10gb+me", "1g.20gb", "2g.20gb", "4g.40gb"}


def test_placements(node: SimulatedNode) -> None:
    lines = node.smi("mig", "-i", "0", "-lgipp").stdout.splitlines()
    assert "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1" in lines
    assert "GPU  0 Profile ID  9 Placements: {0,4}:4" in lines
    assert "GPU  0 Profile ID  0 Placement : {0}:8" in lines


@pytest.mark.parametrize("profile", ["9", "3g.40gb", "MIG 3g.40gb"])
def test_create_list_and_destroy(node: SimulatedNode, profile: str) -> None:
    done = node.smi("mig", "-i", "0", "-cgi", profile, "-C")
    assert done.returncode == 0
    ((gi, compute),) = instances(node)
    assert compute == 1
    assert done.stdout == (
        f"Successfully created GPU instance ID {gi:2} on GPU  0 using profile MIG 3g.40gb "
        "(ID  9)\n"
        f"Successfully created compute instance ID  0 on GPU  0 GPU instance ID {gi:2} "
        "using profile MIG 3g.40gb (ID  2)\n"
    )
    start = node.gpu(0)["instances"][0]["start"]
    (row,) = rows(node.smi("mig", "-lgi").stdout)
    assert row == ["0", "MIG", "3g.40gb", "9", str(gi), f"{start}:4"]
    (row,) = rows(node.smi("mig", "-lci").stdout)
    assert row == ["0", str(gi), "MIG", "3g.40gb", "2", "0", "0:3"]
    assert node.smi("mig", "-dci").stdout == (
        f"Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID {gi:2}\n"
    )
    assert node.smi("mig", "-dgi", "-i", "0", "-gi", str(gi)).stdout == (
        f"Successfully destroyed GPU instance ID {gi:2} from GPU  0\n"
    )
    assert instances(node) == []


def test_several_profiles_and_a_placement(node: SimulatedNode) -> None:
    assert node.smi("mig", "-cgi", "3g.40gb:4,19,19").returncode == 0
    assert [compute for _, compute in instances(node)] == [0, 0, 0]
    starts = {gi["start"] for gi in node.gpu(0)["instances"] if "3g" in gi["profile"]}
    assert starts == {4}
    done = node.smi("mig", "-cgi", "3g.40gb:2")
    assert done.returncode != 0
    assert "Unable to create a GPU instance on GPU  0 using profile 3g.40gb:2" in done.stdout
    assert len(instances(node)) == 3


def test_compute_instances_of_a_part(node: SimulatedNode) -> None:
    node.smi("mig", "-cgi", "9")
    ((gi, _),) = instances(node)
    text = node.smi("mig", "-lcip").stdout
    assert {len(line) for line in text.splitlines()} == {88}
    found = {row[3]: row for row in rows(text) if "MIG" in row}
    assert found["1c.3g.40gb"][4:7] == ["0", "3/3", "16"]
    assert found["3g.40gb"][4:6] == ["2*", "1/1"]
    assert node.smi("mig", "-cci", "0,0", "-gi", str(gi)).returncode == 0
    assert instances(node) == [(gi, 2)]
    assert node.smi("mig", "-dci", "-ci", "1", "-gi", str(gi)).returncode == 0
    assert instances(node) == [(gi, 1)]
    assert node.smi("-L").stdout.count("MIG 1c.3g.40gb  Device") == 1


def test_compute_instance_of_the_default_profile(node: SimulatedNode) -> None:
    node.smi("mig", "-cgi", "0")
    done = node.smi("mig", "-cci")
    assert done.returncode == 0
    assert "using profile MIG 7g.80gb (ID  4)" in done.stdout


def test_no_room_is_nvmls_own_error(node: SimulatedNode) -> None:
    assert node.smi("mig", "-cgi", "0").returncode == 0
    done = node.smi("mig", "-cgi", "19")
    assert done.returncode == 23
    assert done.stdout == (
        "Unable to create a GPU instance on GPU  0 using profile 19: Insufficient Resources\n"
        "Failed to create GPU instances: Insufficient Resources\n"
    )


def test_instance_in_use_stays(node: SimulatedNode) -> None:
    node.smi("mig", "-cgi", "19", "-C")
    ((gi, _),) = instances(node)
    done = node.smi("mig", "-dgi")
    assert done.returncode == 19
    assert f"Unable to destroy GPU instance ID {gi:2} from GPU  0: In use" in done.stdout
    node.state.process(0, 4242, 1 << 30, gi_id=gi, ci_id=0)
    assert node.smi("mig", "-dci").returncode == 19
    assert instances(node) == [(gi, 1)]


def test_nothing_to_list(node: SimulatedNode) -> None:
    assert node.smi("mig", "-lgi").stdout == "No GPU instances found.\n"
    assert node.smi("mig", "-lci").returncode == 6
    for verb in (["-lgi"], ["-cgi", "19"], ["-dgi"]):
        done = node.smi("mig", "-i", "1", *verb)
        assert (done.returncode, done.stdout) == (6, "No MIG-enabled devices found.\n")


def test_mig_mode_switch(node: SimulatedNode, make_node: MakeNode) -> None:
    done = node.smi("-i", "1", "-mig", "1")
    assert done.returncode == 0
    assert re.fullmatch(r"Enabled MIG Mode for GPU 00000000:.*\nAll done.\n", done.stdout)
    ampere = make_node(model="a100-40gb")
    assert "MIG mode is in pending enable state" in ampere.smi("-mig", "ENABLED").stdout
    assert "Disabled*" in ampere.smi().stdout
    assert ampere.smi("--gpu-reset", "-i", "0").returncode == 0
    assert "Disabled*" not in ampere.smi().stdout
    assert make_node(model="t4").smi("-mig", "1").returncode == 3


def test_timeslice_is_set_and_listed(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    assert node.smi("-pm", "1").returncode == 0  # else it ends with nvidia-smi itself
    done = node.smi("compute-policy", "-i", node.gpu(1)["uuid"], "--set-timeslice", "2")
    assert done.returncode == 0
    assert "Medium" in done.stdout
    listing = rows(node.smi("compute-policy", "-l").stdout)
    assert listing == [["0", "Timeslice", "Default"], ["1", "Timeslice", "Medium"]]
    assert node.smi("compute-policy", "--set-timeslice=0").returncode == 0
    assert node.smi("compute-policy", "--list").stdout.count("Default") == 2


def test_timeslice_ends_with_the_last_client(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    node.smi("compute-policy", "--set-timeslice=1")
    assert node.smi("compute-policy", "-l").stdout.count("Default") == 2


def test_timeslice_where_the_gpu_has_none(make_node: MakeNode) -> None:
    node = make_node(model="p4")
    done = node.smi("compute-policy", "--set-timeslice", "1")
    assert done.returncode == 3
    assert "Not Supported" in done.stdout
    assert "Not Supported" in node.smi("compute-policy", "-l").stdout


def test_compute_mode(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    query = ("--query-gpu=compute_mode", "--format=csv,noheader")
    node.smi("-pm", "ENABLED")
    assert node.smi("-i", "1", "-c", "EXCLUSIVE_PROCESS").returncode == 0
    assert node.smi(*query).stdout == "Default\nExclusive_Process\n"
    assert node.smi().stdout.count("E. Process") == 1
    assert node.smi("-i", "1", "-c", "0").returncode == 0
    assert node.smi(*query).stdout == "Default\nDefault\n"


def test_reset_is_refused_while_the_gpu_is_in_use(node: SimulatedNode) -> None:
    node.state.process(1, 4242, 1 << 30)
    done = node.smi("--gpu-reset", "-i", "1")
    assert done.returncode == 19
    assert "could not be reset" in done.stdout
    node.state.process(1, 4242, 0)
    assert "was successfully reset" in node.smi("-r", "-i", "1").stdout
