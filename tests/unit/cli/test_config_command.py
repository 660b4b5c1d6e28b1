"""`dra-driver config`: what it says of files, with and without GPUs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from dra_driver.cli import config as command
from dra_driver.cli import devices
from dra_driver.config import CONFIG_LABEL, Settings
from dra_driver.model import Inventory, Problem
from dra_driver.model.errors import DriverNotReady
from dra_driver.plugin.last_good import LastGoodFile
from tests.support.inventories import inventory
from tests.support.mig_models import gpu_of

H100 = "NVIDIA H100 80GB HBM3"
TEXT = """apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic, strategy: single}
- match: {index: [1], nodeLabels: {pool: train}}
  partitioning: {mode: Static, layout: all-balanced}
  naming: uuid
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command.config, [str(each) for each in arguments])


def have(monkeypatch: pytest.MonkeyPatch, found: Inventory) -> None:
    def look(settings: Settings) -> Inventory:
        assert settings.host_root == Path("/host")
        return found

    monkeypatch.setattr(command, "look_at_hardware", look)


def test_a_right_file_is_ok(file: Path) -> None:
    result = run("check", file)
    assert (result.exit_code, result.output) == (0, f"{file}: ok\n")


@pytest.mark.parametrize("verb", ["check", "show"])
def test_a_wrong_file_is_a_finding(file: Path, verb: str) -> None:
    file.write_text(TEXT.replace("Dynamic", "dynamic"), encoding="utf-8")
    result = run(verb, file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {file}: line 4: rules[0].partitioning.mode: 'dynamic' is not allowed; "
        "allowed: 'Existing', 'Dynamic', 'Static'\n"
    )


def test_all_entries_of_a_folder_are_checked(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "a").write_text(TEXT, encoding="utf-8")
    (tmp_path / "b.yaml").write_text(TEXT.replace("Dynamic", "dynamic"), encoding="utf-8")
    result = run("check", tmp_path)
    assert (result.exit_code, result.stdout) == (1, f"{tmp_path}/a: ok\n")
    assert result.stderr.startswith(f"Error: {tmp_path}/b.yaml: line 4: rules[0]")
    assert run("check", tmp_path, "--entry=a").exit_code == 0
    missing = run("check", tmp_path, "--entry=../a")
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"Error: {tmp_path}: there is no entry '../a'; entries: a, b\n",
    )
    assert run("check", tmp_path / "a", "--entry=a").exit_code == 2


@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ((), 0),
        (("--entry=one",), 1),
        (("--node-label=nvidia.com/dra.config=one",), 1),
        (("--default-config=one",), 1),
        (("--default-config=one", "--entry=two.yaml"), 0),
        (("--fallback-strategies=single,named",), 0),
    ],
)
def test_an_entry_of_a_folder_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], modes: int
) -> None:
    have(monkeypatch, inventory(gpu_of("h100-80gb", 0)))
    (tmp_path / "one").write_text(TEXT, encoding="utf-8")
    (tmp_path / "two").write_text(TEXT.partition("rules")[0], encoding="utf-8")
    result = run("show", tmp_path, "--host-root=/host", *options)
    assert result.exit_code == 0
    assert result.output.count("Dynamic") == modes


def test_what_the_plugin_had_last_is_shown_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / name).write_text(f"{TEXT}inventory: {{interval: {len(name)}s}}\n")
    settings = Settings(node_name="n", config_file=folder, plugins_folder=tmp_path)
    assert devices._config(settings, {}).inventory.seconds == 30
    LastGoodFile(settings.data_folder).keep("two", (folder / "three").read_text())
    assert devices._config(settings, {}).inventory.seconds == 5
    assert devices._config(settings, {CONFIG_LABEL: "two"}).inventory.seconds == 3


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    assert run("check", tmp_path / "none.yaml").exit_code == 2


