"""CDI files: what stands in them, and when they are written."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi import CdiDevice
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.model.errors import Bug, DriverFilesMissing, StorageFailed
from tests.support.cdi_rules import edits, is_id, read_document
from tests.support.driver_tree import VERSION, DriverTree

UID = "0b9b1a5e-5f4c-4a2e-9d35-3f6d5e0f7a11"
OTHER = "7d1c2f60-8f4c-4a2e-9d35-3f6d5e0f7a22"
GPUS = [CdiDevice("gpu-0", "GPU-0", 0), CdiDevice("gpu-1", "GPU-1", 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


def claim_file(folder: Path, uid: str = UID) -> Path:
    return folder / f"k8s.gpu.nvidia.com-claim_{uid}.json"


def common_file(folder: Path) -> Path:
    return folder / "k8s.gpu.nvidia.com-driver.json"


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the last change of all files: what a write would alter."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_each_device_has_an_entry_with_its_id(tree: DriverTree, folder: Path) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS)
    document = read_document(claim_file(folder))
    named = [f"{document['kind']}={device['name']}" for device in document["devices"]]
    assert [specs.ids(UID, gpu)[0] for gpu in GPUS] == named
    shared = read_document(common_file(folder))
    assert specs.ids(UID, GPUS[0])[1] == f"{shared['kind']}={shared['devices'][0]['name']}"
    assert all(is_id(text) for gpu in GPUS for text in specs.ids(UID, gpu))


def test_ids_need_no_driver(tmp_path: Path) -> None:
    assert len(DriverTree(tmp_path / "nothing").specs().ids(UID, GPUS[0])) == 2


def test_what_gpus_share_stands_in_one_place(tree: DriverTree, folder: Path) -> None:
    """Runtimes deduplicate ids: two claims of a container must not give it anything twice."""
    tree.specs().apply(UID, GPUS)
    for gpu in GPUS:
        assert set(edits(claim_file(folder), f"{UID}-{gpu.name}")) == {"deviceNodes"}
    assert edits(common_file(folder), "common")["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_files_are_mounted_read_only_under_the_drivers_names(
    tree: DriverTree, folder: Path
) -> None:
    tree.specs().apply(UID, GPUS)
    mounts = {m["containerPath"]: m for m in edits(common_file(folder), "common")["mounts"]}
    name = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert mounts[name]["hostPath"] == f"{tree.root}{name}"
    assert all({"ro", "nosuid", "nodev", "rbind"} <= set(m["options"]) for m in mounts.values())


def test_a_device_in_two_requests_is_one_entry(tree: DriverTree, folder: Path) -> None:
    tree.specs().apply(UID, [GPUS[0], GPUS[0]])
    assert len(read_document(claim_file(folder))["devices"]) == 1


def test_a_claim_without_devices_is_a_bug(tree: DriverTree, folder: Path) -> None:
    with pytest.raises(Bug):
        tree.specs().apply(UID, [])
    assert not folder.exists()


def test_nothing_is_written_twice(tree: DriverTree, folder: Path) -> None:
    tree.specs().apply(UID, GPUS)
    before = identities(folder)
    tree.specs().apply(UID, GPUS)
    assert before == identities(folder)


@pytest.mark.parametrize("damage", ["{", "", "[]"])
def test_a_damaged_file_is_made_again(tree: DriverTree, folder: Path, damage: str) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS)
    before = claim_file(folder).read_text(), common_file(folder).read_text()
    claim_file(folder).write_text(damage)
    common_file(folder).unlink()
    specs.apply(UID, GPUS)
    assert before == (claim_file(folder).read_text(), common_file(folder).read_text())


def test_b12_a_driver_upgrade_reaches_the_next_claim(tree: DriverTree, folder: Path) -> None:
    tree.settle()
    specs = tree.specs()
    specs.apply(UID, GPUS[:1])
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    tree.remove_libraries(VERSION)
    specs.apply(OTHER, GPUS[1:])
    text = common_file(folder).read_text()
    assert "libcuda.so.590.44.01" in text
    assert VERSION not in text


def test_b12_a_failed_look_leaves_the_files_and_is_tried_again(
    tree: DriverTree, folder: Path
) -> None:
    tree.settle()
    specs = tree.specs()
    specs.apply(UID, GPUS[:1])
    before = identities(folder)
    tree.remove_libraries(VERSION)
    with pytest.raises(DriverFilesMissing):
        specs.apply(OTHER, GPUS[1:])
    assert before == identities(folder)
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    specs.apply(OTHER, GPUS[1:])
    assert claim_file(folder, OTHER).exists()


def test_a_note_stays_with_the_claim(tree: DriverTree, folder: Path) -> None:
    text = json.dumps({"uid": UID, "text": 'ü "quoted"\n'})
    specs = tree.specs()
    specs.apply(UID, GPUS, text)
    read_document(claim_file(folder))
    assert specs.note(UID) == text
    assert specs.note(OTHER) == ""


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "7", '{"annotations": []}', '{"annotations": 1}']
)
def test_a_lost_note_is_none(tree: DriverTree, folder: Path, damage: str) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS, "text")
    claim_file(folder).write_text(damage)
    assert specs.note(UID) == ""


def test_undo_removes_the_claims_file_and_no_other(tree: DriverTree, folder: Path) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS[:1])
    specs.apply(OTHER, GPUS[1:])
    specs.undo(UID)
    specs.undo(UID)
    assert specs.claim_uids() == {OTHER}
    assert common_file(folder).exists()
    specs.undo(OTHER)
    specs.undo_common()
    specs.undo_common()
    assert list(folder.iterdir()) == []


def test_undo_needs_no_driver_and_no_folder(tmp_path: Path) -> None:
    specs = DriverTree(tmp_path / "nothing").specs()
    specs.undo(UID)
    specs.undo_common()
    assert specs.claim_uids() == set()


def test_only_our_claims_are_counted(tree: DriverTree, folder: Path) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS)
    for name in ("nvidia.yaml", f"k8s.other.example-claim_{OTHER}.json", "x.json"):
        (folder / name).write_text("{}")
    assert specs.claim_uids() == {UID}


def test_unfinished_files_are_swept_at_start(tree: DriverTree, folder: Path) -> None:
    folder.mkdir()
    ours = folder / ".tmp-999999999.ab-k8s.gpu.nvidia.com-claim_x.json~"
    others = folder / ".tmp-999999999.ab-k8s.other.example-claim_x.json~"
    for path in (ours, others):
        path.touch()
    tree.specs().install_hook()
    assert [others] == list(folder.iterdir())


def test_claims_may_be_prepared_at_the_same_time(tree: DriverTree, folder: Path) -> None:
    specs = tree.specs()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                specs.apply(f"claim-{number}-{turn}", GPUS)
                read_document(common_file(folder))
        except BaseException as error:  # noqa: BLE001 - whatever a thread dies of
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(specs.claim_uids()) == 40
    assert not list(folder.glob("*~"))


def test_b13_the_folder_is_made_and_everyone_may_read(tree: DriverTree, folder: Path) -> None:
    previous = os.umask(0o077)
    try:
        tree.specs().apply(UID, GPUS)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


@pytest.mark.parametrize("spoil", ["is a file", "below a file", "name is taken by a folder"])
def test_b13_a_folder_that_cannot_be_used_is_named(
    tree: DriverTree, folder: Path, spoil: str
) -> None:
    settings: dict[str, Any] = {}
    if spoil == "is a file":
        folder.touch()
    elif spoil == "below a file":
        folder.touch()
        settings["cdi_root"] = folder / "deep"
    else:
        claim_file(folder).mkdir(parents=True)
    with pytest.raises(StorageFailed, match=str(folder)):
        tree.specs(**settings).apply(UID, GPUS)


def test_b13_readers_never_see_half_a_file(
    tree: DriverTree, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runtimes read every *.json of the folder at any time."""
    seen: list[str] = []
    write = os.write

    def watched(descriptor: int, data: bytes) -> int:
        seen.extend(path.name for path in folder.glob("*.json") if not _is_complete(path))
        seen.extend(path.name for path in folder.glob(".*.json"))
        return write(descriptor, data[: len(data) // 2 + 1])

    monkeypatch.setattr(os, "write", watched)
    tree.specs().apply(UID, GPUS)
    assert seen == []
    read_document(claim_file(folder))


def _is_complete(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def prior_file(folder: Path, uid: str = UID) -> Path:
    return folder / f"k8s.gpu.nvidia.com-claim_{uid}.yaml"


def test_a_file_of_the_driver_before_goes_with_the_first_of_ours(
    tree: DriverTree, folder: Path
) -> None:
    """Runtimes refuse a device that two files have."""
    folder.mkdir()
    prior_file(folder).touch()
    specs = tree.specs()
    assert (specs.prior_uids(), specs.claim_uids()) == ({UID}, set())
    specs.apply(UID, GPUS)
    assert (specs.prior_uids(), specs.claim_uids()) == (set(), {UID})
    prior_file(folder).touch()
    specs.undo(UID)
    assert (specs.prior_uids(), specs.claim_uids()) == (set(), set())


def test_a_whole_file_whose_claim_ends_during_a_refresh_is_not_put_back(
    tree: DriverTree, folder: Path
) -> None:
    tree.settle()
    specs = tree.specs()
    specs.apply(UID, GPUS[:1], whole=True)
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    tree.remove_libraries(VERSION)

    @contextmanager
    def alone_with(uid: str) -> Iterator[None]:
        specs.undo(uid)  # its Unprepare was first
        yield

    specs.refresh_common(alone_with)
    assert not claim_file(folder).exists()


def test_two_that_look_at_the_driver_at_once_each_write_what_they_found(
    tree: DriverTree, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = tree.specs()
    specs.apply(UID, GPUS[:1])
    mine = common_file(folder).read_bytes()

    def compared_while_another_notes(_: DriverFiles, __: object) -> bool:
        specs._last = ("an earlier driver", {"env": ["ITS=FILES"]})
        return True

    monkeypatch.setattr(DriverFiles, "__eq__", compared_while_another_notes)
    specs.apply(OTHER, GPUS[1:])
    assert common_file(folder).read_bytes() == mine


def test_a_whole_file_needs_no_other_and_follows_a_driver_upgrade(
    tree: DriverTree, folder: Path
) -> None:
    """Containers that the driver before has started know one id a device."""
    tree.settle()
    specs = tree.specs()
    specs.apply(UID, GPUS[:1], note="kept", whole=True)
    specs.apply(OTHER, GPUS[1:])
    assert read_document(claim_file(folder))["containerEdits"] == edits(
        common_file(folder), "common"
    )
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    tree.remove_libraries(VERSION)
    for each in (specs, tree.specs()):  # the same process, and the next
        each.refresh_common()
        document = read_document(claim_file(folder))
        assert document["containerEdits"] == edits(common_file(folder), "common")
        assert "libcuda.so.590.44.01" in str(document["containerEdits"])
        assert each.note(UID) == "kept"
    assert "containerEdits" not in read_document(claim_file(folder, OTHER))
    before = identities(folder)
    tree.specs().refresh_common()
    assert identities(folder) == before
