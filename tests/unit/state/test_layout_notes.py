"""Notes on layouts: what is written is what is read, and nothing else is taken for one."""

from pathlib import Path

import pytest

from dra_driver.model import ClaimRef
from dra_driver.model.errors import Bug, DeviceInUse, StorageFailed
from dra_driver.state import (
    ClaimRecord,
    DeviceRecord,
    LayoutNote,
    LayoutNotes,
    NotedSlot,
    Ownership,
    is_reservation,
    reservation,
)

GPU = "GPU-0123abcd-0000-4000-8000-00000000000f"


def note(*, finished: bool = True, **fields: object) -> LayoutNote:
    slots = (
        NotedSlot(profile="1g.10gb", gi_profile_id=19, placement=(6, 1), made=True),
        NotedSlot(profile="3g.40gb", gi_profile_id=9, placement=(0, 4), made=False),
    )
    return LayoutNote.model_validate(
        {"gpu_uuid": GPU, "layout": "mine", "finished": finished, "slots": slots, **fields}
    )


@pytest.fixture
def notes(tmp_path: Path) -> LayoutNotes:
    made = LayoutNotes(tmp_path)
    made.load()
    return made


def test_what_is_written_is_read(notes: LayoutNotes) -> None:
    assert notes.all() == {}
    notes.write(note(finished=False))
    notes.write(note(later="field"))
    assert notes.all() == {GPU: note(later="field")}
    assert [key[0] for key in note().made] == [19]
    notes.remove(GPU)
    notes.remove(GPU)
    assert notes.all() == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n{}\n", b"\xff\n[]", b'{"a": 1}\n{"sha256": "0"}\n'],
)
def test_what_is_damaged_is_set_aside(notes: LayoutNotes, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / f"layouts/{GPU}.json"
    file.write_bytes(content)
    assert notes.get(GPU) is None
    assert notes.all() == {}
    assert file.with_suffix(".damaged").read_bytes() == content
    notes.write(note())
    assert notes.get(GPU) == note()


def test_a_note_is_about_the_gpu_in_its_name(notes: LayoutNotes, tmp_path: Path) -> None:
    notes.write(note())
    other = GPU.replace("f", "e")
    (tmp_path / f"layouts/{GPU}.json").rename(tmp_path / f"layouts/{other}.json")
    assert notes.all() == {}


def test_no_uuid_leads_elsewhere(notes: LayoutNotes) -> None:
    for uuid in ("../claims/x", "GPU-/x", "", "MIG-1"):
        with pytest.raises(Bug):
            notes.get(uuid)


def test_a_note_that_cannot_be_read_is_not_taken_for_none(
    notes: LayoutNotes, tmp_path: Path
) -> None:
    (tmp_path / f"layouts/{GPU}.json").mkdir()
    with pytest.raises(StorageFailed):
        notes.all()


def test_a_reserved_gpu_is_refused_by_the_name_of_its_layout() -> None:
    kept = reservation(GPU, 0, "gpu-0", "all-balanced")
    assert is_reservation(kept.ref)
    assert not is_reservation(ClaimRef("", "x", "uid"))
    assert not is_reservation(ClaimRef("default", "x", kept.uid))
    index = Ownership([kept])
    part = DeviceRecord(
        request="r",
        pool="p",
        device="gpu-0-mig-x",
        gpu_uuid=GPU,
        gpu_minor=0,
        uuid="MIG-1",
        placement=(0, 1),
    )
    wanted = ClaimRecord(namespace="default", name="one", uid="uid-1", devices=(part,))
    with pytest.raises(DeviceInUse, match="while layout all-balanced is being applied"):
        index.check(wanted)
    index.check(kept)  # a repetition
    index.remove(kept.uid)
    index.check(wanted)
