"""Sets of devices: which go together, what is refused by name, and what a next agent finds."""

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from dra_driver.model import DriverError
from dra_driver.model.errors import ConfigInvalid, DeviceInUse, HardwareFailed
from dra_driver.mps_agent.daemon import Daemon
from dra_driver.mps_agent.keeper import SetKeeper
from dra_driver.mps_agent.set_folders import SetFolders
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing.mps_notes import SetNote, SetNotes
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec
from tests.support.kubelet import eventually
from tests.unit.mps_agent.conftest import AgentBed

LIMIT = 30.0


def test_a_set_is_served_once_however_often_it_is_asked_for(bed: AgentBed) -> None:
    sets, spec = bed.begin(), bed.spec(0, 1, limit=2048, percentage=40)
    first = sets.ensure(spec, LIMIT, replace=False)
    assert sets.ensure(spec, LIMIT, replace=False).pid == first.pid > 0
    assert (first.state, first.interruptions) == (pb.READY, 0)
    (daemon,) = bed.node.show()["mps"]
    assert daemon["visibleDevices"] == ",".join(spec.uuids)
    assert daemon["pinnedMemoryLimits"] == {"0": 2 << 30, "1": 2 << 30}
    sets.release(spec.id)
    sets.release(spec.id)
    assert (sets.states(), bed.node.show()["mps"]) == ([], [])
    assert list(bed.folders.sets.iterdir()) == []


def test_sets_that_overlap_are_refused_by_name(bed: AgentBed) -> None:
    sets = bed.begin()
    sets.ensure(bed.spec(0, 1), LIMIT, replace=False)
    with pytest.raises(DeviceInUse, match=rf"{bed.uuids[1]} belongs to MPS set .*{bed.uuids[0]}"):
        sets.ensure(bed.spec(1), LIMIT, replace=True)
    assert len(bed.node.show()["mps"]) == 1


def test_a_partition_overlaps_its_gpu_and_not_its_neighbour(bed: AgentBed) -> None:
    sets, gpu = bed.begin(), bed.uuids[0]
    parts = [MpsSpec(digit * 16, (MpsDevice(f"MIG-{digit}", gpu),)) for digit in "ab"]
    for part in parts:
        sets.ensure(part, LIMIT, replace=False)
    with pytest.raises(DeviceInUse, match=f"{gpu} belongs to MPS set"):
        sets.ensure(bed.spec(0), LIMIT, replace=False)


def test_settings_that_contradict_are_refused_unless_nobody_else_has_the_set(
    bed: AgentBed,
) -> None:
    sets, spec = bed.begin(), bed.spec(0)
    pid = sets.ensure(spec, LIMIT, replace=False).pid
    other = replace(spec, shm_bytes=128 << 20)
    with pytest.raises(DeviceInUse, match="shm_bytes: 134217728 against 67108864"):
        sets.ensure(other, LIMIT, replace=False)
    assert sets.ensure(spec, LIMIT, replace=True).pid == pid
    assert sets.ensure(other, LIMIT, replace=True).pid != pid
    assert len(bed.node.show()["mps"]) == 1


def test_other_limits_are_taken_by_the_daemon_that_runs(bed: AgentBed) -> None:
    sets = bed.begin()
    pid = sets.ensure(bed.spec(0, limit=1024), LIMIT, replace=False).pid
    wanted = bed.spec(0, limit=3000, percentage=20)
    assert sets.ensure(wanted, LIMIT, replace=False).pid == pid
    (daemon,) = bed.node.show()["mps"]
    assert daemon["pinnedMemoryLimits"] == {"0": 3000 << 20}
    assert daemon["activeThreadPercentage"] == 20
    note = SetNotes(bed.folders).get(wanted.id)
    assert note is not None
    assert note.spec == wanted


