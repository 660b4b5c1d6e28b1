"""Every field of every kind of config: whatever is wrong, one line names the field."""

import json
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dra_driver.config import decode_config, opaque_schema
from dra_driver.config.opaque import KINDS
from dra_driver.model.errors import ConfigInvalid
from tests.unit.config.walk import (
    HUGE,
    UNKNOWN,
    WRONG,
    Path,
    at,
    changed,
    fields,
    keys,
    model_at,
    models,
    without,
    words,
)

API = "resource.nvidia.com/v1beta1"
UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
MPS: dict[str, Any] = {
    "strategy": "MPS",
    "mpsConfig": {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", UUID: "2Gi"},
        "multiUser": True,
        "shmSize": "64Mi",
        "seLinuxLabel": "system_u:object_r:container_file_t:s0:c1,c2",
    },
}
SLICES = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "GpuConfig": [
        {"apiVersion": API, "kind": "GpuConfig", "sharing": MPS},
        {"apiVersion": API, "kind": "GpuConfig", "sharing": SLICES},
    ],
    "MigDeviceConfig": [{"apiVersion": API, "kind": "MigDeviceConfig", "sharing": MPS}],
}
CASES = [
    (sample, path, value)
    for kind, samples in SAMPLES.items()
    for sample in samples
    for path, value in fields(KINDS[kind], sample)
]
HEAD = {("apiVersion",), ("kind",)}  # wrong ones make it another kind: see test_opaque
BODY = [case for case in CASES if case[1] not in HEAD]
MAP = "defaultPerDevicePinnedMemoryLimit"
AMOUNTS = {"defaultPinnedDeviceMemoryLimit", "shmSize"}  # may be plain numbers, as in JSON of Go


def name(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['kind']}-{value['sharing']['strategy']}" if "kind" in value else "-"
    return words(value) if isinstance(value, tuple) else "-"


def is_amount(path: Path) -> bool:
    return path[-1] in AMOUNTS or is_in_map(path)


def is_in_map(path: Path) -> bool:
    return path[-2:-1] == (MAP,)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        decode_config(config)
    message = str(caught.value)
    assert "\n" not in message
    assert not Draft202012Validator(opaque_schema(config["kind"])).is_valid(config), config
    return message


def test_the_samples_are_right_and_have_every_field() -> None:
    for kind, samples in SAMPLES.items():
        wanted = {(model, key) for model in models(KINDS[kind]) for key in keys(model)}
        found = {
            (model_at(KINDS[kind], path[:-1]), path[-1])
            for sample, path, _ in CASES
            if sample["kind"] == kind
        }
        assert wanted - found == set()
        for sample in samples:
            assert decode_config(sample).settings()
            assert Draft202012Validator(opaque_schema(kind)).is_valid(sample)
            assert Draft202012Validator(opaque_schema()).is_valid(sample)


def of_other_types(path: Path, value: Any) -> list[Any]:
    others = [HUGE, WRONG, [1], {"a": 1}, True, 1.5]
    right = {int, float, str} if is_amount(path) else {type(value)}
    return [other for other in others if type(other) not in right]


@pytest.mark.parametrize(
    ("config", "path", "wrong"),
    [(config, path, wrong) for config, path, v in BODY for wrong in of_other_types(path, v)],
    ids=name,
)
def test_another_type_is_refused(config: Any, path: Path, wrong: Any) -> None:
    message = refusal(changed(config, path, wrong))
    inner = r"(\.[a-z]+)?" if isinstance(wrong, dict) else ""
    start = rf'{config["kind"]}: (strict decoding error: unknown field ")?{re.escape(words(path))}'
    assert re.match(rf'{start}{inner}"?[:;] ', message), message
    assert re.search(r"allowed: |supported |such as ", message), message


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [case for case in BODY if isinstance(case[2], str)],
    ids=name,
)
def test_another_word_is_refused(config: Any, path: Path, value: Any) -> None:
    for word in (WRONG, "", value.swapcase() + "!", f" {value}", f"{value}\nx"):
        message = refusal(changed(config, path, word))
        assert message.startswith(f"{config['kind']}: {words(path)}: "), message
        assert re.search(r"allowed: |supported |such as ", message), message


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [case for case in BODY if isinstance(case[2], str)],
    ids=name,
)
def test_a_line_feed_is_no_part_of_a_word(config: Any, path: Path, value: Any) -> None:
    """Python's `$` would let it pass; labels become mount options."""
    with pytest.raises(ConfigInvalid):
        decode_config(changed(config, path, f"{value}\n"))


