"""What of a policy stays while shares are held, and how records have it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.claims.waiting_policies import WaitingPolicies, with_held_policies
from dra_driver.model import (
    GpuPolicy,
    Inventory,
    MemoryLimitLevel,
    MpsSettings,
    Partitioning,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    Strategy,
)
from dra_driver.model.errors import StorageFailed
from dra_driver.state import ClaimRecord, DeviceRecord, Holding, holdings
from dra_driver.state.policies import read_policy, stored_policy
from dra_driver.telemetry import EventQueue
from tests.support.inventories import gpu, inventory

MPS = SharingSettings(Strategy.MPS, mps=MpsSettings(per_device_limits=(("0", 5),), shm_size=7))
FOUR = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4, rename=True))
FULL = GpuPolicy(
    partitioning=Partitioning.DYNAMIC,
    allow_reset=True,
    named_by_uuid=True,
    shares=SharesPolicy(SharesMode.MEMORY, reserve_bytes=9),
    sharing=MPS,
    required_limit=MemoryLimitLevel.MPS,
)


def held(stored: dict[str, Any] | None, **more: Any) -> list[Holding]:
    """What a claim with a share of GPU 0 holds."""
    values: dict[str, Any] = {"share_id": "s", "policy": stored, "gpu_uuid": gpu(0).uuid}
    fixed: dict[str, Any] = {
        "request": "r",
        "pool": "p",
        "device": "gpu-0",
        "gpu_minor": 0,
        "uuid": gpu(0).uuid,
    }
    device = DeviceRecord(**(fixed | values | more))
    return holdings(ClaimRecord(namespace="team", name="c", uid="u", devices=(device,)))


def under(policy: GpuPolicy, held: list[Holding]) -> tuple[GpuPolicy, str]:
    found = with_held_policies(inventory(gpu(0, policy=policy), gpu(1, policy=policy)), held)
    assert (found.gpus[1].policy, found.gpus[1].waits) == (policy, "")
    return found.gpus[0].policy, found.gpus[0].waits


@pytest.mark.parametrize("policy", [GpuPolicy(), FOUR, FULL])
def test_a_record_gives_back_what_it_was_given(policy: GpuPolicy) -> None:
    stored = json.loads(json.dumps(stored_policy(policy)))
    assert read_policy(stored) == policy
    assert read_policy({**stored, "newer": 1}) == policy
    assert (stored == {}) == (policy == GpuPolicy())


@pytest.mark.parametrize("stored", [None, {"shares": 7}, {"shares": {"mode": "newer"}}])
def test_what_is_not_understood_holds_nothing(stored: dict[str, Any] | None) -> None:
    assert under(FULL, held(stored)) == (FULL, "")


def test_shares_keep_their_policy_and_health_its_own() -> None:
    now = replace(FULL, taint_effect="NoExecute", single_strategy=True)
    kept, waits = under(now, held(stored_policy(FOUR)))
    assert kept == replace(FOUR, taint_effect="NoExecute", single_strategy=True)
    assert waits == (
        "partitioning, shares, sharing, requireMemoryLimit, naming of its configuration: wait "
        "until no claim has a share of it"
    )
    assert under(now, held(stored_policy(FOUR), share_id=None)) == (now, "")
    assert under(now, held(stored_policy(FOUR), admin_access=True)) == (now, "")
    assert under(FOUR, held(stored_policy(FOUR))) == (FOUR, "")


def test_a_layout_waits_by_itself() -> None:
    static = replace(FOUR, partitioning=Partitioning.STATIC, layout="all-1g.10gb")
    assert under(static, held(stored_policy(FOUR))) == (static, "")
    assert under(FOUR, held(stored_policy(static))) == (FOUR, "")
    dynamic = replace(FOUR, partitioning=Partitioning.DYNAMIC)
    assert under(static, held(stored_policy(dynamic)))[0] == dynamic


def test_while_nobody_can_tell_who_has_shares_those_of_before_count() -> None:
    there, events = held(stored_policy(FOUR)), EventQueue()
    broken: list[StorageFailed] = []

    def asked() -> list[Holding]:
        for error in broken:
            raise error
        return there

    waiting = WaitingPolicies(asked, events)

    def shown(now: Inventory) -> GpuPolicy:
        return waiting.applied(now).gpus[0].policy

    other = inventory(gpu(0))
    assert shown(other) == FOUR
    broken.append(StorageFailed("the disk is gone"))
    assert shown(other) == FOUR
    broken.clear()
    there.clear()
    assert shown(other) == GpuPolicy()
    told = [event for _ in range(2) if (event := events.take(0)) is not None]
    assert [event.reason for event in told] == ["ConfigurationWaits", "ConfigurationApplied"]
    assert told[0].message.endswith(": claim team/c")
    assert events.take(0) is None
