"""Partitions that no claim holds are somebody else's, once it is sure that no claim held them."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dra_driver.health.foreign import ForeignPartitions
from dra_driver.model import (
    ClaimRef,
    Gpu,
    GpuPolicy,
    Inventory,
    MigProfile,
    Partition,
    Partitioning,
    Placement,
)
from dra_driver.model.errors import StorageFailed
from dra_driver.state import Holding

PROFILE = MigProfile("1g.10gb", 19, 0, 10 << 30, 16, 1, 1, 0, 1, 0)
DYNAMIC = GpuPolicy(partitioning=Partitioning.DYNAMIC)


def _part(start: int) -> Partition:
    return Partition("GPU-a", PROFILE, Placement(start, 1), start + 1, 0, f"MIG-{start}")


def _inventory(*starts: int, policy: GpuPolicy = DYNAMIC) -> Inventory:
    parts = tuple(_part(start) for start in starts)
    gpu = Gpu("GPU-a", 0, "H100", mig_capable=True, mig_enabled=True, partitions=parts)
    return Inventory(gpus=(replace(gpu, policy=policy),))


def _held(start: int) -> Holding:
    return Holding(
        ClaimRef("ns", "c", "u"),
        "gpu-0-mig",
        "GPU-a",
        Placement(start, 1),
        None,
        admin_access=False,
    )


def _foreign(inventory: Inventory) -> set[int]:
    return {part.placement.start for gpu in inventory.gpus for part in gpu.foreign}


def test_what_stands_there_at_first_is_foreign_at_once() -> None:
    tracker = ForeignPartitions(lambda: [_held(0)])
    first, is_unsure = tracker.mark(_inventory(0, 3))
    assert (_foreign(first), is_unsure) == ({3}, True)
    second, is_unsure = tracker.mark(_inventory(0, 3))
    assert (_foreign(second), is_unsure) == ({3}, False)
    tracker.mark(_inventory(0, 3, policy=GpuPolicy()))
    again, _ = tracker.mark(_inventory(0, 3, 4))
    assert _foreign(again) == {3, 4}


def test_a_partition_without_claim_is_foreign_after_the_second_look() -> None:
    tracker = ForeignPartitions(lambda: [_held(0)])
    tracker.mark(_inventory(0))
    first, is_unsure = tracker.mark(_inventory(0, 3))
    assert (_foreign(first), is_unsure) == (set(), True)
    second, is_unsure = tracker.mark(_inventory(0, 3))
    assert (_foreign(second), is_unsure) == ({3}, False)
    third, is_unsure = tracker.mark(_inventory(0))
    assert (_foreign(third), is_unsure) == (set(), False)


def test_a_partition_of_a_claim_that_ends_during_the_look_is_never_foreign() -> None:
    held = [_held(0)]
    tracker = ForeignPartitions(lambda: held)
    tracker.mark(_inventory(0))
    held.clear()
    late, is_unsure = tracker.mark(_inventory(0))  # what that look saw is gone by now
    assert (_foreign(late), is_unsure) == (set(), True)
    after, is_unsure = tracker.mark(_inventory())
    assert (_foreign(after), is_unsure) == (set(), False)


def test_what_was_foreign_stays_so_while_the_records_cannot_be_read() -> None:
    answers: list[Iterable[Holding] | StorageFailed] = [[], [], StorageFailed("away"), []]

    def holdings() -> Iterable[Holding]:
        answer = answers.pop(0)
        if isinstance(answer, StorageFailed):
            raise answer
        return answer

    tracker = ForeignPartitions(holdings)
    tracker.mark(_inventory(3))
    assert _foreign(tracker.mark(_inventory(3))[0]) == {3}
    assert _foreign(tracker.mark(_inventory(3, 4))[0]) == {3}
    assert _foreign(tracker.mark(_inventory(3, 4))[0]) == {3}  # the first sure sight of 4


@pytest.mark.parametrize("mode", [Partitioning.EXISTING, Partitioning.STATIC])
def test_on_other_gpus_nothing_is_foreign(mode: Partitioning) -> None:
    tracker = ForeignPartitions(tuple)
    policy = GpuPolicy(partitioning=mode)
    for _ in range(3):
        found, is_unsure = tracker.mark(_inventory(0, 3, policy=policy))
        assert (_foreign(found), is_unsure) == (set(), False)
