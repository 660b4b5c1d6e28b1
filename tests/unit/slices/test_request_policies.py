"""Request policies: the driver's own check is at least as strict as the server's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model import Quantity
from dra_driver.simulator.api_server.policies import policy_violations
from dra_driver.slices.request_policies import check_policy


def ranged(default: Any, **limits: Any) -> dict[str, Any]:
    return {"default": default, "validRange": limits}


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("0", {"default": "0"}),
    ("80Gi", {}),
    ("4", ranged("1", min="1", max="4", step="1")),
    ("80Gi", ranged("0", min="0", max="80Gi", step="1Mi")),
    ("80Gi", ranged("80Gi", min="1Mi", max="81920Mi", step="1Mi")),
    ("10", ranged("3", min="1", step="2")),
    ("10", ranged("3", min="1")),
    ("10", {"default": "2", "validValues": ["1", "2", "10"]}),
]
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("4", {"default": "1", "validValues": ["1"], "validRange": {"min": "1"}}, "both"),
    ("4", {"validRange": {"min": "1"}}, "needs min, and a default"),
    ("4", ranged("1"), "needs min, and a default"),
    ("4", ranged("1", max="4"), "needs min, and a default"),
    ("4", ranged("0", min="1"), "not in this order"),
    ("4", ranged("3", min="1", max="2"), "not in this order"),
    ("4", ranged("1", min="1", max="5"), "not in this order"),
    ("4", ranged("1", min="1", step="0"), "step: must be at least 1"),
    ("1", ranged("1", min="1", max="1", step="1"), "step: must be at least 1, and one step"),
    ("10", ranged("2", min="1", step="2"), "whole steps"),
    ("10", ranged("1", min="1", max="10", step="2"), "whole steps"),
    ("10", ranged("x", min="1"), "default: 'x' is not a quantity"),
    ("10", ranged(1, min="1"), "default: 1 is not a quantity"),
    ("10", ranged("1", min="1", max="8Ei"), "max: '8Ei' is not a whole number of 63 bits"),
    ("10", {"validValues": ["1"]}, "default: must be one of"),
    ("10", {"default": "3", "validValues": ["1", "2"]}, "default: must be one of"),
    ("10", {"default": "1", "validValues": ["2", "1"]}, "must grow"),
    ("10", {"default": "1", "validValues": ["1", "1"]}, "must grow"),
    ("10", {"default": "1", "validValues": ["1", "11"]}, "more than the capacity"),
    ("99", {"default": "1", "validValues": [str(n) for n in range(1, 12)]}, "more than 10"),
    ("10", {"default": "1", "validValues": ["1", "b"]}, "validValues[1]: 'b' is not"),
]
# What servers take, or some of them, and no claim can use or no release before 1.37 can count.
STRICTER: list[tuple[str, dict[str, Any], str]] = [
    ("4", ranged("5", min="1"), "not in this order"),
    ("10", ranged("1", min="500m"), "min: '500m' is not a whole number"),
    ("10", ranged("1", min="-1"), "min: '-1' is not a whole number"),
]


@pytest.mark.parametrize(("value", "policy"), GOOD, ids=range(len(GOOD)))
def test_a_good_policy_breaks_no_rule(value: str, policy: dict[str, Any]) -> None:
    assert check_policy(Quantity.parse(value), policy) is None
    assert list(policy_violations("c", {"value": value, "requestPolicy": policy})) == []


@pytest.mark.parametrize(("value", "policy", "words"), BAD, ids=range(len(BAD)))
def test_a_policy_that_breaks_a_rule_is_found(
    value: str, policy: dict[str, Any], words: str
) -> None:
    assert words in str(check_policy(Quantity.parse(value), policy))
    assert list(policy_violations("c", {"value": value, "requestPolicy": policy}))


@pytest.mark.parametrize(("value", "policy", "words"), STRICTER, ids=range(len(STRICTER)))
def test_what_no_claim_could_use_is_found_as_well(
    value: str, policy: dict[str, Any], words: str
) -> None:
    found = check_policy(Quantity.parse(value), policy)
    assert found is not None
    assert found.startswith("requestPolicy: ")
    assert words in found


AMOUNTS = st.sampled_from(("0", "1", "2", "3", "4", "7", "8", "1Mi", "2Mi", "500m", "-1", "x"))
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "default": AMOUNTS,
        "validValues": st.lists(AMOUNTS, max_size=3),
        "validRange": st.fixed_dictionaries(
            {}, optional={"min": AMOUNTS, "max": AMOUNTS, "step": AMOUNTS}
        ),
    },
)


@given(st.sampled_from(("0", "1", "4", "8", "2Mi")), POLICIES)
def test_what_passes_here_passes_the_server(value: str, policy: dict[str, Any]) -> None:
    if check_policy(Quantity.parse(value), policy) is None:
        assert list(policy_violations("c", {"value": value, "requestPolicy": policy})) == []
