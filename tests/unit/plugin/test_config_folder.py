"""A folder of configurations, as a ConfigMap is mounted, and the label that names one."""

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.config import CONFIG_LABEL, Settings
from dra_driver.plugin import config_file, config_source
from dra_driver.plugin.config_file import ConfigFile
from dra_driver.telemetry import EventQueue, Metrics
from tests.support.config_map import HEAD, ConfigMap
from tests.support.kubelet import eventually


def text(seconds: int) -> str:
    return f"{HEAD}inventory: {{interval: {seconds}s}}\n"


class Node:
    """A node with such a folder; the label is known as soon as the test has set it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.map = ConfigMap(folder / "map", default_yaml=text(10), a=text(20), bad="kind: x\n")
        self.labels: dict[str, str] | None = None
        self.files: list[ConfigFile] = []

    def start(self, default: str = "") -> None:
        settings = Settings(
            node_name="n",
            config_file=self.map.folder,
            default_config=default,
            plugins_folder=self.folder / "plugins",
        )
        self.told: queue.Queue[float] = queue.Queue()
        self.events = EventQueue()
        self.metrics = Metrics()
        self.file = ConfigFile(
            settings,
            self.metrics,
            self.events,
            lambda config: self.told.put(config.inventory.seconds),
            lambda: self.labels,
        )
        self.files.append(self.file)

    def label(self, name: str | None) -> None:
        self.labels = {} if name is None else {CONFIG_LABEL: name}
        self.file.follow_labels()

    @property
    def seconds(self) -> float:
        return self.file.current().inventory.seconds

    def has(self, series: str) -> bool:
        return f"gpu_dra_driver_config_{series}".encode() in self.metrics.exposition()

    def said(self) -> tuple[str, str]:
        event = self.events.take(60)
        assert event is not None
        return event.reason, event.message


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(config_file, "_LOOK_SECONDS", 0.02)
    made = Node(tmp_path)
    made.start()
    yield made
    for file in made.files:
        file.stop()


def test_the_label_names_the_entry(node: Node) -> None:
    node.label("a")
    assert (node.seconds, node.file.problem()) == (20, "")
    assert node.has('chosen{by="label",entry="a"} 1.0')
    why = "entry 'a' is in force: the Node's label nvidia.com/dra.config names it"
    assert node.said() == ("ConfigurationChosen", why)
    node.label("default.yaml")
    assert node.seconds == 10
    node.label(None)
    assert node.has('chosen{by="named",entry="default"} 1.0')
    assert not node.has('chosen{by="label"'), "one is in force at a time"


def test_a_wrong_label_keeps_what_holds_and_is_told_with_all_names(node: Node) -> None:
    node.label("a")
    node.said()
    node.label("../map/default")
    assert node.seconds == 20
    problem = (
        f"{node.map.folder}: label nvidia.com/dra.config names '../map/default', which does not "
        "exist; entries: a, bad, default; entry 'a' is in force"
    )
    assert node.file.problem() == problem
    assert node.said() == ("ConfigurationInvalid", problem)
    assert node.has("valid 0.0")
    node.label("bad")
    assert node.seconds == 20
    assert node.file.problem().startswith(f"{node.map.folder}/bad: line 1: ")
    node.label("a")
    assert (node.seconds, node.file.problem()) == (20, "")
    assert node.has("valid 1.0")


def test_content_and_entries_are_followed(node: Node) -> None:
    node.file.start()
    node.label("a")
    assert node.told.get(timeout=60) == 20
    node.map.write(a=text(30), b=text(40))
    assert node.told.get(timeout=60) == 30
    node.label("b")
    assert node.told.get(timeout=60) == 40
    node.map.write(a=text(30))
    eventually(lambda: "'b', which does not exist; entries: a;" in node.file.problem(), "b is gone")
    node.map.write()
    eventually(lambda: "there are no entries" in node.file.problem(), "all are gone")
    node.map.write(b_yaml=text(50))
    assert node.told.get(timeout=60) == 50
    node.label(None)
    assert node.has('chosen{by="single",entry="b"} 1.0')
    node.map.write()
    eventually(lambda: node.has('chosen{by="empty",entry=""} 1.0'), "nothing is for this Node")
    assert node.file.problem() == ""


def test_a_folder_that_goes_away_keeps_what_holds(node: Node) -> None:
    node.file.start()
    node.label("a")
    node.map.folder.rename(node.folder / "away")
    eventually(node.file.problem, "the folder is gone")
    assert "the folder cannot be listed: No such file or directory" in node.file.problem()
    assert node.seconds == 20
    (node.folder / "away").rename(node.map.folder)
    eventually(lambda: not node.file.problem(), "it is back")


def test_entries_that_can_not_be_read_spoil_no_other(node: Node) -> None:
    (node.map.folder / "gone").symlink_to("..data/gone")
    os.mkfifo(node.map.folder / "pipe")
    (node.map.folder / "folder").mkdir()
    (node.map.folder / "a.yaml").write_text(text(99))
    node.label("default")
    assert node.seconds == 10
    for name, words in (
        ("gone", "gone: there is no such file"),
        ("pipe", "pipe: there is no such file"),
        ("folder", "names 'folder', which does not exist; entries: a, bad, default, gone, pipe"),
        ("a", "entry 'a' is there twice: a, a.yaml"),
    ):
        node.label(name)
        assert words in node.file.problem()
        assert node.seconds == 10


def test_a_swap_in_the_middle_of_a_look_does_not_count(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is listed, then its data are moved, then the entry is read: it is gone."""
    node.label("a")
    read = config_source._content
    moved: list[bool] = []

    def content(path: Path) -> bytes | str:
        if not moved:
            moved.append(True)
            node.map.write(b=text(1))
            found = read(path)
            assert found == "there is no such file"
            node.map.write(a=text(60))
            return found
        return read(path)

    monkeypatch.setattr(config_source, "_content", content)
    node.file.start()
    eventually(lambda: node.seconds == 60, "the new content counts")
    assert [node.said()[0], node.events.take(0)] == ["ConfigurationChosen", None]


def test_until_the_label_is_known_the_last_run_counts(node: Node) -> None:
    assert node.seconds == 10, "as without label"
    assert node.file.unknown().endswith("; entry 'default' is in force")
    assert node.has("valid 0.0")
    node.label("a")
    node.start()
    node.map.write(default=text(10), a="broken")
    node.labels = None
    node.file.follow_labels()
    assert node.seconds == 20
    assert node.file.problem().endswith("could not be read yet; entry 'a' is in force")
    node.label("a")
    assert node.seconds == 20, "what was good before the restart"
    assert node.file.problem().endswith("allowed: a mapping; entry 'a' is in force")


def test_the_defaults_hold_when_nothing_else_can(node: Node) -> None:
    node.map.write(default="broken")
    node.start()
    assert node.file.unknown().endswith("the defaults of the driver are in force")
    (node.folder / "plugins" / "gpu.nvidia.com").mkdir(parents=True)
    (node.folder / "plugins/gpu.nvidia.com/node-config.json").write_text('{"schema": 1}')
    node.start(default="missing")
    node.label(None)
    assert "--default-config names 'missing'" in node.file.problem()
    assert node.seconds == 30
    node.label("default")
    assert node.file.problem().endswith("; the defaults of the driver are in force")


def test_an_entry_that_can_not_be_kept_is_followed_all_the_same(node: Node) -> None:
    (node.folder / "plugins").write_text("")
    node.start()
    node.label("a")
    assert (node.seconds, node.file.problem()) == (20, "")
