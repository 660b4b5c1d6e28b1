"""Driver versions become versions that the API server takes, or nothing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.slices.semver import is_semver, to_semver

NUMBER = st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.127.08", "550.127.8"),
        ("580.95.05", "580.95.5"),
        ("580.159.04", "580.159.4"),
        ("535.183.01", "535.183.1"),
        ("570.86.15", "570.86.15"),
        ("570.86", "570.86.0"),
        ("615", "615.0.0"),
        ("v1.2", "1.2.0"),
        ("000.00.00", "0.0.0"),
        ("550.54.14-beta.1+build.007", "550.54.14-beta.1+build.007"),
        ("1.2.3.4", None),
        ("", None),
        ("   ", None),
        ("unknown", None),
        ("550.x.1", None),
        ("550.1.1-beta.01", None),
        ("\u0663.\u0661.\u0662", None),
        (f"{2**63}.0.0", None),
        ("1" * 5000, None),
        ("1.2.3-" + "a" * 60, None),
    ],
)
def test_b06_versions_of_gpu_drivers(text: str, version: str | None) -> None:
    assert to_semver(text) == version


@given(NUMBER, NUMBER, NUMBER, st.integers(0, 4))
def test_b06_leading_zeros_go_and_numbers_stay(a: int, b: int, c: int, zeros: int) -> None:
    assert to_semver(f"{a}.{'0' * zeros}{b}.{'0' * zeros}{c}") == f"{a}.{b}.{c}"


@given(st.text(alphabet="0123456789.-+va", max_size=12) | st.text(max_size=80))
def test_b06_what_comes_out_is_semver_2(text: str) -> None:
    version = to_semver(text)
    if version is not None:
        assert is_semver(version)
        assert len(version.encode()) <= 64
        assert re.match(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}([-+]|$)", version)
        assert to_semver(version) == version


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1.2.3", True),
        ("1.2.3-alpha.1", True),
        ("1.2.3+01", True),
        ("01.2.3", False),
        ("1.2", False),
        ("1.2.3.4", False),
        ("1.2.3-01", False),
        ("1.2.3-", False),
        ("1.2.3\n", False),
        ("", False),
    ],
)
def test_semver_2(text: str, is_one: bool) -> None:  # noqa: FBT001 - the expected value
    assert is_semver(text) is is_one
