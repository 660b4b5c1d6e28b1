"""Labels of the Node: asked for only while they are needed, and never taken from an old answer."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.kube import NodeLabels
from dra_driver.kube import node_labels as module
from dra_driver.model.errors import ApiUnavailable
from tests.support.kubelet import eventually


class Api:
    """The API server's word, or why there is none; a request may be held up."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {"pool": "a"}
        self.error: Exception | None = None
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def node_labels(self) -> dict[str, str]:
        self.asked += 1
        found = dict(self.labels)
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return found

    def label_node(self, key: str, value: str) -> None:
        self.labels = {**self.labels, key: value}


class Bed:
    def __init__(self) -> None:
        self.api = Api()
        self.needed = True
        self.news = 0
        self.fails = False
        api: Any = self.api
        self.labels = NodeLabels(api, lambda: self.needed, self._on_change)

    def _on_change(self) -> None:
        self.news += 1
        if self.fails:
            raise RuntimeError("a mistake of ours")

    def ask(self) -> None:
        """Let it ask again, and wait for that."""
        before = self.api.asked
        self.labels.poke()
        eventually(lambda: self.api.asked > before, "it asks")


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(module, "_FIRST_SECONDS", 0.01)
    made = Bed()
    yield made
    made.api.gate.set()
    made.labels.stop()


def test_the_first_answer_is_waited_for(bed: Bed) -> None:
    bed.labels.start()
    assert bed.labels.current() == {"pool": "a"}
    assert bed.labels.are_known
    eventually(lambda: bed.news == 1, "it is told")
    bed.ask()
    bed.api.labels = {"pool": "b"}
    bed.ask()
    eventually(lambda: bed.labels.current() == {"pool": "b"}, "the change is seen")
    eventually(lambda: bed.news == 2, "and told")


def test_nobody_waits_longer_than_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    bed.api.error = ApiUnavailable("away")
    bed.labels.start()
    assert bed.labels.current() == {}
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 1000.0)
    assert bed.labels.current() == {}
    assert not bed.labels.are_known
    bed.api.error = None
    eventually(lambda: bed.labels.are_known, "it goes on asking")
    assert bed.labels.current() == {"pool": "a"}


def test_without_need_nothing_is_asked(bed: Bed) -> None:
    bed.needed = False
    bed.labels.start()
    assert bed.labels.current() == {}
    assert bed.labels.are_known
    bed.labels.poke()
    bed.needed = True
    bed.ask()
    eventually(lambda: bed.labels.are_known, "it is asked once it is needed")


def test_what_was_read_before_nobody_needed_them_does_not_count(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    bed.labels.start()
    assert bed.labels.current() == {"pool": "a"}
    bed.needed = False
    bed.labels.poke()
    eventually(lambda: not bed.labels._known.is_set(), "they are forgotten")
    bed.api.error = ApiUnavailable("away")
    bed.needed = True
    assert bed.labels.current() == {}
    assert not bed.labels.are_known
    bed.api.error, bed.api.labels = None, {"pool": "b"}
    eventually(lambda: bed.labels.current() == {"pool": "b"}, "read anew")
    eventually(lambda: bed.news == 2, "and told")


def test_a_listener_that_fails_does_not_end_it(bed: Bed) -> None:
    bed.fails = True
    bed.labels.start()
    eventually(lambda: bed.news == 1, "it is told")
    bed.fails = False
    bed.api.labels = {"pool": "b"}
    bed.ask()
    eventually(lambda: bed.news == 2, "it goes on")


def test_an_answer_from_before_a_write_does_not_count(bed: Bed) -> None:
    bed.labels.start()
    assert bed.labels.current() == {"pool": "a"}
    bed.api.gate.clear()
    bed.ask()
    bed.labels.write("state", "success")
    bed.api.gate.set()
    bed.ask()
    assert bed.labels.current() == {"pool": "a", "state": "success"}


def test_a_wish_to_stop_that_comes_just_before_it_asks_is_heard(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 3600)
    is_set = bed.labels._stopping.is_set

    def is_set_a_moment_too_early() -> bool:
        found = is_set()
        bed.labels._stopping.set()
        bed.labels._wake.set()
        return found

    monkeypatch.setattr(bed.labels._stopping, "is_set", is_set_a_moment_too_early)
    bed.labels.start()
    eventually(lambda: not bed.labels._thread.is_alive(), "the thread has ended")
