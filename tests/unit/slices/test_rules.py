"""The driver's own checks are at least as strict as the server's, rule by rule."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.simulator.api_server.validation import violations
from dra_driver.slices import check_device, check_spec
from tests.support.api import slice_of

VERSIONS = ((1, 34, 4), (1, 35, 4), (1, 36, 3), (1, 37, 2))
GOOD = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}, "v": {"version": "1.2.3"}, "n": {"int": 1}},
    "capacity": {"memory": {"value": "80Gi"}},
    "taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}],
}
LABEL = "a DNS label"


def many(key: str, count: int, value: Any) -> Callable[[Any], None]:
    def change(device: Any) -> None:
        device[key] = {f"k{number}": value for number in range(count)}

    return change


def at(*path: Any) -> Callable[[Any], None]:
    """Put the last item at the place that the others name."""

    def change(device: Any) -> None:
        place = device
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]

    return change


BAD: list[tuple[Callable[[Any], None], str]] = [
    (at("name", "GPU-0"), LABEL),
    (at("name", "gpu.0"), LABEL),
    (at("name", "gpu_0"), LABEL),
    (at("name", "-gpu"), LABEL),
    (at("name", "x" * 64), LABEL),
    (at("name", ""), LABEL),
    (at("name", "gpu-0\n"), LABEL),
    (at("attributes", "a-b", {"string": "x"}), "C identifier"),
    (at("attributes", "1a", {"string": "x"}), "C identifier"),
    (at("attributes", "x" * 33, {"string": "x"}), "C identifier"),
    (at("attributes", "Bad_Domain/a", {"string": "x"}), "domain"),
    (at("attributes", "/a", {"string": "x"}), "domain"),
    (at("attributes", "d.example/", {"string": "x"}), "C identifier"),
    (at("attributes", "type", {"string": "x" * 65}), "64 bytes"),
    (at("attributes", "type", {"string": "ä" * 33}), "64 bytes"),
    (at("attributes", "type", {}), "exactly one value"),
    (at("attributes", "type", {"string": "x", "int": 1}), "exactly one value"),
    (at("attributes", "type", {"strings": ["x"]}), "not a kind of value"),
    (at("attributes", "n", {"int": "1"}), "64-bit integer"),
    (at("attributes", "n", {"int": 2**63}), "64-bit integer"),
    (at("attributes", "n", {"bool": 1}), "true or false"),
    (at("attributes", "v", {"version": "550.127.08"}), "semver"),
    (at("attributes", "v", {"version": "12.8"}), "semver"),
    (at("capacity", "memory", {"value": "80 Gi"}), "quantity"),
    (at("capacity", "memory", {"value": 80}), "quantity"),
    (at("capacity", "memory", {"value": "-1"}), "63 bits"),
    (at("capacity", "me-mory", {"value": "1"}), "C identifier"),
    (at("capacity", "memory", {"value": "1", "requestPolicy": {"default": "1"}}), "needs"),
    (many("attributes", 32, {"bool": True}), "more than 32"),
    (many("capacity", 30, {"value": "1"}), "more than 32"),
    (at("taints", 0, "key", "x" * 64), "label name"),
    (at("taints", 0, "key", "Bad Domain/xid"), "subdomain"),
    (at("taints", 0, "key", ""), "label name"),
    (at("taints", 0, "value", "no good"), "label value"),
    (at("taints", 0, "effect", "Never"), "effect"),
    (at("taints", [{"key": "k", "effect": "NoExecute"}] * 5), "more than 4"),
    (at("consumesCounters", [{"counterSet": "A", "counters": {"a": {"value": "1"}}}]), LABEL),
    (at("consumesCounters", [{"counterSet": "a", "counters": {}}]), "1 to 32"),
    (at("consumesCounters", [{"counterSet": "a", "counters": {"A": {"value": "1"}}}]), LABEL),
    (at("consumesCounters", [{"counterSet": "a", "counters": {"a": {"value": ""}}}]), "quantity"),
    (at("consumesCounters", [{"counterSet": "a", "counters": {"a": {"value": "1"}}}] * 2), "twice"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=range(len(BAD)))
def test_a_device_that_breaks_a_rule_is_found(change: Callable[[Any], None], words: str) -> None:
    device = copy.deepcopy(GOOD)
    change(device)
    found = [str(wrong) for wrong in check_device(device)]
    assert any(words in each for each in found), found


def test_a_good_device_breaks_none() -> None:
    assert list(check_device(GOOD)) == []
    for version in VERSIONS:
        assert list(violations(slice_of(GOOD)["spec"], None, version)) == []


def sets(*sizes: int) -> list[dict[str, Any]]:
    """Make counter sets with so many counters."""
    return [
        {"name": f"s{i}", "counters": {f"c{n}": {"value": "1"} for n in range(size)}}
        for i, size in enumerate(sizes)
    ]


def using(counter_set: str, counter: str) -> list[dict[str, Any]]:
    use = {"counterSet": counter_set, "counters": {counter: {"value": "1"}}}
    return [{"name": "gpu-0", "consumesCounters": [use]}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"driver": "x" * 64}, "driver"),
        ({"driver": "Gpu_x"}, "driver"),
        ({"nodeName": ""}, "nodeName"),
        ({"nodeName": "x" * 254}, "nodeName"),
        ({"pool": {"name": "a//b", "generation": 1, "resourceSliceCount": 1}}, "pool.name"),
        ({"pool": {"name": "", "generation": 1, "resourceSliceCount": 1}}, "pool.name"),
        ({"pool": {"name": "a", "generation": 1, "resourceSliceCount": 0}}, "pool"),
        ({"pool": {"name": "a", "generation": -1, "resourceSliceCount": 1}}, "pool"),
        ({"devices": [{"name": f"gpu-{n}"} for n in range(65)]}, "more than 64"),
        ({"devices": [{"name": "gpu-0"}, {"name": "gpu-0"}]}, "same name"),
        ({"devices": [{"name": "gpu-0"}, {"name": "Gpu"}]}, r"devices[1].name"),
        ({"sharedCounters": sets(*[1] * 9)}, "sharedCounters: more than 8"),
        ({"sharedCounters": sets(33)}, "sharedCounters[0].counters: must be 1 to 32"),
        ({"sharedCounters": sets(0)}, "sharedCounters[0].counters: must be 1 to 32"),
        ({"sharedCounters": [*sets(1), *sets(1)]}, "sharedCounters: two have the same name"),
        ({"sharedCounters": [{**sets(1)[0], "name": "A"}]}, LABEL),
        ({"sharedCounters": [{"name": "s"}]}, "must be 1 to 32"),
        ({"sharedCounters": sets(17, 16), "devices": [{"name": "a"}]}, "more than 32 counters"),
        ({"sharedCounters": sets(1), "devices": using("s0", "c1")}, "'c1' is not in this slice"),
        ({"sharedCounters": sets(1), "devices": using("s1", "c0")}, "'c0' is not in this slice"),
    ],
)
def test_a_slice_that_breaks_a_rule_is_found(changes: dict[str, Any], words: str) -> None:
    found = [str(wrong) for wrong in check_spec(slice_of(**changes)["spec"])]
    assert any(words in each for each in found), found


@pytest.mark.parametrize("changes", [{"sharedCounters": sets(32, 32)}, {"sharedCounters": sets(1)}])
def test_counters_by_themselves_break_no_rule(changes: dict[str, Any]) -> None:
    spec = slice_of(**changes)["spec"]
    del spec["devices"]
    assert list(check_spec(spec)) == []
    assert list(violations(spec, None, (1, 37, 2))) == []


KEYS = st.sampled_from(("type", "a-b", "d.example/x", "x" * 33, "Ünknown", "")) | st.text(
    max_size=5
)
VALUES: st.SearchStrategy[dict[str, Any]] = (
    st.builds(lambda text: {"string": text}, st.text(max_size=70))
    | st.builds(lambda text: {"version": text}, st.text("0123456789.-+ab", max_size=12))
    | st.builds(lambda number: {"int": number}, st.integers(-(2**65), 2**65))
    | st.just({})
    | st.just({"string": "x", "bool": True})
)
TAINTS = st.fixed_dictionaries(
    {
        "key": st.text("abZ0-_./ ", max_size=8),
        "effect": st.sampled_from(("NoSchedule", "NoExecute", "None", "")),
    },
    optional={"value": st.text("abZ0-_./ ", max_size=8)},
)
USES = st.fixed_dictionaries(
    {
        "counterSet": st.text("ab-A", max_size=3),
        "counters": st.dictionaries(st.text("ab-A", max_size=3), st.just({"value": "1"})),
    }
)
DEVICES = st.fixed_dictionaries(
    {"name": st.text("ab0-.A", max_size=6)},
    optional={
        "attributes": st.dictionaries(KEYS, VALUES, max_size=4),
        "capacity": st.dictionaries(KEYS, st.just({"value": "1"}), max_size=4),
        "taints": st.lists(TAINTS, max_size=6),
        "consumesCounters": st.lists(USES, max_size=3),
    },
)


@given(DEVICES, st.sampled_from(VERSIONS))
def test_what_passes_here_passes_the_server(device: dict[str, Any], version: Any) -> None:
    if not list(check_device(device)):
        groups = [
            {"name": use["counterSet"], "counters": use["counters"]}
            for use in device.get("consumesCounters", [])
        ]
        extra: dict[str, Any] = {"sharedCounters": groups} if groups and version < (1, 35) else {}
        spec = slice_of(device, **extra)["spec"]
        assert list(violations(spec, None, version)) == []
