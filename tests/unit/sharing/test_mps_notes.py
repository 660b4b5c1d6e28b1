"""What is known of sets on disk, and what crosses the socket."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import Settings
from dra_driver.model.errors import ConfigInvalid, HardwareBusy
from dra_driver.sharing.mps_notes import MpsFolders, SetNote, SetNotes
from dra_driver.sharing.mps_spec import MpsDevice, MpsSpec, from_message, set_id, to_message

SPEC = MpsSpec(set_id(["GPU-0"]), (MpsDevice("GPU-0", "GPU-0", 1024),), thread_percentage=20)


@pytest.fixture
def folders(tmp_path: Path) -> MpsFolders:
    return MpsFolders(Settings(node_name="node-a", plugins_folder=tmp_path))


@pytest.fixture
def notes(folders: MpsFolders) -> SetNotes:
    notes = SetNotes(folders)
    notes.prepare()
    return notes


def test_a_note_is_kept_and_forgotten(notes: SetNotes) -> None:
    assert (notes.ids(), notes.get(SPEC.id)) == ([], None)
    note = SetNote(spec=SPEC, interruptions=2, interrupted_at=7)
    notes.write(note)
    assert (notes.ids(), notes.get(SPEC.id)) == ([SPEC.id], note)
    notes.remove(SPEC.id)
    notes.remove(SPEC.id)
    assert notes.ids() == []


def test_without_a_folder_there_are_none(folders: MpsFolders) -> None:
    notes = SetNotes(folders)
    assert (notes.ids(), notes.get(SPEC.id)) == ([], None)
    notes.remove(SPEC.id)


def test_fields_of_a_newer_agent_are_kept(notes: SetNotes) -> None:
    notes.write(SetNote.model_validate({"spec": SPEC, "mood": "good"}))
    found = notes.get(SPEC.id)
    assert found is not None
    notes.write(found.model_copy(update={"interruptions": 1}))
    again = notes.get(SPEC.id)
    assert again is not None
    assert again.model_extra == {"mood": "good"}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"spec": 1}\n{"sha256": "0"}\n'])
def test_a_damaged_note_is_set_aside(notes: SetNotes, folders: MpsFolders, content: bytes) -> None:
    path = folders.sets / f"{SPEC.id}.json"
    path.write_bytes(content)
    assert notes.get(SPEC.id) is None
    assert not path.exists()
    assert path.with_suffix(".damaged").read_bytes() == content


def test_a_note_on_another_set_is_damaged(notes: SetNotes, folders: MpsFolders) -> None:
    notes.write(SetNote(spec=SPEC))
    other = folders.sets / ("0" * 16 + ".json")
    (folders.sets / f"{SPEC.id}.json").rename(other)
    assert notes.get("0" * 16) is None


def test_one_at_a_time_has_the_lock(notes: SetNotes, folders: MpsFolders) -> None:
    with folders.lock(0), pytest.raises(HardwareBusy), folders.lock(0):
        pass


specs = st.builds(
    MpsSpec,
    id=st.just("0123456789abcdef"),
    devices=st.lists(
        st.builds(
            MpsDevice,
            uuid=st.sampled_from([f"{kind}-{n}" for kind in ("GPU", "MIG") for n in range(4)]),
            gpu_uuid=st.sampled_from(["GPU-0", "GPU-1"]),
            limit_mib=st.none() | st.integers(1, 2**20),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda device: device.uuid,
    ).map(tuple),
    thread_percentage=st.none() | st.integers(0, 100),
    multi_user=st.booleans(),
    shm_bytes=st.integers(2**20, 2**40),
    selinux_label=st.sampled_from(["", "a:b:c:s0:c1,c2"]),
)


@given(specs)
def test_a_set_is_the_same_on_both_sides_and_on_disk(spec: MpsSpec) -> None:
    spec.check()
    assert from_message(to_message(spec)) == spec
    assert SetNote.model_validate_json(SetNote(spec=spec).model_dump_json()).spec == spec
    assert list(spec.differences(spec)) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "../../etc/passwd"}, "id"),
        ({"id": ""}, "id"),
        ({"devices": ()}, "devices"),
        ({"devices": (MpsDevice("GPU-0", "GPU-0"), MpsDevice("GPU-0", "GPU-0"))}, "devices"),
        ({"devices": (MpsDevice("GPU-0,GPU-1", "GPU-0"),)}, "device UUID"),
        ({"devices": (MpsDevice("GPU-0", "0"),)}, "GPU UUID"),
        ({"devices": (MpsDevice("GPU-0", "GPU-0", 0),)}, "pinned memory limit"),
        ({"thread_percentage": 101}, "thread percentage"),
        ({"shm_bytes": 1}, "shm size"),
        ({"selinux_label": "a b"}, "SELinux label"),
    ],
)
def test_what_can_not_be_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigInvalid, match=f": {field} is not allowed"):
        replace(SPEC, **change).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"multi_user": True}, "multi_user: True against False"),
        ({"shm_bytes": 1 << 20}, "shm_bytes: 1048576 against 67108864"),
        ({"selinux_label": "a:b:c"}, "selinux_label: 'a:b:c' against ''"),
        ({"thread_percentage": None}, "thread_percentage: not set against 20"),
        ({"devices": (MpsDevice("GPU-1", "GPU-1", 1024),)}, "devices: GPU-1 against GPU-0"),
        ({"devices": (MpsDevice("GPU-0", "GPU-0"),)}, "limit of GPU-0: not set against 1024M"),
    ],
)
def test_what_takes_another_daemon_is_named(change: dict[str, Any], words: str) -> None:
    assert list(replace(SPEC, **change).differences(SPEC)) == [words]


def test_limits_that_only_change_take_none() -> None:
    other = replace(SPEC, thread_percentage=50, devices=(MpsDevice("GPU-0", "GPU-0", 2048),))
    assert list(other.differences(SPEC)) == []
    assert list(SPEC.differences(replace(SPEC, thread_percentage=None))) == []
