"""Settings in records: strict for what users send, lenient for what is stored (report B24)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import decode_config, differences, read_stored, stored_form
from dra_driver.model import MpsSettings, SharingSettings, Strategy, TimeSlice
from dra_driver.model.errors import ConfigInvalid
from tests.unit.config.test_opaque_fields import BODY, JSON
from tests.unit.config.walk import changed

MIB, GIB = 2**20, 2**30
HEAD = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
MPS = {"strategy": "MPS", "mpsConfig": {"multiUser": True, "defaultActiveThreadPercentage": 10}}
KNOWN = SharingSettings(Strategy.MPS, mps=MpsSettings(thread_percentage=10, multi_user=True))
LIMITS = st.integers(1, 2**20).map(lambda mib: mib * MIB)
SETTINGS = st.one_of(
    st.builds(
        SharingSettings, st.just(Strategy.TIME_SLICING), st.none() | st.sampled_from(TimeSlice)
    ),
    st.builds(
        lambda mps: SharingSettings(Strategy.MPS, mps=mps),
        st.builds(
            MpsSettings,
            st.none() | st.integers(0, 100),
            st.none() | LIMITS,
            st.dictionaries(st.sampled_from(["0", "1", "GPU-1"]), LIMITS).map(
                lambda limits: tuple(sorted(limits.items()))
            ),
            st.booleans(),
            st.none() | LIMITS,
            st.sampled_from(["", "u:r:t:s0"]),
        ),
    ),
)


@given(SETTINGS)
def test_what_is_stored_is_read_back(settings: SharingSettings) -> None:
    stored = stored_form(settings)
    assert read_stored(stored) == settings
    if settings.mps or settings.interval:
        assert decode_config({**HEAD, "sharing": stored}).settings() == settings


@pytest.mark.parametrize(
    ("stored", "settings"),
    [
        ({**MPS, "priority": 1}, KNOWN),
        ({**MPS, "mpsConfig": {**MPS["mpsConfig"], "partitions": [1]}}, KNOWN),  # type: ignore[dict-item]
        ({**MPS, "timeSlicingConfig": {"interval": "Long"}}, KNOWN),
        ({**MPS, "timeSlicingConfig": 5}, KNOWN),
        (
            {"strategy": "MPS", "mpsConfig": {"multiUser": "often", "shmSize": "1Gi"}},
            SharingSettings(Strategy.MPS, mps=MpsSettings(shm_size=GIB)),
        ),
        (
            {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 200}},
            SharingSettings(Strategy.MPS, mps=MpsSettings()),
        ),
        (
            {
                "strategy": "MPS",
                "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "all": "1Gi"}},
            },
            SharingSettings(Strategy.MPS, mps=MpsSettings(per_device_limits=(("0", GIB),))),
        ),
        (
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Eternal"}},
            SharingSettings(Strategy.TIME_SLICING, TimeSlice.DEFAULT),
        ),
        ({"strategy": "TimeSlicing"}, SharingSettings(Strategy.TIME_SLICING)),
        ({"strategy": "GreenContexts", "greenContexts": {}}, None),
        ({"mpsConfig": {}}, None),
        ({}, None),
        (None, None),
        ("MPS", None),
        ([MPS], None),
    ],
)
def test_b24_a_record_of_another_release_is_read_as_far_as_it_is_known(
    stored: Any, settings: SharingSettings | None
) -> None:
    """The newer release was put back: what it wrote must not keep claims from being given up."""
    assert read_stored(stored) == settings
    if stored and settings and stored != {"strategy": "TimeSlicing"}:
        with pytest.raises(ConfigInvalid):
            decode_config({**HEAD, "sharing": stored})


@pytest.mark.parametrize(
    "config",
    [
        {**HEAD, "sharing": {"strategy": "MPS", "mpsConfg": {}}},
        {**HEAD, "sharing": {"strategy": 5}},
        {**HEAD, "kind": "GpuConfigs"},
        {**HEAD, "apiVersion": "resource.nvidia.com/v1alpha1"},
    ],
)
def test_b24_what_a_user_sends_is_read_strictly(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=r"; allowed: |allowed: "):
        decode_config(config)


@given(
    JSON
    | st.sampled_from(BODY).flatmap(
        lambda case: JSON.map(lambda value: changed(case[0], case[1], value).get("sharing"))
    )
)
def test_nothing_that_is_stored_raises(stored: Any) -> None:
    found = read_stored(stored)
    assert found is None or read_stored(stored_form(found)) == found


def test_claims_are_told_in_what_they_differ() -> None:
    long = SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG)
    short = SharingSettings(Strategy.TIME_SLICING, TimeSlice.SHORT)
    assert list(differences(long, short)) == [
        "sharing.timeSlicingConfig.interval: Long against Short"
    ]
    assert list(differences(KNOWN, None)) == [
        "sharing.strategy: MPS against not set",
        "sharing.mpsConfig.defaultActiveThreadPercentage: 10 against not set",
        "sharing.mpsConfig.multiUser: true against not set",
    ]
    limits = SharingSettings(Strategy.MPS, mps=MpsSettings(per_device_limits=(("0", GIB),)))
    assert list(differences(SharingSettings(Strategy.MPS, mps=MpsSettings()), limits)) == [
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: not set against 1Gi"
    ]


@given(SETTINGS | st.none(), SETTINGS | st.none())
def test_claims_agree_when_their_settings_are_equal(
    mine: SharingSettings | None, theirs: SharingSettings | None
) -> None:
    assert (mine == theirs) == (not list(differences(mine, theirs)))
