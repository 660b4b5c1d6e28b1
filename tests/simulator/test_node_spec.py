"""Descriptions of nodes: NODE.yaml and what follows from it."""

import textwrap
from pathlib import Path

import pytest

from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.node_file import NodeSpec, alike, plan_gpus, read_node_file
from tests.support.node import MakeNode

MIXED = """
driverVersion: 570.86.15
nvswitches: 4
gpus:
- model: h100-80gb
  count: 2
  persistenceMode: true
  partitions:
  - profile: 3g.40gb
    start: 4
  - profile: 1g.10gb
    computeInstance: false
- model: a100-40gb
  migMode: true
- model: gb10
  uuid: GPU-5d5ba0d6-d33d-4b2c-924d-9e3d8d2b8a77
  pci: "0009:01:00.0"
  numaNode: 1
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def test_mixed_node_is_as_described(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(spec=read_node_file(written(tmp_path, MIXED)))
    shown = node.show()
    assert shown["driverVersion"] == "570.86.15"
    assert [gpu["model"] for gpu in shown["gpus"]] == [
        "h100-80gb",
        "h100-80gb",
        "a100-40gb",
        "gb10",
    ]
    assert (node.root / "dev/nvidia-nvswitch3").exists()
    assert (node.root / "dev/nvidia-nvswitchctl").exists()
    listed = node.smi("-L").stdout
    assert listed.count("MIG 3g.40gb") == 2
    assert "MIG 1g.10gb" not in listed  # no compute instance, no MIG device
    instances = node.smi("mig", "-lgi").stdout
    assert instances.count("MIG 3g.40gb") == instances.count("MIG 1g.10gb") == 2
    assert instances.count("4:4") == 2
    modes = node.smi("--query-gpu=mig.mode.current,persistence_mode", "--format=csv,noheader")
    assert modes.stdout.splitlines() == [
        "Enabled, Enabled",
        "Enabled, Enabled",
        "Enabled, Disabled",
        "[N/A], Disabled",
    ]
    assert shown["gpus"][3]["uuid"] == "GPU-5d5ba0d6-d33d-4b2c-924d-9e3d8d2b8a77"
    assert shown["gpus"][3]["numaNode"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: [{model: h100-80gb, color: red}]", r"gpus\[0\]\.color: Extra"),
        ("gpus: [{count: 2}]", r"gpus\[0\]\.model: Field required"),
        ("gpus: [{model: t4}, {model: t4, count: 0}]", r"gpus\[1\]\.count: .*greater than"),
        ("gpus: [{model: t4, count: 9}, {model: l40s, count: 9}]", "18 GPUs are more than the 16"),
        ("gpus: [{model: t4, count: 2, pci: '0000:17:00.0'}]", r"gpus\[0\]: uuid and pci need"),
        ("gpus: [{model: t4, pci: '17:0'}]", r"gpus\[0\]\.pci: should look like 0000:1b:00.0"),
        ("gpus: [{model: t4, uuid: GPU-1}]", r"gpus\[0\]\.uuid: "),
        ("- 1", "node.yaml: .*dictionary"),
        ("{", "node.yaml is not YAML"),
    ],
)
def test_wrong_file_is_explained_by_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingInvalid, match=message) as caught:
        read_node_file(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=r"cannot read .*absent\.yaml"):
        read_node_file(tmp_path / "absent.yaml")


def test_unknown_model_lists_those_there_are() -> None:
    with pytest.raises(SettingInvalid, match="'h1000' is not known; there are a100-40gb"):
        plan_gpus(alike("h1000", 1).gpus, "seed")


def test_addresses_that_are_wished_are_left_free_by_the_others() -> None:
    spec = NodeSpec.model_validate(
        {"gpus": [{"model": "t4", "count": 3}, {"model": "l40s", "pci": "0000:17:00.0"}]}
    )
    gpus = plan_gpus(spec.gpus, "seed")
    assert [gpu.model.key for gpu in gpus] == ["l40s", "t4", "t4", "t4"]
    assert len({gpu.identity.pci_address for gpu in gpus}) == 4


@pytest.mark.parametrize(
    "field", ["pci: '0000:17:00.0'", f"uuid: GPU-{'0' * 8}{'-0000' * 3}-{'0' * 12}"]
)
def test_two_gpus_with_one_identity_are_refused(tmp_path: Path, field: str) -> None:
    text = f"gpus: [{{model: t4, {field}}}, {{model: l40s, {field}}}]"
    spec = read_node_file(written(tmp_path, text))
    with pytest.raises(SettingInvalid, match="two GPUs have the same"):
        plan_gpus(spec.gpus, "seed")


def test_sixteen_gpus_fit_and_have_an_identity_each() -> None:
    for model in ("h100-80gb", "a100-40gb", "gb200", "l40s", "gb10"):
        gpus = plan_gpus(alike(model, 16).gpus, "seed")
        assert len({gpu.identity.uuid for gpu in gpus}) == 16
        assert len({gpu.identity.serial for gpu in gpus}) == 16
