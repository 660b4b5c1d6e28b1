"""Every field of the node configuration: whatever is wrong, the error names line and field."""

import re
from collections.abc import Iterator
from copy import deepcopy
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import yaml
from jsonschema import Draft202012Validator

from dra_driver.config import NodeConfig, config_schema, load
from dra_driver.config.layouts import LayoutFile
from dra_driver.config.strict import StrictModel
from dra_driver.model.errors import SettingInvalid

Path = tuple[str | int, ...]

SAMPLE: dict[str, Any] = {
    "apiVersion": "config.gpu-dra-driver.dev/v1alpha1",
    "kind": "NodeConfig",
    "rules": [
        {
            "match": {
                "model": "*A100*",
                "index": [0, 1],
                "uuid": ["GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"],
                "pci": ["0000:1b:00.0"],
                "nodeLabels": {"pool": "train"},
            },
            "partitioning": {
                "mode": "Static",
                "layout": "mine",
                "allowReset": False,
                "strategy": "mixed",
            },
            "naming": "minor",
        }
    ],
    "layouts": {
        "mine": [
            {
                "device-filter": ["0x20B010DE"],
                "devices": [0],
                "mig-enabled": True,
                "mig-devices": {"1g.5gb": 7},
            }
        ]
    },
    "health": {"ignoreXids": [63], "effect": "NoSchedule"},
    "inventory": {"interval": "30s"},
}
FREE_TEXT = {("rules", 0, "match", "model"), ("rules", 0, "match", "nodeLabels", "pool")}
WRONG = "zz-wrong"
UNKNOWN = "zz-unknown"
HUGE = 98765432198765