def test_limits_that_were_not_taken_are_told_again_to_who_asks_again(
    bed: AgentBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    ask = Daemon.clients

    def clients(daemon: Daemon) -> int:
        looks.append(ask(daemon))
        return looks[-1]

    monkeypatch.setattr(Daemon, "clients", clients)
    sets = bed.begin(poll_seconds=600)
    sets.ensure(bed.spec(0, limit=1024), LIMIT, replace=False)
    eventually(lambda: looks, "the only look that is taken")
    wanted = bed.spec(0, limit=3000)
    bed.node.state.fault(-1, "mps.command.*", 999, times=1)
    with pytest.raises(HardwareFailed):
        sets.ensure(wanted, LIMIT, replace=False)
    sets.ensure(wanted, LIMIT, replace=False)
    (daemon,) = bed.node.show()["mps"]
    assert daemon["pinnedMemoryLimits"] == {"0": 3000 << 20}


def test_a_late_release_leaves_what_was_made_since(
    bed: AgentBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, spec = bed.begin(), bed.spec(0)
    sets.ensure(spec, LIMIT, replace=False)
    halt, remove = SetKeeper.halt, SetFolders.remove
    both_are_here, is_made_anew = threading.Barrier(2), threading.Event()
    removals: list[SetFolders] = []

    def halt_both(keeper: SetKeeper) -> None:
        halt(keeper)
        if threading.current_thread() in releases:
            both_are_here.wait(LIMIT)

    def remove_late(folders: SetFolders) -> None:
        removals.append(folders)
        if len(removals) > 1:
            is_made_anew.wait(LIMIT)
        remove(folders)

    monkeypatch.setattr(SetKeeper, "halt", halt_both)
    monkeypatch.setattr(SetFolders, "remove", remove_late)
    releases = [threading.Thread(target=sets.release, args=[spec.id]) for _ in range(2)]
    for each in releases:
        each.start()
    eventually(lambda: sets.states() == [], "the first is done")
    pipe = bed.folders.of_set(sets.ensure(spec, LIMIT, replace=False).set.id) / "pipe"
    is_made_anew.set()
    for each in releases:
        each.join(LIMIT)
    assert pipe.is_dir()
    assert SetNotes(bed.folders).get(spec.id) is not None


def test_a_partition_that_was_made_anew_has_a_new_daemon(bed: AgentBed) -> None:
    sets = bed.begin()
    spec = MpsSpec("a" * 16, (MpsDevice("MIG-before", bed.uuids[0]),))
    pid = sets.ensure(spec, LIMIT, replace=False).pid
    anew = replace(spec, devices=(MpsDevice("MIG-after", bed.uuids[0]),))
    state = sets.ensure(anew, LIMIT, replace=False)
    assert state.pid != pid
    assert [daemon["visibleDevices"] for daemon in bed.node.show()["mps"]] == ["MIG-after"]


def test_nothing_of_a_request_reaches_a_path_unchecked(bed: AgentBed) -> None:
    sets = bed.begin()
    with pytest.raises(ConfigInvalid, match="id is not allowed"):
        sets.ensure(replace(bed.spec(0), id="../../../tmp/x"), LIMIT, replace=False)
    sets.release("../../../tmp/x")
    assert list(bed.folders.sets.iterdir()) == []


def test_the_next_agent_begins_with_the_sets_of_the_last(bed: AgentBed) -> None:
    spec = bed.spec(0)
    first = bed.begin()
    state = first.ensure(spec, LIMIT, replace=False)
    first.stop()
    assert bed.node.show()["mps"] == []
    (bed.folders.sets / ("b" * 16) / "pipe").mkdir(parents=True)  # of a set that has ended
    second = bed.begin()
    eventually(lambda: second.states()[0].state == pb.READY, "its daemon runs")
    (now,) = second.states()
    assert (now.interruptions, now.pipe_folder) == (1, state.pipe_folder)
    assert now.interrupted_at > 0
    names = {path.name for path in bed.folders.sets.iterdir()}
    assert names == {spec.id, f"{spec.id}.json"}


def test_a_note_of_nothing_that_can_start_is_tried_again_and_again(bed: AgentBed) -> None:
    spec = bed.spec(0)
    notes = SetNotes(bed.folders)
    notes.prepare()
    notes.write(SetNote(spec=spec))
    program = bed.node.root / "usr/bin/nvidia-cuda-mps-control"
    away = program.rename(program.with_name("away"))
    sets = bed.begin()
    eventually(lambda: sets.states()[0].state == pb.DOWN, "it is told")
    assert "no nvidia-cuda-mps-control below" in sets.states()[0].words
    away.rename(program)
    eventually(lambda: sets.states()[0].state == pb.READY, "it starts as soon as it can")


def test_a_start_that_failed_is_tried_anew_by_who_asks(bed: AgentBed) -> None:
    sets, spec = bed.begin(first_pause=600), bed.spec(0)
    bed.node.state.fault(-1, "mps.start", 999, times=1)
    with pytest.raises(HardwareFailed, match="control daemon ended with status 1"):
        sets.ensure(spec, LIMIT, replace=False)
    assert sets.ensure(spec, LIMIT, replace=False).state == pb.READY


def test_a_mistake_of_the_agent_costs_no_client_its_daemon(
    bed: AgentBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, spec = bed.begin(), bed.spec(0)
    pid = sets.ensure(spec, LIMIT, replace=False).pid

    def fail(_: Daemon) -> int:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(Daemon, "clients", fail)
        eventually(lambda: "RuntimeError('a mistake')" in sets.states()[0].words, "it is told")
    eventually(lambda: sets.states()[0].state == pb.READY, "it is looked at again")
    assert (sets.states()[0].pid, sets.states()[0].interruptions) == (pid, 0)


def test_a_mistake_of_the_agent_ends_no_thread_for_good(
    bed: AgentBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, spec = bed.begin(first_pause=600), bed.spec(0)

    def fail(_: Daemon, __: object) -> None:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(Daemon, "when_ended", fail)
        with suppress(DriverError):
            sets.ensure(spec, LIMIT, replace=False)
        eventually(lambda: "RuntimeError('a mistake')" in sets.states()[0].words, "it is told")
    assert sets.ensure(spec, LIMIT, replace=False).state == pb.READY
    (daemon,) = bed.node.show()["mps"]
    assert daemon["visibleDevices"] == ",".join(spec.uuids)


def test_changes_wake_who_waits(bed: AgentBed) -> None:
    sets = bed.begin()
    seen = sets.changes
    sets.wait(seen, 0.01)
    assert sets.changes == seen
    sets.ensure(bed.spec(0), LIMIT, replace=False)
    sets.wait(seen, LIMIT)
    assert sets.changes > seen
