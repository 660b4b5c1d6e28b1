"""Shares from the configuration to the claim: what fits on a GPU, and what does not any more."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.allocation import Cause, Claim, Refusal
from dra_driver.model import (
    Gpu,
    GpuPolicy,
    Partitioning,
    Quantity,
    SharesMode,
    SharesPolicy,
)
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.inventories import GIB, gpu, partitioned
from tests.unit.allocation.build import claim, exactly
from tests.unit.allocation.sharing_node import SharingNode
from tests.unit.slices.published import OLD, WITHOUT

RENAMED = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4, rename=True))
FOUR = GpuPolicy(shares=SharesPolicy(SharesMode.COUNT, 4))
BY_MEMORY = GpuPolicy(shares=SharesPolicy(SharesMode.MEMORY, reserve_bytes=GIB))
UNLIMITED = GpuPolicy(shares=SharesPolicy(SharesMode.UNLIMITED))
TEN = {"memory": "10Gi"}
SMALL = "mig-1g.10gb.gpu.nvidia.com"


def h100(minor: int = 0, policy: GpuPolicy = BY_MEMORY) -> Gpu:
    """The simulated card, with 81,559 MiB."""
    return dynamic_gpu(minor, policy=policy)


def test_seven_claims_of_10gi_fit_on_an_80_gb_card_and_the_eighth_does_not() -> None:
    node = SharingNode(h100())
    assert [node.ask(capacity=TEN) for _ in range(8)] == [["gpu-0"]] * 7 + [[]]
    outcome = node.outcome(Claim.parse(claim("c8", {"r": exactly("gpu.nvidia.com", capacity=TEN)})))
    assert isinstance(outcome, Refusal)
    assert not outcome.fatal, "it waits for room"
    assert outcome.message == "request r wants 1 device, 0 found (1 short of capacity memory)"
    (rejection,) = outcome.shortfalls[0].rejections
    assert rejection.cause is Cause.CAPACITY
    assert rejection.detail == "capacity memory: 10Gi wanted, 8855Mi left"
    assert node.ask(capacity={"memory": "8855Mi"}) == ["gpu-0"], "81559 - 1024 - 7 x 10240"
    assert node.ask(capacity={"memory": "1Mi"}) == []


def test_room_comes_back_with_each_claim_that_goes() -> None:
    node = SharingNode(h100())
    while node.ask(capacity=TEN):
        pass
    for uid in list(node.claims):
        node.release(uid)
        assert node.ask(capacity=TEN) == ["gpu-0"]
        assert node.ask(capacity=TEN) == []


def test_each_share_has_an_id_and_says_what_it_consumes() -> None:
    node = SharingNode(h100())
    node.ask(capacity={"memory": "10000000000"})
    node.ask(capacity=TEN)
    first, second = node.results()
    assert first["consumedCapacity"] == {"memory": "9537Mi"}, "whole MiB"
    assert second["consumedCapacity"] == {"memory": "10Gi"}
    assert first["shareID"] != second["shareID"]


def test_who_asks_for_no_amount_gets_the_card_alone() -> None:
    node = SharingNode(h100())
    assert node.pod("nvidia.com/gpu") == ["gpu-0"]
    assert node.ask(capacity={"memory": "1Mi"}) == []
    assert node.pod("nvidia.com/gpu") == []
    node = SharingNode(h100())
    assert node.ask(capacity={"memory": "1Mi"}) == ["gpu-0"]
    assert node.pod("nvidia.com/gpu") == []


def test_four_unchanged_pods_share_a_card_and_the_fifth_waits() -> None:
    node = SharingNode(gpu(0, policy=RENAMED))
    assert [node.pod("nvidia.com/gpu.shared") for _ in range(5)] == [["gpu-0"]] * 4 + [[]]
    assert {result["consumedCapacity"]["shares"] for result in node.results()} == {"1"}
    assert {result["consumedCapacity"]["memory"] for result in node.results()} == {"0"}


def test_without_a_new_name_four_unchanged_pods_share_as_well() -> None:
    node = SharingNode(gpu(0, policy=FOUR))
    assert [node.pod("nvidia.com/gpu") for _ in range(5)] == [["gpu-0"]] * 4 + [[]]
    assert node.pod("nvidia.com/gpu.shared") == []


def test_a_pod_for_a_gpu_never_lands_on_one_that_is_shared_under_another_name() -> None:
    shared_first = SharingNode(gpu(0, policy=RENAMED), gpu(1))
    assert shared_first.pod("nvidia.com/gpu") == ["gpu-1"]
    assert shared_first.pod("nvidia.com/gpu") == []
    assert shared_first.ask("gpu.nvidia.com") == []
    assert shared_first.pod("nvidia.com/gpu.shared") == ["gpu-0"]
    only_shared = SharingNode(*(gpu(n, policy=RENAMED) for n in range(4)))
    assert only_shared.pod("nvidia.com/gpu") == []


def test_where_shares_are_not_kept_nobody_gets_one() -> None:
    node = SharingNode(gpu(0, policy=RENAMED), abilities=WITHOUT)
    assert node.pod("nvidia.com/gpu.shared") == []
    assert [node.pod("nvidia.com/gpu") for _ in range(2)] == [["gpu-0"], []]


def test_partitions_are_shared_under_their_own_name() -> None:
    node = SharingNode(partitioned(0, 0, 3, policy=RENAMED))
    found = [node.pod("nvidia.com/mig-1g.10gb.shared") for _ in range(9)]
    assert found == [["gpu-0-mig-1g10gb-19-0"]] * 4 + [["gpu-0-mig-1g10gb-19-3"]] * 4 + [[]]
    assert node.pod("nvidia.com/mig-1g.10gb") == []
    single = GpuPolicy(shares=RENAMED.shares, single_strategy=True)
    node = SharingNode(partitioned(0, 0, policy=single))
    assert node.pod("nvidia.com/gpu.shared") == ["gpu-0-mig-1g10gb-19-0"]
    assert node.pod("nvidia.com/gpu") == []


def test_two_shares_for_one_pod_are_of_two_cards() -> None:
    node = SharingNode(gpu(0, policy=RENAMED))
    assert node.pod("nvidia.com/gpu.shared", 2) == []
    node = SharingNode(gpu(0, policy=RENAMED), gpu(1, policy=RENAMED))
    assert node.pod("nvidia.com/gpu.shared", 2) == ["gpu-0", "gpu-1"]


def test_a_card_for_everybody_has_no_end() -> None:
    node = SharingNode(gpu(0, policy=UNLIMITED))
    assert [node.pod("nvidia.com/gpu") for _ in range(100)] == [["gpu-0"]] * 100
    assert node.ask(capacity={"memory": "81559Mi"}) == ["gpu-0"]
    assert node.ask(capacity={"memory": "1Mi"}) == [], "amounts that are asked for are counted"
    assert node.pod("nvidia.com/gpu") == ["gpu-0"]


@pytest.mark.parametrize("policy", [RENAMED, FOUR, BY_MEMORY, UNLIMITED])
def test_what_only_the_card_has_as_a_whole_stops_nobody(policy: GpuPolicy) -> None:
    """Engines and memory slices have no amounts that claims would take by themselves."""
    node = SharingNode(partitioned(0, 0, policy=policy))
    wish = {"capacity": {"memory": "1Gi"}}
    assert [bool(node.ask("mig.nvidia.com", **wish)) for _ in range(3)] == [True] * 3


def dynamic(policy: GpuPolicy, minor: int = 0) -> Gpu:
    shares = GpuPolicy(Partitioning.DYNAMIC, shares=policy.shares)
    return dynamic_gpu(minor, policy=shares)


def test_shares_of_partitions_on_request_keep_the_rest_of_the_card_apart() -> None:
    node = SharingNode(dynamic(FOUR))
    found = [node.ask(SMALL) for _ in range(28)]
    assert sorted(Counter(name for (name,) in found).values()) == [4] * 7
    assert node.ask(SMALL) == []
    assert node.pod("nvidia.com/gpu") == [], "all of it is cut"
    whole = SharingNode(dynamic(FOUR))
    assert [whole.pod("nvidia.com/gpu") for _ in range(5)] == [["gpu-0"]] * 4 + [[]]
    assert whole.ask(SMALL) == [], "all of it is in use as a whole"


def test_an_older_scheduler_gets_no_shares_of_what_is_made_on_request() -> None:
    node = SharingNode(dynamic(FOUR), abilities=OLD)
    assert [bool(node.ask(SMALL)) for _ in range(8)] == [True] * 7 + [False]
    assert not any("shareID" in result for result in node.results())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.sampled_from((RENAMED, FOUR, BY_MEMORY, UNLIMITED)), min_size=1, max_size=2),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(("gpu.nvidia.com", "gpu.shared.nvidia.com", "mig.nvidia.com", SMALL)),
            st.sampled_from((None, "1Mi", "3Gi", "9000Mi", "10Gi", "40Gi", "80Gi")),
            st.booleans(),
        ),
        min_size=10,
        max_size=30,
    ),
)
def test_whatever_comes_and_goes_nothing_is_given_twice(
    policies: list[GpuPolicy],
    on_request: bool,  # noqa: FBT001
    steps: list[tuple[str, str | None, bool]],
) -> None:
    cards = [
        dynamic(policy, minor) if on_request else gpu(minor, policy=policy)
        for minor, policy in enumerate(policies)
    ]
    node = SharingNode(*cards)
    for class_name, amount, goes in steps:
        node.ask(class_name, capacity=None if amount is None else {"memory": amount})
        if goes and node.claims:
            node.release(next(iter(node.claims)))
        _check_sums(node)


def _check_sums(node: SharingNode) -> None:
    """Add up by hand what all claims have of capacities, and once for each device of counters."""
    consumed: Counter[tuple[str, str]] = Counter()
    for result in node.results():
        assert node.devices[result["device"]].allows_multiple == ("shareID" in result)
        for name, text in result["consumedCapacity"].items():
            consumed[result["device"], name] += int(Quantity.parse(text))
    for (device, name), amount in consumed.items():
        assert amount <= int(node.devices[device].capacity[name])
    used: Counter[tuple[str, str]] = Counter()
    for device in {result["device"] for result in node.results()}:
        for group, amounts in node.devices[device].consumes.items():
            used.update({(group, key): int(need) for key, need in amounts.items()})
    for (group, key), amount in used.items():
        whole = group.removesuffix("-counter-set")
        assert amount <= int(node.devices[whole].consumes[group][key])