def fields(model: type[StrictModel], data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that a document may have, with its place, by the models."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        assert here[-1] in data, f"the sample lacks {here}"
        yield from values(field.annotation, data[here[-1]], here)


def values(kind: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
        yield from list(values(kind, value, path))[1:]
    elif isinstance(kind, type) and issubclass(kind, StrictModel):
        yield from fields(kind, value, path)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from values(get_args(kind)[0], item, (*path, place))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from values(get_args(kind)[1], item, (*path, key))


FIELDS = dict(fields(NodeConfig, SAMPLE))


def at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def changed(path: Path, value: Any) -> str:
    """The sample with another value at one place, as text."""
    data = deepcopy(SAMPLE)
    at(data, path[:-1])[path[-1]] = value
    return yaml.safe_dump(data, sort_keys=False)


def words(path: Path) -> str:
    """The path as errors write it."""
    text = ""
    for part in path:
        quoted = f'["{part}"]' if "." in str(part) else f".{part}"
        text += f"[{part}]" if isinstance(part, int) else quoted
    return text.removeprefix(".")


def refusal(text: str) -> str:
    with pytest.raises(SettingInvalid) as caught:
        load(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def line_of(text: str, mark: str) -> int:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if mark in line]
    assert len(lines) == 1, text
    return lines[0]


def test_the_sample_is_right_and_has_every_model() -> None:
    assert load(yaml.safe_dump(SAMPLE)).rules[0].partitioning.layout == "mine"
    dicts = sum(isinstance(value, dict) for value in FIELDS.values()) + 1
    plain = 3  # nodeLabels, layouts, mig-devices
    assert dicts - plain == len(StrictModel.__subclasses__()) - len([LayoutFile])


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_another_type_is_refused(path: Path) -> None:
    wrong: object = HUGE if isinstance(FIELDS[path], str) else WRONG
    text = changed(path, wrong)
    message = refusal(text)
    item = r"(\[0\])?" if path[-1] == "device-filter" else ""  # one id may stand without a list
    where = rf"line {line_of(text, str(wrong))}: {re.escape(words(path))}{item}: "
    assert re.match(where, message), message
    assert str(wrong) in message


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_nothing_is_no_value(path: Path) -> None:
    """`field:` with nothing behind it is refused, or is the same as no such field."""
    text = changed(path, None)
    try:
        found = load(text)
    except SettingInvalid as error:
        assert str(error).startswith("line ")
        assert words(path) in str(error) or words(path[:-1]) in str(error)
    else:
        data = deepcopy(SAMPLE)
        del at(data, path[:-1])[path[-1]]
        assert found == load(yaml.safe_dump(data))


@pytest.mark.parametrize(
    "path", [path for path, value in FIELDS.items() if isinstance(value, str)], ids=words
)
def test_another_word_is_refused(path: Path) -> None:
    text = changed(path, WRONG)
    if path in FREE_TEXT:
        load(text)
        return
    message = refusal(text)
    assert message.startswith(f"line {line_of(text, WRONG)}: {words(path)}: '{WRONG}' ")
    assert re.search(r"allowed: |such as ", message), message


@pytest.mark.parametrize("number", [HUGE, -HUGE])
@pytest.mark.parametrize(
    "path", [path for path, value in FIELDS.items() if type(value) is int], ids=words
)
def test_a_number_out_of_range_is_refused(path: Path, number: int) -> None:
    text = changed(path, number)
    limit = "or less" if number > 0 else "or more"
    assert re.fullmatch(
        rf"line {line_of(text, str(HUGE))}: {re.escape(words(path))}: {number} is not allowed; "
        rf"allowed: \d+ {limit}",
        refusal(text),
    )


@pytest.mark.parametrize(
    "path",
    [(), *(path for path, value in FIELDS.items() if isinstance(value, dict))],
    ids=lambda path: words(path) or "top",
)
def test_an_unknown_neighbour_is_refused(path: Path) -> None:
    text = changed((*path, UNKNOWN), 1)
    message = refusal(text)
    line = line_of(text, UNKNOWN)
    assert message.startswith(f"line {line}: {words((*path, UNKNOWN))}: ")
    if "unknown field" in message:
        names = [str(each[-1]) for each in FIELDS if each[:-1] == path]
        assert message.endswith(f"unknown field; allowed: {', '.join(names)}")


NEEDED = {
    ("apiVersion",): "line 1: apiVersion: is missing",
    ("kind",): "line 1: kind: is missing",
    ("rules", 0, "partitioning", "mode"): "layout: only allowed together with mode: Static",
    ("rules", 0, "partitioning", "layout"): "layout: is missing; mode Static needs it",
    ("layouts",): "layout: 'mine' is no layout; allowed: all-disabled, ",
    ("layouts", "mine"): "layout: 'mine' is no layout; allowed: all-disabled, ",
    ("layouts", "mine", 0): "layouts.mine: an empty list is not allowed; allowed: at least 1",
    ("layouts", "mine", 0, "devices"): "layouts.mine[0].devices: is missing",
    ("layouts", "mine", 0, "mig-enabled"): "layouts.mine[0].mig-enabled: is missing",
    ("layouts", "mine", 0, "mig-devices"): "layouts.mine[0]: mig-devices is missing; it is",
}


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_what_must_be_there_is_missed(path: Path) -> None:
    data = deepcopy(SAMPLE)
    del at(data, path[:-1])[path[-1]]
    text = yaml.safe_dump(data, sort_keys=False)
    if path in NEEDED:
        assert NEEDED[path] in refusal(text)
    else:
        load(text)


@pytest.mark.parametrize("field", ["shares", "sharing", "requireMemoryLimit"])
def test_what_is_not_there_yet_is_unknown(field: str) -> None:
    message = refusal(changed(("rules", 0, field), {}))
    assert message.endswith(
        f"rules[0].{field}: unknown field; allowed: match, partitioning, naming"
    )


def test_python_names_are_no_fields() -> None:
    assert "health.ignore_xids: unknown field" in refusal(changed(("health", "ignore_xids"), []))


def test_several_faults_are_counted_and_the_first_is_told() -> None:
    data = deepcopy(SAMPLE)
    data["health"]["effect"] = "Evict"
    data["rules"][0]["naming"] = "name"
    message = refusal(yaml.safe_dump(data, sort_keys=False))
    assert message.startswith("line ")
    assert (
        "rules[0].naming: 'name' is not allowed; allowed: 'minor', 'uuid' (and 1 more)" in message
    )


def test_the_schema_agrees() -> None:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(SAMPLE)
    for path, value in FIELDS.items():
        wrong: object = 1 if isinstance(value, str) else WRONG
        if path[-1] == "device-filter":
            continue  # one id may stand without a list
        assert not validator.is_valid(yaml.safe_load(changed(path, wrong))), path
        if isinstance(value, dict) and path[-1] not in ("nodeLabels", "layouts", "mig-devices"):
            assert not validator.is_valid(yaml.safe_load(changed((*path, UNKNOWN), 1)))
