"""The copy of the API server's slices stays right whatever order the news comes in."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import Settings
from dra_driver.kube import KubeClient, SliceList, WatchEvent
from dra_driver.slices.mirror import SliceMirror


def at(version: int, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": {}}


def listed(version: int, *objects: dict[str, Any]) -> SliceList:
    return SliceList(objects, str(version))


class Copy:
    """A mirror that is fed by hand, and what it tells."""

    def __init__(self, folder: Path) -> None:
        config = folder / "config"
        config.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
            " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u}]}"
        )
        self.told: list[bool] = []
        self.mirror = SliceMirror(
            KubeClient(Settings(node_name="node-a", kubeconfig=config)), self._hear
        )

    def _hear(self, *, others_changed: bool) -> None:
        self.told.append(others_changed)

    def event(self, kind: str, obj: dict[str, Any]) -> str:
        return self.mirror._take(WatchEvent(kind, obj))

    def versions(self) -> list[str]:
        return [obj["metadata"]["resourceVersion"] for obj in self.mirror.slices()]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    made = Copy(tmp_path)
    made.mirror._replace(listed(10))
    made.told.clear()
    return made


def test_a_list_and_changes_of_others_are_told(copy: Copy) -> None:
    copy.event("ADDED", at(11))
    copy.event("MODIFIED", at(12))
    copy.event("DELETED", at(13))
    copy.mirror._replace(listed(14))
    assert copy.told == [True, True, True, False]
    assert copy.versions() == []


def test_an_echo_of_an_own_write_is_not_told(copy: Copy) -> None:
    copy.mirror.put(at(11))
    copy.event("ADDED", at(11))
    assert copy.told == []
    assert copy.versions() == ["11"]


def test_a_delete_that_overtakes_the_answer_to_the_create_counts(copy: Copy) -> None:
    copy.event("ADDED", at(11))
    copy.event("DELETED", at(12))
    copy.mirror.put(at(11))  # the answer comes last
    assert copy.versions() == []
    copy.mirror.put(at(13))
    assert copy.versions() == ["13"]


def test_a_list_that_overtakes_the_answer_to_the_create_counts(copy: Copy) -> None:
    copy.mirror._replace(listed(20))
    copy.mirror.put(at(15))  # created and deleted before that list
    assert copy.versions() == []


def test_an_own_write_that_is_made_while_the_list_is_read_stays(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_slices() -> SliceList:
        copy.mirror.put(at(30))
        return listed(20, at(11))

    monkeypatch.setattr(copy.mirror._kube, "list_slices", list_slices)
    copy.mirror._replace(copy.mirror._list())
    assert copy.versions() == ["30"]


def test_what_an_earlier_server_had_goes_with_its_versions(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was restored from a backup begins earlier: nothing is newer than its list."""
    copy.mirror.put(at(30))
    copy.event("ADDED", at(31, "b"))
    monkeypatch.setattr(copy.mirror._kube, "list_slices", lambda: listed(20, at(11)))
    copy.mirror._replace(copy.mirror._list())
    assert copy.versions() == ["11"]


def test_old_news_does_not_undo_new(copy: Copy) -> None:
    copy.mirror.put(at(20))
    copy.event("MODIFIED", at(15))
    copy.event("DELETED", at(16))
    assert copy.versions() == ["20"]
    assert copy.told == []


def test_an_own_delete_is_noted_at_once(copy: Copy) -> None:
    copy.mirror.put(at(11))
    copy.mirror.forget(at(11))
    assert copy.versions() == []
    copy.event("DELETED", at(12))
    assert copy.told == []


def test_an_own_delete_is_not_undone_by_the_news_of_what_it_deleted(copy: Copy) -> None:
    copy.mirror.put(at(11))
    copy.mirror.forget(at(11))
    copy.event("ADDED", at(11))  # the watch is behind
    assert copy.versions() == []
    copy.event("ADDED", at(13))
    assert copy.versions() == ["13"]
    assert copy.told == [True]


def test_a_bookmark_moves_on_and_changes_nothing(copy: Copy) -> None:
    assert copy.event("BOOKMARK", at(99)) == "99"
    assert copy.versions() == []
    assert copy.told == []


def test_slices_come_in_the_order_of_their_names(copy: Copy) -> None:
    copy.mirror._replace(listed(20, at(12, "b"), at(11, "c"), at(13, "a")))
    assert copy.versions() == ["13", "12", "11"]