def test_the_policy_of_each_gpu_is_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, inventory(gpu_of("h100-80gb", 0), gpu_of("h100-80gb", 1)))
    result = run("show", file, "--host-root=/host", "--node-label=pool=train")
    assert result.exit_code == 0
    head, *rows = [line.split("   ") for line in result.output.splitlines()]
    assert [cell.strip() for cell in head if cell.strip()] == [
        *("INDEX", "MODEL", "MODE", "LAYOUT", "STRATEGY", "ALLOWRESET"),
        *("SHARES", "SHARING", "NAMING", "RULES"),
    ]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["0", H100, "Dynamic", "-", "single", "no", "-", "-", "minor", "0"],
        ["1", H100, "Static", "all-balanced", "single", "no", "-", "-", "uuid", "0,1"],
    ]
    assert "2 x 1g.10gb, 1 x 2g.20gb, 1 x 3g.40gb" in (
        run("show", file, "--host-root=/host", "--node-label=pool=train", "-o", "wide").output
    )


def test_the_same_as_json(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("gpu 2", "does not answer")
    have(monkeypatch, inventory(gpu_of("a100-40gb", 1), problems=(problem,)))
    result = run("show", file, "--host-root=/host", "-o", "json")
    assert result.exit_code == 1  # see test_what_can_not_be_is_a_finding
    document = json.loads(result.output)
    (row,) = document["gpus"]
    assert row.pop("problem").startswith("mode Dynamic: switching MIG mode on needs a GPU reset")
    assert row == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "pciBusID": "0000:1c:00.0",
        "model": "NVIDIA A100-SXM4-40GB",
        "rules": [0],
        "partitioning": {
            "mode": "Dynamic",
            "layout": None,
            "allowReset": False,
            "strategy": "single",
        },
        "shares": None,
        "sharing": None,
        "requireMemoryLimit": "none",
        "naming": "minor",
        "migEnabled": None,
        "partitions": None,
    }
    assert document["health"] == {"ignoreXids": [], "effect": "NoSchedule"}
    assert document["inventory"] == {"interval": "30s"}
    assert document["problems"] == ["gpu 2: does not answer"]


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("a100-80gb", "GPU 0: mode Dynamic: switching MIG mode on needs a GPU reset; set "),
        ("t4", "GPU 0: mode Dynamic: a Tesla T4 has no MIG, so it is published as a whole"),
    ],
)
def test_what_can_not_be_is_a_finding(
    file: Path, monkeypatch: pytest.MonkeyPatch, model: str, problem: str
) -> None:
    have(monkeypatch, inventory(gpu_of(model)))
    result = run("show", file, "--host-root=/host")
    assert result.exit_code == 1
    assert f"\n\n{problem}" in result.output


def test_a_layout_that_does_not_fit_is_a_finding(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(TEXT.replace("all-balanced", "all-1g.5gb"), encoding="utf-8")
    have(monkeypatch, inventory(gpu_of("h100-80gb", 0), gpu_of("h100-80gb", 1)))
    result = run("show", file, "--host-root=/host", "--node-label=pool=train")
    assert result.exit_code == 1
    assert "GPU 1: layout all-1g.5gb: GPU-00000000-0000-0000-0000-000000000001 (" in result.output


def test_without_gpus_the_rules_are_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(settings: Settings) -> Inventory:
        raise DriverNotReady("libnvidia-ml.so.1 was not found")

    monkeypatch.setattr(command, "look_at_hardware", look)
    result = run("show", file)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[1].split() == ["0", "every", "GPU", "Dynamic", "-", "single", *4 * "-", "-"]
    assert lines[2].split() == [
        *("1", "index=1", "pool=train", "Static", "all-balanced", *5 * "-", "uuid")
    ]
    assert lines[-1].endswith("libnvidia-ml.so.1 was not found")
    document = json.loads(run("show", file, "-o", "json").output)
    assert document["rules"][1] == {
        "match": {"index": [1], "nodeLabels": {"pool": "train"}},
        "partitioning": {"mode": "Static", "layout": "all-balanced"},
        "naming": "uuid",
    }


@pytest.mark.parametrize("label", ["pool", "=train"])
def test_a_label_has_a_key_and_a_value(file: Path, label: str) -> None:
    result = run("show", file, f"--node-label={label}")
    assert result.exit_code == 2
    assert f"'{label}' is not KEY=VALUE" in result.output


def test_the_schema_is_one() -> None:
    schema = json.loads(run("schema").output)
    Draft202012Validator.check_schema(schema)
    assert "rules" in schema["properties"]
