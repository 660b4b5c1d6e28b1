"""What people are told of control daemons: once, in time, and only those who have them."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.model import (
    ClaimRef,
    Gpu,
    Health,
    HealthState,
    Inventory,
    MigProfile,
    Partition,
    Placement,
)
from dra_driver.model.errors import StorageFailed
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing import mps_watch
from dra_driver.sharing.mps_client import AgentAway
from dra_driver.sharing.mps_notes import MpsFolders
from dra_driver.sharing.mps_watch import MpsWatch
from dra_driver.state import Holding
from dra_driver.telemetry import Event, EventQueue, Metrics
from tests.support.mps import PATIENCE, eventually

ONE, OTHER = "1" * 16, "2" * 16
PROFILE = MigProfile("1g.10gb", 19, 0, 10 << 30, 16, 1, 1, 0, 1, 0)


class Bed:
    """A watch whose agent speaks through `see` and `lose`."""

    def __init__(self, folder: Path) -> None:
        self.held: list[Holding] = []
        self.error: StorageFailed | None = None
        self.events, self.metrics = EventQueue(), Metrics()
        self.changes = self.asked = 0
        settings = Settings(node_name="node-a", plugins_folder=folder)
        self.sets_folder = MpsFolders(settings).sets
        self.watch = MpsWatch(settings, self._holdings, self.metrics, self.events, self._changed)

    def hold(self, name: str, mps_set: str, gpu: str = "GPU-0", **more: Any) -> None:
        values: dict[str, Any] = {"span": None, "share_id": None, "admin_access": False} | more
        ref = ClaimRef("team", name, f"uid-of-{name}")
        self.held.append(
            Holding(claim=ref, device=f"dev-{gpu}", gpu_uuid=gpu, mps_set=mps_set, **values)
        )

    def see(self, *states: pb.SetState, agent: str = "a") -> list[tuple[str, str]]:
        self.watch._see(pb.Sets(agent_id=agent, sets=states))
        return self.told()

    def lose(self, why: str = "the agent is away") -> list[tuple[str, str]]:
        self.watch._lose(why)
        return self.told()

    def note(self, mps_set: str) -> None:
        """Leave an agent's note of a set."""
        self.sets_folder.mkdir(parents=True, exist_ok=True)
        (self.sets_folder / f"{mps_set}.json").touch()

    def look_in_vain(self, meanwhile: Callable[[], None] = lambda: None) -> list[tuple[str, str]]:
        """Let the watch look for the agent, which does not answer."""

        def watch(_: object) -> Iterator[pb.Sets]:
            meanwhile()
            raise AgentAway("it does not answer")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.watch._agent, "watch", watch)
            self.watch._follow()
        return self.told()

    def told(self) -> list[tuple[str, str]]:
        found: list[Event] = []
        while (event := self.events.take(0)) is not None:
            found.append(event)
        return [(event.reason, event.claim.name if event.claim else "") for event in found]

    def count(self, state: str) -> float:
        self.watch._count()
        name, labels = "gpu_dra_driver_mps_sets", {"state": state}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def health(self, inventory: Inventory) -> list[Health]:
        return [device.health for device in self.watch.with_troubles(inventory).devices()]

    def _holdings(self) -> list[Holding]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.held

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def state(
    mps_set: str, kind: "pb.State.ValueType" = pb.READY, *, interruptions: int = 0, at: int = 0
) -> pb.SetState:
    return pb.SetState(
        set=pb.Set(id=mps_set), state=kind, interruptions=interruptions, interrupted_at=at
    )


def whole(*numbers: int) -> Inventory:
    return Inventory(gpus=tuple(Gpu(f"GPU-{number}", number, "H100") for number in numbers))


