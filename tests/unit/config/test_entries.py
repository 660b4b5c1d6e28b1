"""Which entry counts: by label, by default, by fallback; never a name that is not there."""

import pytest

from dra_driver.config import choose
from dra_driver.model.errors import SettingInvalid

USUAL = ("named", "single")


@pytest.mark.parametrize(
    ("wanted", "names", "default", "strategies", "name", "by"),
    [
        ("a", ("a", "b", "default"), "b", USUAL, "a", "label"),
        ("", ("a", "b", "default"), "b", USUAL, "b", "default"),
        ("", ("a", "default"), "", USUAL, "default", "named"),
        ("", ("a",), "", USUAL, "a", "single"),
        ("", ("default",), "", ("single", "named"), "default", "single"),
        ("", ("a", "b"), "", USUAL, "", "empty"),
        ("", ("a",), "", ("named",), "", "empty"),
        ("", ("default",), "", ("empty", "named"), "", "empty"),
        ("", (), "", USUAL, "", "empty"),
    ],
)
def test_the_order_of_choice(
    wanted: str,
    names: tuple[str, ...],
    default: str,
    strategies: tuple[str, ...],
    name: str,
    by: str,
) -> None:
    choice = choose(wanted, names, default, strategies)
    assert (choice.name, choice.by) == (name, by)
    assert ("has no label nvidia.com/dra.config" in choice.why) == (not wanted)


@pytest.mark.parametrize(
    ("wanted", "default", "message"),
    [
        (
            "c",
            "a",
            "label nvidia.com/dra.config names 'c', which does not exist; entries: a, b",
        ),
        ("", "c", "--default-config names 'c', which does not exist; entries: a, b"),
        (
            "../a",
            "a",
            "label nvidia.com/dra.config names '../a', which does not exist; entries: a, b",
        ),
    ],
)
def test_what_does_not_exist_is_no_choice(wanted: str, default: str, message: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        choose(wanted, ("b", "a"), default, USUAL)
    assert str(caught.value) == message


def test_a_message_names_not_too_many() -> None:
    with pytest.raises(SettingInvalid) as caught:
        choose("x", [f"e{number:02}" for number in range(25)])
    assert str(caught.value).endswith("e18, e19 and 5 more")
