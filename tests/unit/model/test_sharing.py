"""Words of sharing: what they are called outside, and how levels compare."""

from itertools import pairwise

from dra_driver.model import GpuPolicy, MemoryLimitLevel, SharesMode, TimeSlice


def test_levels_grow_in_the_order_of_what_they_stop() -> None:
    levels = ["none", "mps-client", "mps", "cgroup"]
    assert [level.value for level in sorted(MemoryLimitLevel, reverse=True)] == levels[::-1]
    for low, high in pairwise(MemoryLimitLevel):
        assert low < high
        assert high >= low
        assert high > low
        assert not low >= high


def test_time_slices_are_called_as_in_configs() -> None:
    words = {slice_.word: slice_.value for slice_ in TimeSlice}
    assert words == {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}


def test_without_configuration_nothing_is_shared() -> None:
    policy = GpuPolicy()
    assert policy.shares.mode is SharesMode.NONE
    assert policy.sharing is None
    assert policy.required_limit is MemoryLimitLevel.NONE
