"""What `dra-driver config show` says of sharing, and what `dra-driver schema` prints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from dra_driver.cli import config as command
from dra_driver.cli import root
from dra_driver.cli.schema import schema
from dra_driver.config import Settings, decode_config
from dra_driver.model import Gpu, Inventory, MemoryType
from dra_driver.model.errors import DriverNotReady
from tests.support.inventories import inventory
from tests.support.mig_models import gpu_of

HEAD = {"apiVersion": "config.gpu-dra-driver.dev/v1alpha1", "kind": "NodeConfig"}


def show(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    rules: list[dict[str, Any]],
    gpus: Inventory | DriverNotReady,
    *options: str,
) -> tuple[int, str]:
    def look(settings: Settings) -> Inventory:
        if isinstance(gpus, DriverNotReady):
            raise gpus
        return gpus

    monkeypatch.setattr(command, "look_at_hardware", look)
    file = folder / "node.yaml"
    file.write_text(yaml.safe_dump({**HEAD, "rules": rules}), encoding="utf-8")
    result = CliRunner().invoke(command.config, ["show", str(file), *options])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("rule", "shares", "sharing", "form"),
    [
        (
            {"shares": {"count": 4, "rename": True}, "sharing": {"strategy": "MPS"}},
            "4 renamed",
            "MPS",
            {
                "shares": {"count": 4, "rename": True, "failRequestsGreaterThanOne": False},
                "sharing": {"strategy": "MPS", "mps": {}},
                "requireMemoryLimit": "none",
            },
        ),
        (
            {
                "shares": {"by": "memory", "reserve": "1024Mi"},
                "sharing": {"strategy": "TimeSlicing", "interval": "Long"},
                "requireMemoryLimit": "cgroup",
            },
            "memory",
            "TimeSlicing Long",
            {
                "shares": {
                    "by": "memory",
                    "reserve": "1Gi",
                    "rename": False,
                    "failRequestsGreaterThanOne": False,
                },
                "sharing": {"strategy": "TimeSlicing", "interval": "Long"},
                "requireMemoryLimit": "cgroup",
            },
        ),
        (
            {"shares": {"unlimited": True, "failRequestsGreaterThanOne": True}},
            "unlimited",
            "-",
            {
                "shares": {"unlimited": True, "rename": False, "failRequestsGreaterThanOne": True},
                "sharing": None,
                "requireMemoryLimit": "none",
            },
        ),
        (
            {"shares": {"count": 1, "rename": True}, "sharing": {"strategy": "None"}},
            "-",
            "-",
            {"shares": None, "sharing": None, "requireMemoryLimit": "none"},
        ),
    ],
)
def test_sharing_of_a_gpu_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rule: dict[str, Any],
    shares: str,
    sharing: str,
    form: dict[str, Any],
) -> None:
    found = inventory(gpu_of("h100-80gb"))
    code, text = show(monkeypatch, tmp_path, [rule], found)
    assert code == 0
    head, row = (
        [cell.strip() for cell in line.split("   ") if cell.strip()] for line in text.splitlines()
    )
    shown = dict(zip(head, row, strict=True))
    assert (shown["SHARES"], shown["SHARING"]) == (shares, sharing)
    _, document = show(monkeypatch, tmp_path, [rule], found, "-o", "json")
    (gpu,) = json.loads(document)["gpus"]
    assert {name: gpu[name] for name in form} == form
    _, wide = show(monkeypatch, tmp_path, [rule], found, "-o", "wide")
    assert wide.splitlines()[1].endswith(form["requireMemoryLimit"])


OLD = replace(gpu_of("t4"), compute_capability=(6, 1))
UNIFIED = replace(gpu_of("t4"), memory_bytes=None, memory_type=MemoryType.UNIFIED)


@pytest.mark.parametrize(
    ("gpu", "rule", "problem"),
    [
        (
            gpu_of("t4"),
            {"shares": {"by": "memory", "reserve": "16Gi"}},
            "GPU 0: shares.reserve: 16Gi leaves nothing of a Tesla T4, which has 15360Mi",
        ),
        (
            UNIFIED,
            {"shares": {"by": "memory"}},
            "GPU 0: shares.by: a Tesla T4 does not tell how much memory it has",
        ),
        (
            OLD,
            {"sharing": {"strategy": "MPS"}},
            (
                "GPU 0: the node configuration: sharing.strategy: MPS needs compute capability 7.0 "
                f"or higher; gpu-0 ({OLD.uuid}) has 6.1"
            ),
        ),
        (
            gpu_of("t4"),
            {"sharing": {"strategy": "MPS", "mps": {"defaultPinnedDeviceMemoryLimit": "16Gi"}}},
            (
                "GPU 0: the node configuration: sharing.mps.defaultPinnedDeviceMemoryLimit: "
                f"invalid limit: 16Gi is more than gpu-0 ({OLD.uuid}) has; allowed: 15Gi or less"
            ),
        ),
    ],
)
def test_what_a_gpu_can_not_have_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: Gpu, rule: dict[str, Any], problem: str
) -> None:
    code, text = show(monkeypatch, tmp_path, [rule], inventory(gpu))
    assert (code, text.splitlines()[-1]) == (1, problem)


def test_without_gpus_the_rules_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"shares": {"by": "memory", "reserve": "1Gi", "rename": True}},
        {"sharing": {"strategy": "None"}, "requireMemoryLimit": "mps"},
        {"sharing": {"strategy": "TimeSlicing"}},
    ]
    code, text = show(monkeypatch, tmp_path, rules, DriverNotReady("no library"))
    assert code == 0
    cells = [line.split() for line in text.splitlines()[1:4]]
    dashes = ["-"] * 4
    assert [row[3:] for row in cells] == [
        [*dashes, "by=memory", "reserve=1Gi", "rename=true", "-", "-", "-"],
        [*dashes, "-", "None", "mps", "-"],
        [*dashes, "-", "TimeSlicing", "Default", "-", "-"],
    ]
    _, document = show(monkeypatch, tmp_path, rules, DriverNotReady("no library"), "-o", "json")
    assert json.loads(document)["rules"] == rules


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_the_schema_of_a_kind_is_printed(kind: str) -> None:
    printed = json.loads(CliRunner().invoke(schema, ["--kind", kind]).output)
    Draft202012Validator.check_schema(printed)
    document = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    assert Draft202012Validator(printed).is_valid(document)
    decode_config(document)
    whole = json.loads(CliRunner().invoke(root, ["schema"]).output)
    assert Draft202012Validator(whole).is_valid(document)
    assert not Draft202012Validator(whole).is_valid({**document, "kind": "NodeConfig"})


def test_an_unknown_kind_is_wrong_usage() -> None:
    result = CliRunner().invoke(schema, ["--kind", "NodeConfig"])
    assert result.exit_code == 2
    assert "'GpuConfig', 'MigDeviceConfig'" in result.output
