"""The fewest writes, in the right order, under the right generation."""

import copy
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import Settings
from dra_driver.slices import PoolPlan, ServerAbilities, build_slices
from dra_driver.slices.builder import slice_name
from dra_driver.slices.writes import Accepted, Writes, plan_writes
from tests.support.inventories import gpu, inventory

SETTINGS = Settings(node_name="node-a")
ABILITIES = ServerAbilities((1, 37, 2), taints=True)
UID = "node-uid"
OLD = {"generation": 9, "resourceSliceCount": 1, "name": "node-a"}


def plan(count: int, brand: str = "Nvidia", **settings: Any) -> PoolPlan:
    gpus = (gpu(minor, brand=brand if minor % 64 == 0 else "Nvidia") for minor in range(count))
    return build_slices(inventory(*gpus), replace(SETTINGS, **settings), ABILITIES)


class Server:
    """What an API server would have after the writes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0

    def put(self, obj: dict[str, Any]) -> None:
        self.version += 1
        metadata = obj["metadata"] | {"uid": "u", "resourceVersion": str(self.version)}
        self.objects[metadata["name"]] = copy.deepcopy(obj | {"metadata": metadata})

    def apply(self, writes: Writes) -> None:
        for obj in writes.deletes:
            del self.objects[obj["metadata"]["name"]]
        for obj in writes.updates:
            assert obj["metadata"]["name"] in self.objects
            self.put(obj)
        for obj in writes.creates:
            assert obj["metadata"]["name"] not in self.objects
            self.put(obj)

    def reach(self, wanted: PoolPlan, floor: int = 0) -> Writes:
        writes = plan_writes(wanted, list(self.objects.values()), UID, floor)
        self.apply(writes)
        return writes

    def pools(self) -> list[tuple[int, int]]:
        found = [obj["spec"]["pool"] for _, obj in sorted(self.objects.items())]
        return [(pool["generation"], pool["resourceSliceCount"]) for pool in found]


def counts(writes: Writes) -> tuple[int, int, int]:
    return len(writes.deletes), len(writes.updates), len(writes.creates)


def test_the_first_slices_have_generation_one_and_need_no_second_look() -> None:
    server = Server()
    assert counts(server.reach(plan(130))) == (0, 0, 3)
    assert server.pools() == [(1, 3)] * 3
    assert not server.reach(plan(130))


def test_one_changed_slice_keeps_its_generation() -> None:
    server = Server()
    server.reach(plan(3))
    assert counts(server.reach(plan(3, "Tesla"))) == (0, 1, 0)
    assert server.pools() == [(1, 1)]


def test_several_changed_slices_are_all_written_anew() -> None:
    server = Server()
    server.reach(plan(130))
    assert counts(server.reach(plan(130, "Tesla"))) == (0, 3, 0)
    assert server.pools() == [(2, 3)] * 3


def test_a_pool_that_grows_or_shrinks_changes_its_generation_at_once() -> None:
    server = Server()
    server.reach(plan(64))
    assert counts(server.reach(plan(65))) == (0, 1, 1)
    assert server.pools() == [(2, 2)] * 2
    assert counts(server.reach(plan(64))) == (1, 1, 0)
    assert server.pools() == [(2, 1)]


def test_a_lost_slice_is_made_again_alone() -> None:
    server = Server()
    server.reach(plan(130))
    del server.objects[slice_name(1, SETTINGS)]
    assert counts(server.reach(plan(130))) == (0, 0, 1)
    assert server.pools() == [(1, 3)] * 3


def test_after_all_is_lost_no_generation_is_used_twice() -> None:
    server = Server()
    assert server.reach(plan(130), floor=5).generation == 6
    assert Server().reach(plan(3), floor=5).generation == 5


def test_a_crash_between_two_writes_is_carried_on() -> None:
    server = Server()
    server.reach(plan(130))
    writes = plan_writes(plan(130, "Tesla"), list(server.objects.values()), UID)
    server.apply(Writes(2, updates=writes.updates[:1]))
    assert server.pools() == [(2, 3), (1, 3), (1, 3)]
    server.reach(plan(130, "Tesla"))
    assert len(set(server.pools())) == 1
    assert not server.reach(plan(130, "Tesla"))


def test_slices_of_another_making_go_and_their_generation_is_passed() -> None:
    server = Server()
    foreign = plan(1).objects()[0]
    server.put(
        foreign
        | {
            "metadata": {"name": "00000-gpu.nvidia.com-node-a-x7k2p"},
            "spec": foreign["spec"] | {"pool": OLD},
        }
    )
    assert counts(server.reach(plan(3))) == (1, 0, 1)
    assert server.pools() == [(9, 1)]


def test_a_pool_of_another_name_is_cleared() -> None:
    server = Server()
    server.reach(plan(3, pool_name="node-a/old"))
    assert counts(server.reach(plan(3))) == (1, 0, 1)
    assert server.pools() == [(1, 1)]


def test_a_slice_of_our_name_that_cannot_become_ours_is_replaced() -> None:
    server = Server()
    server.reach(plan(3))
    (obj,) = server.objects.values()
    obj["spec"]["nodeName"] = "node-b"
    assert counts(server.reach(plan(3))) == (1, 0, 1)


def test_a_dying_slice_counts_as_lost() -> None:
    server = Server()
    server.reach(plan(3))
    (obj,) = server.objects.values()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert counts(server.reach(plan(3))) == (1, 0, 1)


def test_the_owner_is_the_node_of_now() -> None:
    server = Server()
    server.reach(plan(3))
    found = list(server.objects.values())
    assert not plan_writes(plan(3), found, "")  # not asked for
    (update,) = plan_writes(plan(3), found, "new-uid").updates
    assert [owner["uid"] for owner in update["metadata"]["ownerReferences"]] == ["new-uid"]


def test_unknown_metadata_survives_an_update() -> None:
    server = Server()
    server.reach(plan(3))
    (obj,) = server.objects.values()
    obj["metadata"]["labels"] = {"theirs": "yes"}
    server.reach(plan(3, "Tesla"))
    (obj,) = server.objects.values()
    assert obj["metadata"]["labels"] == {"theirs": "yes"}


def test_what_the_server_made_of_it_is_taken_as_done() -> None:
    server = Server()
    server.reach(plan(3))
    (obj,) = server.objects.values()
    sent = obj["spec"]
    obj["spec"] = sent | {"perDeviceNodeSelection": False, "fromWebhook": "x"}
    name = obj["metadata"]["name"]
    accepted = {name: Accepted(sent, obj["spec"])}
    assert not plan_writes(plan(3), [obj], UID, 0, accepted)
    other = obj | {"spec": sent | {"fromWebhook": "y"}}
    assert counts(plan_writes(plan(3), [other], UID, 0, accepted)) == (0, 1, 0)
    assert counts(plan_writes(plan(3, "Tesla"), [obj], UID, 0, accepted)) == (0, 1, 0)


CHANGES = st.lists(
    st.tuples(st.sampled_from((0, 1, 63, 64, 65, 130)), st.sampled_from(("Nvidia", "Tesla"))),
    min_size=1,
    max_size=5,
)


@given(CHANGES, st.lists(st.integers(0, 2), max_size=3), st.booleans())
def test_any_history_ends_complete_and_quiet(
    history: list[tuple[int, str]],
    lost: list[int],
    stray: bool,  # noqa: FBT001
) -> None:
    server = Server()
    highest = 0
    for count, brand in history:
        wanted = plan(count, brand)
        for index in lost:
            server.objects.pop(slice_name(index, SETTINGS), None)
        if stray:
            server.put(plan(1).objects()[0] | {"metadata": {"name": "stray"}})
        server.reach(wanted, highest)
        assert not server.reach(wanted, highest)
        pools = server.pools()
        assert len(set(pools)) == 1
        assert pools[0][1] == len(pools) == len(wanted.slices)
        assert pools[0][0] >= highest
        highest = pools[0][0]
        found = [d["name"] for o in server.objects.values() for d in o["spec"]["devices"]]
        assert len(found) == count