OUT_OF_RANGE = {
    "defaultActiveThreadPercentage": (-1, 101, -HUGE, HUGE),
    "shmSize": (0, -1, "1023Ki", "-1Gi", "1e30"),
    "defaultPinnedDeviceMemoryLimit": (0, -1, 1048575, "1023Ki", "-1Gi", "100m", "1e30"),
}


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [case for case in BODY if case[1][-1] in OUT_OF_RANGE or is_in_map(case[1])],
    ids=name,
)
def test_a_value_out_of_range_is_refused(config: Any, path: Path, value: Any) -> None:
    numbers = OUT_OF_RANGE["defaultPinnedDeviceMemoryLimit"] if is_in_map(path) else ()
    for number in OUT_OF_RANGE.get(str(path[-1]), numbers):
        with pytest.raises(ConfigInvalid) as caught:
            decode_config(changed(config, path, number))
        message = str(caught.value)
        assert message.startswith(f"{config['kind']}: {words(path)}: "), message
        assert re.search(r"; allowed: .* or (more|less)$", message), message


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [
        *((sample, (), sample) for samples in SAMPLES.values() for sample in samples),
        *(case for case in BODY if isinstance(case[2], dict)),
    ],
    ids=name,
)
@pytest.mark.parametrize("value_there", [1, None, {}], ids=repr)
def test_an_unknown_neighbour_is_refused(
    config: Any, path: Path, value: Any, value_there: Any
) -> None:
    message = refusal(changed(config, (*path, UNKNOWN), value_there))
    place = words((*path, UNKNOWN))
    model = model_at(KINDS[config["kind"]], path)
    if model is None:
        assert path[-1] == MAP
        assert f"{place}: invalid device: unable to parse key as an integer: {UNKNOWN}" in message
    else:
        assert message == (
            f'{config["kind"]}: strict decoding error: unknown field "{place}"; allowed: '
            + ", ".join(keys(model))
        )


@pytest.mark.parametrize(("config", "path", "value"), CASES, ids=name)
def test_a_field_without_value_counts_as_not_given(config: Any, path: Path, value: Any) -> None:
    """Templates write `mpsConfig:` with nothing behind it."""
    if is_in_map(path):
        assert f"{words(path)}: an empty value" in refusal(changed(config, path, None))
        return
    lacking, empty = without(config, path), changed(config, path, None)
    if path[-1] in ("apiVersion", "kind"):
        for wrong in (lacking, empty):
            with pytest.raises(ConfigInvalid, match=r"allowed: resource\.nvidia\.com/v1beta1 with"):
                decode_config(wrong)
    elif path[-1] == "strategy":
        missing = "sharing.strategy: is missing; allowed: 'TimeSlicing', 'MPS'"
        assert refusal(lacking) == refusal(empty) == f"{config['kind']}: {missing}"
    else:
        assert decode_config(lacking) == decode_config(empty)


OWN = {"timeSlicingConfig": "TimeSlicing", "mpsConfig": "MPS"}


@pytest.mark.parametrize(
    ("kind", "strategy", "given"),
    list(product(SAMPLES, ["TimeSlicing", "MPS"], [(), *[(f,) for f in OWN], tuple(OWN)])),
)
def test_a_strategy_takes_its_own_settings_only(
    kind: str, strategy: str, given: tuple[str, ...]
) -> None:
    sharing = {"strategy": strategy, **{field: {} for field in given}}
    config = {"apiVersion": API, "kind": kind, "sharing": sharing}
    wrong = [field for field in given if OWN[field] != strategy]
    if kind == "MigDeviceConfig" and "timeSlicingConfig" in given:
        assert 'strict decoding error: unknown field "sharing.timeSlicingConfig"' in refusal(config)
    elif wrong:
        (field,) = wrong
        title = field[0].upper() + field[1:]
        assert refusal(config).startswith(
            f"{kind}: sharing.{field}: cannot use {title} with the '{strategy}' strategy; allowed: "
        )
    else:
        assert decode_config(config).settings()


def test_python_names_are_no_fields() -> None:
    config = changed(SAMPLES["GpuConfig"][0], ("sharing", "mps_config"), {})
    assert 'unknown field "sharing.mps_config"' in refusal(config)


def test_several_faults_are_counted() -> None:
    config = changed(SAMPLES["GpuConfig"][0], ("sharing", "mpsConfig", "multiUser"), 1)
    at(config, ("sharing", "mpsConfig"))[UNKNOWN] = 1
    assert refusal(config).endswith("(and 1 more)")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@given(st.sampled_from(BODY), JSON)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(
    case: tuple[Any, Path, Any], value: Any
) -> None:
    config, path, _ = case
    wrong = changed(config, path, value)
    try:
        found = decode_config(wrong)
    except ConfigInvalid as error:
        assert "\n" not in str(error)
        assert str(error).startswith(f"{config['kind']}: ")
        assert len(str(error)) < 500
    else:
        assert decode_config(json.loads(json.dumps(wrong))) == found