def test_an_end_is_told_to_all_claims_of_the_set_and_to_no_others(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.hold("second", ONE)
    bed.hold("third", OTHER, "GPU-1")
    assert bed.see(state(ONE), state(OTHER)) == []
    told = bed.see(state(ONE, pb.DOWN, interruptions=1), state(OTHER))
    assert told == [("MpsInterrupted", "first"), ("MpsInterrupted", "second")]
    assert bed.see(state(ONE, pb.STARTING, interruptions=1), state(OTHER)) == []
    told = bed.see(state(ONE, interruptions=1), state(OTHER))
    assert told == [("MpsRestored", "first"), ("MpsRestored", "second")]
    assert bed.see(state(ONE, interruptions=1), state(OTHER)) == []


def test_an_end_that_was_over_before_it_was_seen_is_told(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    told = bed.see(state(ONE, interruptions=1))
    assert told == [("MpsInterrupted", "first"), ("MpsRestored", "first")]


def test_a_new_set_is_no_news(bed: Bed) -> None:
    bed.hold("first", ONE)
    assert bed.see(state(ONE, pb.STARTING)) == []
    assert bed.see(state(ONE)) == []


def test_what_a_process_before_has_told_is_not_told_again(bed: Bed) -> None:
    bed.hold("first", ONE)
    assert bed.see(state(ONE, interruptions=3, at=int(bed.watch._began) - 3600)) == []


def test_what_happened_while_no_plugin_ran_is_told(bed: Bed) -> None:
    bed.hold("first", ONE)
    told = bed.see(state(ONE, interruptions=1, at=int(bed.watch._began) - 10))
    assert told == [("MpsInterrupted", "first"), ("MpsRestored", "first")]


def test_an_agent_that_is_away_is_told_once_and_its_return_too(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    assert bed.lose() == [("MpsInterrupted", "first")]
    assert bed.lose() == []
    assert (bed.count("down"), bed.count("ready")) == (1, 0)
    assert bed.see(state(ONE, pb.STARTING, interruptions=1)) == []
    assert bed.see(state(ONE, interruptions=1)) == [("MpsRestored", "first")]
    assert (bed.count("down"), bed.count("ready")) == (0, 1)


def test_an_agent_that_came_and_went_between_two_looks_is_told_to_whom_it_has_served(
    bed: Bed,
) -> None:
    bed.lose()
    bed.hold("waits", OTHER)
    bed.hold("served", ONE)
    bed.note(ONE)
    assert bed.look_in_vain() == [("MpsInterrupted", "served")]
    assert bed.look_in_vain() == []
    assert bed.see(state(ONE, interruptions=1)) == [("MpsRestored", "served")]


def test_an_agent_that_comes_during_a_look_in_vain_has_lost_nothing(bed: Bed) -> None:
    bed.see()
    bed.lose()
    bed.hold("served", ONE)
    assert bed.look_in_vain(meanwhile=lambda: bed.note(ONE)) == []
    assert bed.see(state(ONE), agent="b") == []


def test_what_the_next_agent_serves_before_it_is_seen_is_not_lost(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    bed.hold("later", OTHER)
    assert bed.see(state(OTHER), agent="b") == [("MpsInterrupted", "first")]


def test_an_agent_that_takes_another_s_place_at_once_is_told(bed: Bed) -> None:
    """All daemons of the one before have ended, also where its notes were lost."""
    bed.hold("first", ONE)
    bed.see(state(ONE))
    assert bed.see(agent="b") == [("MpsInterrupted", "first")]
    assert bed.see(state(ONE), agent="b") == [("MpsRestored", "first")]


def test_a_connection_that_ends_is_no_agent_that_does(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket was taken away, say: it has made another, and calls on the old one end."""
    bed.hold("first", ONE)
    is_seen, ends = threading.Event(), threading.Event()
    calls = itertools.count()

    def watch(_: object) -> Iterator[pb.Sets]:
        call = next(calls)
        if call < 2:
            yield pb.Sets(agent_id="a", sets=[state(ONE)])
        if call == 1:
            is_seen.set()
            assert ends.wait(PATIENCE)
        raise AgentAway("it does not answer")

    monkeypatch.setattr(bed.watch._agent, "watch", watch)
    bed.watch.start()
    try:
        assert is_seen.wait(PATIENCE)
        assert (bed.told(), bed.changes) == ([], 1)
        ends.set()
        eventually(lambda: bed.told() == [("MpsInterrupted", "first")], "the claim is told")
    finally:
        ends.set()
        bed.watch.stop()


def test_without_claims_nobody_misses_the_agent(bed: Bed) -> None:
    assert bed.lose() == []
    assert bed.health(whole(0)) == [Health()]


def test_a_claim_that_ended_meanwhile_is_not_told_of_its_successor_s_daemon(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    bed.lose()
    bed.held.clear()
    assert bed.see() == []
    bed.hold("second", ONE)
    assert bed.see(state(ONE)) == []


def test_devices_are_ill_for_who_has_them_while_there_is_no_daemon(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    assert bed.health(whole(0, 1)) == [Health(), Health()]
    bed.see(state(ONE, pb.SILENT))
    ill, well = bed.health(whole(0, 1))
    assert (ill.state, ill.message) == (HealthState.UNHEALTHY, "MPS: the control daemon is silent")
    assert well == Health()
    bed.lose("it is away")
    assert bed.health(whole(0, 1))[0].words == "MPS: it is away"
    bed.see(state(ONE))
    assert bed.health(whole(0, 1)) == [Health(), Health()]


def test_a_partition_is_ill_by_itself(bed: Bed) -> None:
    places = [Placement(start, 1) for start in (0, 1)]
    parts = tuple(
        Partition("GPU-0", PROFILE, place, number, 0, f"MIG-{number}")
        for number, place in enumerate(places)
    )
    gpu = Gpu("GPU-0", 0, "H100", mig_capable=True, mig_enabled=True, partitions=parts)
    bed.hold("first", ONE, span=places[1])
    bed.lose("it is away")
    states = [health.state for health in bed.health(Inventory(gpus=(gpu,)))]
    assert states == [HealthState.HEALTHY, HealthState.UNHEALTHY]


def test_only_news_is_handed_on(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    before = bed.changes
    attached = state(ONE)
    attached.clients, attached.since = 3, 9
    bed.see(attached)
    assert bed.changes == before
    bed.see(state(ONE, pb.SILENT))
    assert bed.changes == before + 1


def test_what_can_not_be_told_for_want_of_records_is_told_later(bed: Bed) -> None:
    bed.hold("first", ONE)
    bed.see(state(ONE))
    bed.error = StorageFailed("no")
    with pytest.raises(StorageFailed):
        bed.see(state(ONE, interruptions=1))
    bed.error = None
    told = bed.see(state(ONE, interruptions=1))
    assert told == [("MpsInterrupted", "first"), ("MpsRestored", "first")]
    bed.error = StorageFailed("no")
    with pytest.raises(StorageFailed):
        bed.lose()
    assert bed.health(whole(0)) == [Health()]
    assert bed.count("down") == 0
    bed.error = None
    assert bed.lose() == [("MpsInterrupted", "first")]


def test_records_that_can_not_be_read_do_not_end_the_watch(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_watch, "_IDLE_SECONDS", 0.01)
    bed.hold("first", ONE)
    bed.error = StorageFailed("no")
    bed.watch.start()
    try:
        eventually(lambda: bed.asked > 0, "somebody asks who has the sets")
        bed.error = None
        eventually(lambda: bed.told() == [("MpsInterrupted", "first")], "the claim is told")
    finally:
        bed.watch.stop()


def test_it_starts_and_ends_without_an_agent(bed: Bed) -> None:
    bed.watch.start()
    bed.watch.stop()
    assert not bed.watch._thread.is_alive()
