"""The chart's files are what its model and the other manifests make; values and process agree."""

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dra_driver.config import Settings
from dra_driver.model.errors import SettingInvalid
from tests.chart.documents import CHART, CHECKOUT, made, schema
from tests.chart.values import PEER_KEYS

DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
POD_UID = "9f1c3a52-6a0e-4c2f-8d0e-5b7d5d3a9c11"


def files() -> dict[str, str]:
    return {str(path.relative_to(CHECKOUT)): text for path, text in made().items()}


@pytest.mark.parametrize("name", files())
def test_what_is_made_is_up_to_date(name: str) -> None:
    assert (CHECKOUT / name).read_text(encoding="utf-8") == files()[name], "run `make chart`"


def test_no_file_is_left_of_what_was_made_once() -> None:
    wanted = {path for path in made() if (CHART / "files") in path.parents}
    assert {path for path in (CHART / "files").rglob("*") if path.is_file()} == wanted


def test_its_version_is_that_of_the_driver() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert chart["kubeVersion"] == ">=1.34.0-0"


def test_its_own_defaults_are_allowed() -> None:
    jsonschema.validate(DEFAULTS, schema())


def mappings(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all mappings of a schema that have fields of their own."""
    definitions = schema()["$defs"]
    while "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    if "properties" not in node:
        return []
    inner = [
        found
        for name, field in node["properties"].items()
        if isinstance(field, dict)
        for found in mappings(field, (*path, name))
    ]
    return [path, *inner]


@pytest.mark.parametrize("path", mappings(schema()), ids=".".join)
def test_an_unknown_value_is_refused_everywhere(path: tuple[str, ...]) -> None:
    values = deepcopy(DEFAULTS)
    node = values
    for part in path:
        node = node[part]
    node["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="'colour'"):
        jsonschema.validate(values, schema())


def test_no_value_of_another_driver_is_one_of_ours() -> None:
    for path in PEER_KEYS:
        *above, last = path.split(".")
        node = DEFAULTS
        for part in above:
            node = node[part]
        assert last not in node


@pytest.mark.parametrize("length", [54, 55])
def test_the_longest_root_of_a_kubelet_is_the_longest_that_the_plugin_takes(length: int) -> None:
    root = Path("/" + "r" * (length - 1))
    settings = Settings(
        "node",
        pod_uid=POD_UID,
        plugins_folder=root / "plugins",
        registrar_folder=root / "plugins_registry",
    )
    if length == 54:
        settings.check()
        return
    with pytest.raises(SettingInvalid, match=r"108 bytes long; unix sockets take 107"):
        settings.check()
