"""Specs are compared by what they mean."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.simulator.api_server.slices import SliceAdmission, canonical
from dra_driver.slices import ServerAbilities
from dra_driver.slices.compare import same_spec
from tests.support.api import slice_of
from tests.support.dynamic_gpus import dynamic_gpu
from tests.unit.slices.published import NEW, OLD, plan_for


def memory(value: str) -> dict[str, Any]:
    spec: dict[str, Any] = slice_of({"name": "gpu-0", "capacity": {"memory": {"value": value}}})[
        "spec"
    ]
    return spec


def tainted(**taint: str) -> dict[str, Any]:
    made = {"key": "k", "effect": "NoSchedule"} | taint
    spec: dict[str, Any] = slice_of({"name": "g", "taints": [made]})["spec"]
    return spec


def counted(**counters: str) -> dict[str, Any]:
    amounts = {name: {"value": value} for name, value in counters.items()}
    return {"sharedCounters": [{"name": "gpu-0-counter-set", "counters": amounts}]}


def consuming(value: str) -> dict[str, Any]:
    use = {"counterSet": "gpu-0-counter-set", "counters": {"memory": {"value": value}}}
    return {"devices": [{"name": "gpu-0", "consumesCounters": [use]}]}


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        (memory("81920Mi"), memory("80Gi"), True),
        (memory("1000"), memory("1k"), True),
        (memory("1"), memory("1000m"), True),
        (memory("80Gi"), memory("80G"), False),
        ({"devices": []}, {}, True),
        ({"devices": None, "a": {}}, {}, True),
        ({"a": ""}, {}, False),
        ({"a": 0}, {}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": "1k"}, {"a": "1000"}, False),
        (tainted(), tainted(timeAdded="2026-01-01T00:00:00Z"), True),
        (tainted(timeAdded="2026-01-01T00:00:00Z"), tainted(), False),
        (tainted(value="1k"), tainted(value="1000"), False),
        (tainted(value="79"), tainted(), False),
        (counted(memory="81920Mi", value="1000"), counted(value="1k", memory="80Gi"), True),
        (counted(memory="81559Mi"), counted(memory="81560Mi"), False),
        (counted(memory="0"), counted(), False),
        (counted(memory="1"), counted(memory="1", ofa="0"), False),
        (consuming("81920Mi"), consuming("80Gi"), True),
        (consuming("80Gi"), consuming("80G"), False),
    ],
)
def test_what_is_the_same(wanted: Any, found: Any, same: bool) -> None:  # noqa: FBT001
    assert same_spec(wanted, found) is same


AMOUNTS = st.builds(
    lambda number, suffix: f"{number}{suffix}",
    st.integers(0, 10**7),
    st.sampled_from(("", "k", "M", "G", "Ki", "Mi", "Gi", "m")),
)


@given(AMOUNTS)
def test_a_quantity_is_the_same_however_the_server_writes_it(text: str) -> None:
    assert same_spec(memory(text), memory(canonical(text)))


@given(AMOUNTS, AMOUNTS)
def test_other_amounts_are_told_apart(one: str, two: str) -> None:
    units = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

    def worth(text: str) -> Decimal:
        digits = text.rstrip("kKMGim")
        suffix = text[len(digits) :]
        return Decimal(digits) * (units.get(suffix, 1) if suffix != "m" else Decimal("0.001"))

    assert same_spec(memory(one), memory(two)) is (worth(one) == worth(two))


@pytest.mark.parametrize("abilities", [NEW, OLD], ids=["apart", "together"])
def test_counters_that_the_server_stores_are_those_that_were_sent(
    abilities: ServerAbilities,
) -> None:
    """Not a write is made for `81920Mi` that comes back as `80Gi`."""
    plan = plan_for(dynamic_gpu(model="a100-80gb"), abilities=abilities)
    server = SliceAdmission(abilities.version, {"DRAPartitionableDevices": True})
    for obj in plan.objects():
        assert same_spec(obj["spec"], server(obj, None)["spec"])


@pytest.mark.parametrize("version", [(1, 34, 4), (1, 37, 2)])
def test_what_the_server_stores_is_what_was_sent(version: tuple[int, int, int]) -> None:
    device: dict[str, Any] = {
        "name": "gpu-0",
        "attributes": {"type": {"string": "gpu"}, "empty": {"string": ""}},
        "capacity": {"memory": {"value": "81920Mi"}, "shares": {"value": "4000"}},
        "taints": [],
        "consumesCounters": None,
    }
    sent = slice_of(device)
    stored = SliceAdmission(version, {})(sent, None)
    assert stored["spec"] != sent["spec"]
    assert same_spec(sent["spec"], stored["spec"])
