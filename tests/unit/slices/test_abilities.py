"""What the API server keeps is found out before it is relied on."""

from typing import Any

import pytest

from dra_driver.simulator.api_server.slices import SliceAdmission
from dra_driver.slices import ServerAbilities
from dra_driver.slices.abilities import abilities_from, probe_slice, without_dropped

GATES = {
    "DRADeviceTaints": "taints",
    "DRAPartitionableDevices": "counters",
    "DRAConsumableCapacity": "multiple_allocations",
}
RELEASES = ((1, 34, 4), (1, 35, 4), (1, 36, 3), (1, 37, 2))


def probe(version: Any, gates: dict[str, bool]) -> ServerAbilities:
    server = SliceAdmission(version, gates)
    obj = probe_slice("gpu.nvidia.com", "node-a", "node-a", version)
    obj["metadata"]["name"] = "made-up"
    return abilities_from(server(obj, None), version)


@pytest.mark.parametrize("version", RELEASES)
def test_with_all_gates_on_all_is_kept(version: Any) -> None:
    found = probe(version, dict.fromkeys(GATES, True))
    assert found == ServerAbilities(version, taints=True, counters=True, multiple_allocations=True)
    assert found.dropped() == ()


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("gate", GATES)
def test_each_gate_is_found_out_by_itself(version: Any, gate: str) -> None:
    found = probe(version, dict.fromkeys(GATES, True) | {gate: False})
    assert [name for name in GATES.values() if not getattr(found, name)] == [GATES[gate]]
    assert found.dropped() == (gate,)


@pytest.mark.parametrize(("version", "kept"), [(RELEASES[0], False), (RELEASES[3], True)])
def test_defaults_of_the_releases(version: Any, kept: bool) -> None:  # noqa: FBT001
    found = probe(version, {})
    assert (found.taints, found.counters, found.multiple_allocations) == (kept,) * 3


def test_a_refused_probe_means_nothing_is_relied_on() -> None:
    assert abilities_from({}, (1, 37, 2)).dropped() == tuple(GATES)


def test_what_did_not_come_back_is_not_relied_on_any_more() -> None:
    had = ServerAbilities((1, 37, 2), taints=True, counters=True, multiple_allocations=True)
    sent = {"devices": [{"name": "a", "taints": [1]}, {"name": "b", "consumesCounters": [1]}]}
    came = {"devices": [{"name": "a"}, {"name": "b", "consumesCounters": [1]}]}
    assert without_dropped(had, sent, came).dropped() == ("DRADeviceTaints",)
    assert without_dropped(had, sent, sent) == had
    assert without_dropped(had, sent, {}).dropped() == (
        "DRADeviceTaints",
        "DRAPartitionableDevices",
    )


def test_counters_that_did_not_come_back_are_not_relied_on_any_more() -> None:
    """A slice that has nothing but counters comes back empty where they are dropped."""
    had = ServerAbilities((1, 37, 2), taints=True, counters=True, multiple_allocations=True)
    sets = {"sharedCounters": [{"name": "gpu-0-counter-set", "counters": {}}]}
    assert without_dropped(had, sets, sets) == had
    assert without_dropped(had, sets, {}).dropped() == ("DRAPartitionableDevices",)
    beside = sets | {"devices": [{"name": "a", "consumesCounters": [1]}]}
    assert without_dropped(had, beside, {"devices": [{"name": "a"}]}).counters is False
    assert without_dropped(had, {"devices": []}, {}) == had
