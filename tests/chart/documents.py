"""Files of the chart that are made: from the model of its values, and from other manifests."""

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dra_driver.config import NodeConfig
from tests.chart.values import PEER_KEYS, ChartValues

CHECKOUT: Final = Path(__file__).parents[2]
CHART: Final = CHECKOUT / "deploy/helm/gpu-dra-driver"
MANIFESTS: Final = CHECKOUT / "deploy/manifests"
_WIDTH: Final = 98
_MADE: Final = "Made by `make chart` from tests/chart/values.py"

_README: Final = """\
# Helm chart of gpu-dra-driver

```console
$ helm install gpu-dra-driver deploy/helm/gpu-dra-driver -n gpu-dra-driver --create-namespace
```

How to install, change and remove it: [install.md](../../../docs/install.md). Values that are
not in this table are refused.

## Values

| value | default | |
|---|---|---|
"""


def made() -> dict[Path, str]:
    """All files that are made, with what is to be in them."""
    hooks = _documents("webhook.yaml")["ValidatingWebhookConfiguration"]["webhooks"][0]
    rules = _documents("rbac.yaml")["ClusterRole"]["rules"]
    return {
        CHART / "values.yaml": f"# {_MADE}.\n" + "".join(_values(ChartValues(), 0)),
        CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        CHART / "README.md": _README + "".join(_rows(ChartValues(), ())),
        CHART / "files/peer-keys.yaml": _dump(PEER_KEYS),
        CHART / "files/rules.yaml": _dump(rules),
        CHART / "files/webhook-rules.yaml": _dump(
            {key: hooks[key] for key in ("rules", "matchConditions")}
        ),
        **{CHART / "files" / target: source.read_text() for target, source in _copies()},
    }


def _copies() -> Iterator[tuple[str, Path]]:
    """Yield what the chart has from elsewhere as it is: Helm reads no file outside of a chart."""
    for path in sorted(MANIFESTS.glob("policies-*.yaml")):
        yield path.name, path
    for path in sorted((CHECKOUT / "deviceclasses").glob("*.yaml")):
        yield f"deviceclasses/{path.name}", path


def schema() -> dict[str, Any]:
    """JSON Schema of the values; Helm names the key that is wrong."""
    made = ChartValues.model_json_schema(by_alias=True)
    made["properties"]["global"] = {"type": "object"}  # Helm's own, for charts with this one inside
    for path in PEER_KEYS:  # let in, since the chart itself says what to do instead
        *above, last = path.split(".")
        node = made
        for part in above:
            node = made["$defs"][node["properties"][part]["$ref"].rpartition("/")[2]]
        node["properties"][last] = True
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_titles(made)}


def _without_titles(node: Any) -> Any:
    """Leave out what pydantic adds: it only repeats names."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(item)
        for key, item in node.items()
        if not (key == "title" and isinstance(item, str))
    }


def _values(model: BaseModel, depth: int) -> Iterator[str]:
    """Yield the lines of `values.yaml`, each value below what it means."""
    indent = "  " * depth
    for name, field, value in _fields(model):
        for line in wrap(_meaning(field, value), _WIDTH - len(indent) - 2):
            yield f"{indent}# {line}\n"
        if _has_parts(value):
            yield f"{indent}{name}:\n"
            yield from _values(value, depth + 1)
        else:
            lines = _dump({name: _plain(value)}).splitlines()
            yield from (f"{indent}{line}\n" for line in lines)


def _rows(model: BaseModel, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the rows of the table of values."""
    for name, field, value in _fields(model):
        path = (*above, name)
        if _has_parts(value):
            yield from _rows(value, path)
            continue
        text = json.dumps(_plain(value))
        default = f"`{text}`" if len(text) <= _WIDTH else "[values.yaml](values.yaml)"
        yield f"| `{'.'.join(path)}` | {default} | {_meaning(field, value)} |\n"


def _fields(model: BaseModel) -> Iterator[tuple[str, FieldInfo, Any]]:
    for name, field in type(model).model_fields.items():
        yield field.alias or name, field, getattr(model, name)


def _has_parts(value: object) -> bool:
    return isinstance(value, BaseModel)


def _meaning(field: FieldInfo, value: object) -> str:
    own = type(value).__doc__ if _has_parts(value) else ""
    return field.description or (own or "").partition("\n")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, NodeConfig):
        return value.model_dump(mode="json", by_alias=True, include={"api_version", "kind"})
    return value


def _documents(name: str) -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8"))
    return {each["kind"]: each for each in documents}


def _dump(data: object) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=_WIDTH, allow_unicode=True)
