"""Every field of the node configuration: whatever is wrong, the error names line and field."""

import re
from copy import deepcopy
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dra_driver.config import NodeConfig, config_schema, load
from dra_driver.model.errors import SettingInvalid
from tests.unit.config import walk
from tests.unit.config.walk import (
    HUGE,
    UNKNOWN,
    WRONG,
    Path,
    fields,
    keys,
    model_at,
    models,
    without,
    words,
)

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
            "shares": {"count": 4, "rename": True, "failRequestsGreaterThanOne": True},
            "sharing": {"strategy": "TimeSlicing", "interval": "Long"},
            "requireMemoryLimit": "cgroup",
            "naming": "minor",
        },
        {
            "shares": {"by": "memory", "reserve": "1Gi"},
            "sharing": {
                "strategy": "MPS",
                "mps": {
                    "defaultActiveThreadPercentage": 50,
                    "defaultPinnedDeviceMemoryLimit": "10Gi",
                    "multiUser": True,
                    "shmSize": "1Gi",
                    "seLinuxLabel": "system_u:object_r:container_file_t:s0",
                },
            },
        },
        {"shares": {"unlimited": True}},
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
FREE_KEYS = {"nodeLabels", "layouts", "mig-devices"}
AMOUNTS = {"reserve", "defaultPinnedDeviceMemoryLimit", "shmSize"}  # may be plain numbers too
FIELDS = dict(fields(NodeConfig, SAMPLE))
REMEDY = re.compile(r"allowed: .|such as .|only allowed .|is missing; .|supported .")


def changed(path: Path, value: Any) -> str:
    """The sample with another value at one place, as text."""
    return yaml.safe_dump(walk.changed(SAMPLE, path, value), sort_keys=False)


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


def test_the_sample_is_right_and_has_every_field() -> None:
    assert load(yaml.safe_dump(SAMPLE)).rules[0].partitioning.layout == "mine"
    places = [(), *FIELDS]
    found = {(model_at(NodeConfig, path[:-1]), path[-1]) for path in FIELDS}
    wanted = {(model, key) for model in models(NodeConfig) for key in keys(model)}
    assert wanted - found == set()
    assert {model_at(NodeConfig, path) for path in places} >= models(NodeConfig)


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_another_type_is_refused(path: Path) -> None:
    wrong: object = WRONG
    if isinstance(FIELDS[path], str):
        wrong = -HUGE if path[-1] in AMOUNTS else HUGE
    text = changed(path, wrong)
    message = refusal(text)
    item = r"(\[0\])?" if path[-1] == "device-filter" else ""  # one id may stand without a list
    where = rf"line {line_of(text, str(wrong))}: {re.escape(words(path))}{item}: "
    assert re.match(where, message), message
    assert str(wrong) in message
    assert REMEDY.search(message), message


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_nothing_is_no_value(path: Path) -> None:
    """`field:` with nothing behind it is refused, or is the same as no such field."""
    text = changed(path, None)
    try:
        found = load(text)
    except SettingInvalid as error:
        assert str(error).startswith("line ")
        assert words(path) in str(error) or words(path[:-1]) in str(error)
        assert REMEDY.search(str(error)), error
    else:
        assert found == load(yaml.safe_dump(without(SAMPLE, path)))


@pytest.mark.parametrize(
    "path", [path for path, value in FIELDS.items() if isinstance(value, str)], ids=words
)
def test_another_word_is_refused(path: Path) -> None:
    text = changed(path, WRONG)
    if path in FREE_TEXT:
        load(text)
        return
    message = refusal(text)
    start = f"line {line_of(text, WRONG)}: {words(path)}: "
    found = (
        f"'{WRONG}' "
        if path[-1] != "interval" or "sharing" not in path
        else (f"unknown time-slice interval: {WRONG}, ")
    )
    assert message.startswith(start + found)
    assert REMEDY.search(message), message


@pytest.mark.parametrize("number", [HUGE, -HUGE])
@pytest.mark.parametrize(
    "path", [path for path, value in FIELDS.items() if type(value) is int], ids=words
)
def test_a_number_out_of_range_is_refused(path: Path, number: int) -> None:
    text = changed(path, number)
    limit = "or less" if number > 0 else "or more"
    assert re.fullmatch(
        rf"line {line_of(text, str(HUGE))}: {re.escape(words(path))}: (active thread percentage "
        rf"must not be [a-z 01]+: )?{number} is not allowed; allowed: \d+ {limit}",
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
    assert REMEDY.search(message), message
    model = model_at(NodeConfig, path)
    assert (model is None) == bool(FREE_KEYS & {*path[-1:]})
    if model is not None:
        assert message.endswith(f"unknown field; allowed: {', '.join(keys(model))}")


NEEDED = {
    ("apiVersion",): "line 1: apiVersion: is missing",
    ("kind",): "line 1: kind: is missing",
    ("rules", 0, "partitioning", "mode"): "layout: only allowed together with mode: Static",
    ("rules", 0, "partitioning", "layout"): "layout: is missing; mode Static needs it",
    ("rules", 0, "sharing", "strategy"): "rules[0].sharing.strategy: is missing; allowed: 'None', ",
    ("rules", 1, "sharing", "strategy"): "rules[1].sharing.strategy: is missing; allowed: 'None', ",
    ("rules", 1, "shares", "by"): "rules[1].shares.reserve: only allowed together with by: memory",
    ("layouts",): "layout: 'mine' is no layout; allowed: all-disabled, ",
    ("layouts", "mine"): "layout: 'mine' is no layout; allowed: all-disabled, ",
    ("layouts", "mine", 0): "layouts.mine: an empty list is not allowed; allowed: at least 1",
    ("layouts", "mine", 0, "devices"): "layouts.mine[0].devices: is missing; it is required",
    ("layouts", "mine", 0, "mig-enabled"): "layouts.mine[0].mig-enabled: is missing; allowed: true",
    ("layouts", "mine", 0, "mig-devices"): "layouts.mine[0]: mig-devices is missing; it is",
}


@pytest.mark.parametrize("path", FIELDS, ids=words)
def test_what_must_be_there_is_missed(path: Path) -> None:
    text = yaml.safe_dump(without(SAMPLE, path), sort_keys=False)
    if path in NEEDED:
        message = refusal(text)
        assert re.match(r"line \d+: ", message)
        assert NEEDED[path] in message
        assert REMEDY.search(message), message
    else:
        load(text)


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
        wrong: object = -1 if isinstance(value, str) else WRONG
        if path[-1] == "device-filter":
            continue  # one id may stand without a list
        assert not validator.is_valid(yaml.safe_load(changed(path, wrong))), path
        if isinstance(value, dict) and path[-1] not in FREE_KEYS:
            assert not validator.is_valid(yaml.safe_load(changed((*path, UNKNOWN), 1)))
