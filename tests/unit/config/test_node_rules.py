"""Which GPUs a rule is about, and how rules are merged."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import DEFAULT_CONFIG, NodeConfig, configured, gpu_indexes, load
from dra_driver.model import GpuPolicy, Partitioning
from dra_driver.model.errors import SettingInvalid
from tests.support.inventories import gpu, inventory

LABELS = {"pool": "train", "zone": "a"}


def config(*rules: dict[str, Any], **more: Any) -> NodeConfig:
    head = {"apiVersion": "config.gpu-dra-driver.dev/v1alpha1", "kind": "NodeConfig"}
    return load(yaml.safe_dump({**head, "rules": list(rules), **more}))


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"model": "*H100*"}, True),
        ({"model": "nvidia h100 80gb hbm?"}, True),
        ({"model": "H100"}, False),
        ({"index": [1]}, True),
        ({"index": [0, 2]}, False),
        ({"index": []}, True),
        ({"uuid": [gpu(1).uuid]}, True),
        ({"uuid": [gpu(2).uuid]}, False),
        ({"pci": ["0000:1c:00.0"]}, True),
        ({"pci": ["00000000:1C:00.0"]}, True),
        ({"pci": ["1c:00.0"]}, True),
        ({"pci": ["0001:1c:00.0"]}, False),
        ({"nodeLabels": {"pool": "train"}}, True),
        ({"nodeLabels": {"pool": "train", "zone": "b"}}, False),
        ({"nodeLabels": {"rack": "1"}}, False),
        ({"model": "*H100*", "index": [1], "nodeLabels": {"zone": "a"}}, True),
        ({"model": "*H100*", "index": [0], "nodeLabels": {"zone": "a"}}, False),
    ],
)
def test_all_that_is_given_must_fit(match: dict[str, Any], fits: bool) -> None:  # noqa: FBT001
    read = config({"match": match, "naming": "uuid"})
    assert read.policy(gpu(1), 1, LABELS).named_by_uuid is fits
    assert read.matching(gpu(1), 1, LABELS) == ((0,) if fits else ())


def test_the_later_rule_wins_field_by_field() -> None:
    read = config(
        {"partitioning": {"mode": "Static", "layout": "all-balanced", "strategy": "single"}},
        {"match": {"index": [0]}, "partitioning": {"mode": "Dynamic", "allowReset": True}},
        {"match": {"index": [1]}, "partitioning": {"strategy": "mixed"}, "naming": "uuid"},
    )
    policies = [read.policy(gpu(place), place, {}) for place in range(3)]
    assert policies == [
        GpuPolicy(Partitioning.DYNAMIC, allow_reset=True, single_strategy=True),
        GpuPolicy(Partitioning.STATIC, "all-balanced", named_by_uuid=True),
        GpuPolicy(Partitioning.STATIC, "all-balanced", single_strategy=True),
    ]


PARTS = st.fixed_dictionaries(
    {},
    optional={"allowReset": st.booleans(), "strategy": st.sampled_from(["mixed", "single"])},
)
MODES = st.sampled_from(
    [{}, {"mode": "Existing"}, {"mode": "Dynamic"}]
    + [{"mode": "Static", "layout": name} for name in ("all-disabled", "all-1g.10gb")]
)
RULES = st.builds(
    lambda part, mode, index, naming: {
        "match": {"index": index},
        "partitioning": {**part, **mode},
        **naming,
    },
    PARTS,
    MODES,
    st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from([{}, {"naming": "uuid"}, {"naming": "minor"}]),
)


@given(st.lists(RULES, max_size=5), st.integers(0, 2))
def test_each_field_is_that_of_the_last_rule_that_gives_it(
    rules: list[dict[str, Any]], index: int
) -> None:
    fitting = [r for r in rules if not r["match"]["index"] or index in r["match"]["index"]]

    def last(field: str, default: Any) -> Any:
        given_by = [{**r["partitioning"], **r} for r in fitting]
        return next((r[field] for r in reversed(given_by) if field in r), default)

    policy = config(*rules).policy(gpu(), index, {})
    assert policy.partitioning.value == last("mode", "Existing")
    assert policy.layout == (last("layout", "") if last("mode", "") == "Static" else "")
    assert policy.allow_reset is last("allowReset", default=False)
    assert policy.single_strategy is (last("strategy", "mixed") == "single")
    assert policy.named_by_uuid is (last("naming", "minor") == "uuid")


def test_without_rules_everything_stays_as_it_is() -> None:
    found = inventory(gpu(0), gpu(1))
    assert configured(found, DEFAULT_CONFIG, {}) == found


def test_indexes_follow_the_pci_order_like_those_of_nvidia_smi() -> None:
    """Minor numbers may have another order, and a GPU without address comes last."""
    first, second = gpu(1, pci_bus_id="0000:07:00.0"), gpu(0, pci_bus_id="0000:0f:00.0")
    far, unknown = gpu(2, pci_bus_id="10000:01:00.0"), gpu(3, pci_bus_id=None)
    found = inventory(unknown, far, second, first)
    assert gpu_indexes(found) == {
        first.uuid: 0,
        second.uuid: 1,
        far.uuid: 2,
        unknown.uuid: 3,
    }
    read = config({"match": {"index": [0]}, "naming": "uuid"})
    named = [each.uuid for each in configured(found, read, {}).gpus if each.policy.named_by_uuid]
    assert named == [first.uuid]


def test_a_snapshot_gets_policies_and_nothing_else() -> None:
    found = inventory(gpu(0), gpu(1))
    read = config({"match": {"index": [1]}, "partitioning": {"mode": "Dynamic"}})
    after = configured(found, read, {})
    assert [each.policy.partitioning for each in after.gpus] == [
        Partitioning.EXISTING,
        Partitioning.DYNAMIC,
    ]
    assert configured(after, DEFAULT_CONFIG, {}) == found
    assert replace(after.gpus[1], policy=GpuPolicy()) == found.gpus[1]


def test_node_labels_are_asked_for_only_when_a_rule_needs_them() -> None:
    assert not config({"naming": "uuid"}).needs_node_labels
    assert config({"match": {"nodeLabels": {"a": "b"}}}).needs_node_labels


@pytest.mark.parametrize(
    ("partitioning", "problem"),
    [
        ({"mode": "Static"}, "layout: is missing; mode Static needs it in the same rule"),
        ({"layout": "mine"}, "layout: only allowed together with mode: Static"),
        ({"mode": "Dynamic", "layout": "mine"}, "only allowed together with mode: Static"),
        (
            {"mode": "Static", "layout": "yours"},
            "'yours' is no layout; allowed: mine, all-disabled, all-enabled, all-balanced, all-",
        ),
        ({"mode": "Static", "layout": "all-1g"}, "'all-1g' is no layout"),
        ({"mode": "Static", "layout": "mine"}, ""),
        ({"mode": "Static", "layout": "all-1g.10gb.me"}, ""),
        ({"mode": "Static", "layout": "all-1g.24gb-me"}, ""),
        ({"mode": "Static", "layout": "all-2g.48gb.me.all"}, ""),
    ],
)
def test_mode_and_layout_go_together(partitioning: dict[str, Any], problem: str) -> None:
    layouts = {"mine": [{"devices": "all", "mig-enabled": False}]}
    rules = ({"naming": "uuid"}, {"partitioning": partitioning})
    if not problem:
        config(*rules, layouts=layouts)
        return
    with pytest.raises(SettingInvalid) as caught:
        config(*rules, layouts=layouts)
    assert problem in str(caught.value)
    assert "rules[1].partitioning.layout: " in str(caught.value)
