"""Sharing in the node configuration: what rules come to, and what does not go together."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import NodeConfig, configured, load
from dra_driver.model import (
    GpuPolicy,
    MemoryLimitLevel,
    MpsSettings,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    Strategy,
    TimeSlice,
)
from dra_driver.model.errors import SettingInvalid
from tests.support.inventories import GIB, gpu, inventory


def config(*rules: dict[str, Any], **more: Any) -> NodeConfig:
    head = {"apiVersion": "config.gpu-dra-driver.dev/v1alpha1", "kind": "NodeConfig"}
    return load(yaml.safe_dump({**head, "rules": list(rules), **more}))


def policy(*rules: dict[str, Any]) -> GpuPolicy:
    return config(*rules).policy(gpu(), 0, {})


COUNT, MEMORY, UNLIMITED = SharesMode.COUNT, SharesMode.MEMORY, SharesMode.UNLIMITED
FOUR = {"count": 4, "rename": True}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([], SharesPolicy()),
        ([{}], SharesPolicy()),
        ([FOUR], SharesPolicy(COUNT, 4, rename=True)),
        ([{"by": "memory"}], SharesPolicy(MEMORY)),
        ([{"by": "memory", "reserve": "1Gi"}], SharesPolicy(MEMORY, reserve_bytes=GIB)),
        ([{"unlimited": True}], SharesPolicy(UNLIMITED)),
        ([FOUR, {"count": 2}], SharesPolicy(COUNT, 2, rename=True)),
        ([FOUR, {"rename": False}], SharesPolicy(COUNT, 4)),
        ([FOUR, {"by": "memory"}], SharesPolicy(MEMORY, rename=True)),
        ([{"by": "memory", "reserve": "1Gi"}, {"by": "memory"}], SharesPolicy(MEMORY)),
        ([{"by": "memory", "reserve": "1Gi"}, {"count": 2}], SharesPolicy(COUNT, 2)),
        ([{"by": "memory", "reserve": "1Gi"}, {"unlimited": True}], SharesPolicy(UNLIMITED)),
        ([FOUR, {"count": 1}], SharesPolicy(rename=True)),
        (
            [FOUR, {"failRequestsGreaterThanOne": True}],
            SharesPolicy(COUNT, 4, rename=True, fail_requests_greater_than_one=True),
        ),
    ],
)
def test_shares_are_merged(shares: list[dict[str, Any]], expected: SharesPolicy) -> None:
    assert policy(*({"shares": each} for each in shares)).shares == expected


LONG = SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG)


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ([], None),
        ([{"strategy": "None"}], None),
        ([{"strategy": "TimeSlicing", "interval": "Long"}], LONG),
        (
            [{"strategy": "TimeSlicing"}],
            SharingSettings(Strategy.TIME_SLICING, TimeSlice.DEFAULT),
        ),
        ([{"strategy": "MPS"}], SharingSettings(Strategy.MPS, mps=MpsSettings())),
        (
            [{"strategy": "MPS", "mps": {"multiUser": True, "shmSize": "1Gi"}}],
            SharingSettings(Strategy.MPS, mps=MpsSettings(multi_user=True, shm_size=GIB)),
        ),
        (
            [{"strategy": "MPS", "mps": {"multiUser": True}}, {"strategy": "MPS"}],
            SharingSettings(Strategy.MPS, mps=MpsSettings()),
        ),
        ([{"strategy": "TimeSlicing", "interval": "Long"}, {"strategy": "None"}], None),
        ([{"strategy": "MPS"}, {"strategy": "TimeSlicing", "interval": "Long"}], LONG),
    ],
)
def test_the_last_sharing_holds_as_a_whole(
    sharing: list[dict[str, Any]], expected: SharingSettings | None
) -> None:
    assert policy(*({"sharing": each} for each in sharing)).sharing == expected


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], MemoryLimitLevel.NONE),
        (["cgroup"], MemoryLimitLevel.CGROUP),
        (["cgroup", "mps"], MemoryLimitLevel.MPS),
        (["cgroup", "none"], MemoryLimitLevel.NONE),
    ],
)
def test_the_last_required_limit_holds(levels: list[str], expected: MemoryLimitLevel) -> None:
    rules = ({"requireMemoryLimit": level} for level in levels)
    assert policy(*rules).required_limit is expected


@pytest.mark.parametrize("effect", ["None", "NoSchedule", "NoExecute"])
def test_the_effect_of_taints_is_told_with_each_gpu(effect: str) -> None:
    found = configured(inventory(gpu()), config(health={"effect": effect}), {})
    assert found.gpus[0].policy == GpuPolicy(taint_effect=effect)


SHARES = {
    "count": 2,
    "by": "memory",
    "unlimited": True,
    "reserve": "1Gi",
    "rename": True,
    "failRequestsGreaterThanOne": True,
}
FIELDS = st.lists(st.sampled_from(list(SHARES)), unique=True)


@given(FIELDS)
def test_only_one_word_says_by_what_devices_are_handed_out(fields: list[str]) -> None:
    modes = [name for name in ("count", "by", "unlimited") if name in fields]
    rule = {"shares": {name: SHARES[name] for name in fields}}
    if len(modes) <= 1 and ("reserve" not in fields or modes == ["by"]):
        (mode,) = modes or ("none",)
        assert policy(rule).shares.mode.value == ("memory" if mode == "by" else mode)
        return
    with pytest.raises(SettingInvalid) as caught:
        config({}, rule)
    wrong = modes[1:] + (["reserve"] if "reserve" in fields and "by" not in fields else [])
    starts = [f": rules[1].shares.{field}: only allowed " for field in wrong]
    assert any(start in str(caught.value) for start in starts)
    assert ("more)" in str(caught.value)) == (len(wrong) > 1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"shares": {"count": 2, "unlimited": True}},
            "shares.unlimited: only allowed without count; allowed: one of count, by, unlimited",
        ),
        (
            {"shares": {"by": "memory", "unlimited": True, "count": 3}},
            "shares.by: only allowed without count; allowed: one of count, by, unlimited (and 1 ",
        ),
        ({"shares": {"count": 0}}, "shares.count: 0 is not allowed; allowed: 1 or more"),
        ({"shares": {"count": 1001}}, "shares.count: 1001 is not allowed; allowed: 1000 or less"),
        ({"shares": {"unlimited": False}}, "shares.unlimited: false is not allowed; allowed: true"),
        ({"shares": {"by": "count"}}, "shares.by: 'count' is not allowed; allowed: 'memory'"),
        (
            {"shares": {"reserve": "1Gi"}},
            "shares.reserve: only allowed together with by: memory in the same rule",
        ),
        ({"shares": {"by": "memory", "reserve": "-1Gi"}}, "'-1Gi' is not allowed; allowed: 0 or"),
        ({"shares": {"replicas": 4}}, "shares.replicas: unknown field; allowed: count, by, unlim"),
        (
            {"sharing": {"strategy": "MPS", "interval": "Long"}},
            "sharing.interval: only allowed together with strategy: TimeSlicing",
        ),
        (
            {"sharing": {"strategy": "None", "mps": {}}},
            "sharing.mps: only allowed together with strategy: MPS",
        ),
        (
            {"sharing": {"strategy": "TimeSlicing", "mps": {"multiUser": True}}},
            "sharing.mps: only allowed together with strategy: MPS",
        ),
        (
            {"sharing": {"strategy": "MPS", "mps": {"defaultPerDevicePinnedMemoryLimit": {}}}},
            "sharing.mps.defaultPerDevicePinnedMemoryLimit: unknown field; allowed: defaultActive",
        ),
        (
            {"sharing": {"strategy": "MPS", "mps": {"defaultPinnedDeviceMemoryLimit": "1Ki"}}},
            "invalid limit: value set too low: '1Ki'; allowed: 1Mi or more",
        ),
        ({"requireMemoryLimit": "mps-client"}, "requireMemoryLimit: 'mps-client' is not allowed;"),
    ],
)
def test_what_does_not_go_together_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        config({"naming": "uuid"}, rule)
    assert str(caught.value).startswith("line ")
    assert "rules[1]." in str(caught.value)
    assert message in str(caught.value)
