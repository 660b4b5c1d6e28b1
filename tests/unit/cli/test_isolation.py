"""What those who share a device can do to each other: one table, for the command and the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.device_lines import device_lines
from dra_driver.cli.isolation import WAYS, isolation_text, markdown
from dra_driver.model import (
    Gpu,
    GpuPolicy,
    MemoryLimitLevel,
    MpsSettings,
    SharesMode,
    SharesPolicy,
    SharingSettings,
    Strategy,
    TimeSlice,
)
from dra_driver.state import ClaimRecord
from tests.support.inventories import gpu, inventory, partitioned
from tests.unit.cli.test_device_lines import record

PAGE = Path(__file__).parents[3] / "docs/sharing-configs.md"
MPS = SharingSettings(Strategy.MPS, mps=MpsSettings())
SLICED = SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG)
COUNT = SharesPolicy(SharesMode.COUNT, 4)
BY_MPS = MemoryLimitLevel.MPS
MEMORY = SharesPolicy(SharesMode.MEMORY)


def keys(found: Gpu, *claims: ClaimRecord) -> str:
    (line,) = device_lines(inventory(found), claims, None)
    return line.isolation


def test_the_page_has_the_table_as_it_is() -> None:
    assert f"\n\n{markdown()}\n\n" in PAGE.read_text(encoding="utf-8")


def test_the_command_has_every_way_and_says_which_to_take() -> None:
    text = isolation_text()
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1 : len(WAYS) + 1]] == [way.key for way in WAYS]
    assert max(map(len, lines)) < 160
    assert "recommended way is memory-cgroup without MPS" in " ".join(text.split())


@pytest.mark.parametrize("level", MemoryLimitLevel)
def test_each_level_of_memory_limits_has_a_row(level: MemoryLimitLevel) -> None:
    found = replace(gpu(0, policy=GpuPolicy(shares=MEMORY)), memory_limit=level)
    assert keys(found) == f"memory-{level.value}"
    assert f"memory-{level.value}" in {way.key for way in WAYS}


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (GpuPolicy(), "alone"),
        (GpuPolicy(shares=replace(COUNT, count=1)), "alone"),
        (GpuPolicy(shares=COUNT), "shares"),
        (GpuPolicy(shares=SharesPolicy(SharesMode.UNLIMITED)), "shares"),
        (GpuPolicy(shares=COUNT, sharing=MPS), "shares, mps"),
        (GpuPolicy(shares=MEMORY, sharing=SLICED), "memory-none, time-slices"),
        (GpuPolicy(shares=MEMORY, sharing=MPS), "memory-mps-client"),
        (GpuPolicy(shares=MEMORY, sharing=MPS, required_limit=BY_MPS), "memory-mps"),
    ],
)
def test_the_configuration_says_how_a_device_is_shared(policy: GpuPolicy, wanted: str) -> None:
    assert keys(gpu(0, policy=policy)) == wanted


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ({}, "alone"),
        ({"admin_access": True, "share_id": "x"}, "alone"),
        ({"share_id": "x"}, "shares"),
        ({"share_id": "x", "memory_limit": 1 << 30}, "memory-cgroup"),
        ({"sharing": {"strategy": "MPS", "mpsConfig": {}}}, "mps"),
        ({"sharing": {"strategy": "TimeSlicing"}}, "time-slices"),
        ({"sharing": {"strategy": "OfANewerRelease"}}, "alone"),
    ],
)
def test_without_one_claims_say_it(held: dict[str, Any], wanted: str) -> None:
    found = gpu(0)
    assert keys(found, record(found, None, **held)) == wanted


def test_a_limit_by_cgroup_beside_mps_has_both_keys() -> None:
    policy = GpuPolicy(shares=MEMORY, sharing=MPS)
    assert keys(gpu(0, policy=policy, memory_limit=MemoryLimitLevel.CGROUP)) == "memory-cgroup, mps"


def test_what_a_claim_has_counts_more_than_the_default() -> None:
    found = gpu(0, policy=GpuPolicy(shares=COUNT, sharing=MPS))
    claim = record(found, None, share_id="x", sharing={"strategy": "TimeSlicing"})
    assert keys(found, claim) == "shares, time-slices"


def test_partitions_are_kept_apart_by_the_hardware() -> None:
    policy = GpuPolicy(shares=MEMORY, sharing=MPS)
    found = partitioned(0, 0, policy=policy, memory_limit=MemoryLimitLevel.CGROUP)
    assert keys(found) == "partition, memory-mps-client"
