"""The file of the node configuration, followed while the plugin runs."""

import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.config import DEFAULT_CONFIG, NodeConfig, Settings
from dra_driver.model.errors import SettingInvalid
from dra_driver.plugin import config_file, config_source
from dra_driver.plugin.config_file import ConfigFile
from dra_driver.plugin.config_source import read_config
from dra_driver.telemetry import EventQueue, Metrics
from tests.support.kubelet import eventually

HEAD = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"


def settings_of(path: Path | None) -> Settings:
    return Settings(node_name="n", config_file=path)


def text(seconds: int) -> str:
    return f"{HEAD}inventory: {{interval: {seconds}s}}\n"


class Watched:
    """A file and what was told of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: queue.Queue[NodeConfig] = queue.Queue()
        self.metrics = Metrics()
        self.file = ConfigFile(settings_of(path), self.metrics, EventQueue(), self.told.put)
        self.file.start()

    def write(self, content: str) -> None:
        """Give the file another content at once."""
        new = self.path.with_name("new")
        new.write_text(content, encoding="utf-8")
        new.replace(self.path)

    def next_seconds(self) -> float:
        """Interval of the configuration that is told next."""
        return self.told.get(timeout=60).inventory.seconds


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(config_file, "_LOOK_SECONDS", 0.02)
    path = tmp_path / "node.yaml"
    path.write_text(text(10), encoding="utf-8")
    watched = Watched(path)
    yield watched
    watched.file.stop()


def test_a_change_is_told_once(watched: Watched) -> None:
    assert watched.file.current().inventory.seconds == 10
    watched.write(text(20))
    assert watched.next_seconds() == 20
    assert watched.file.current().inventory.seconds == 20
    watched.write(text(20) + "# only words\n")
    watched.path.touch()
    watched.write(text(30))
    assert watched.next_seconds() == 30
    assert watched.told.empty()


def test_a_bad_file_keeps_the_last_good_one(watched: Watched) -> None:
    watched.write(HEAD + "rules:\n- naming: name\n")
    eventually(watched.file.problem, "a bad file is a problem")
    assert watched.file.problem() == (
        f"{watched.path}: line 4: rules[0].naming: 'name' is not allowed; allowed: 'minor', 'uuid'"
    )
    assert watched.file.current().inventory.seconds == 10
    assert b"gpu_dra_driver_config_valid 0.0" in watched.metrics.exposition()
    watched.write(text(10))
    eventually(lambda: not watched.file.problem(), "the problem is over")
    assert b"gpu_dra_driver_config_valid 1.0" in watched.metrics.exposition()
    assert watched.told.empty()  # the same as before


def test_a_missing_file_keeps_the_last_good_one(watched: Watched) -> None:
    watched.path.unlink()
    eventually(watched.file.problem, "a missing file is a problem")
    assert watched.file.problem() == f"{watched.path}: there is no such file"
    assert watched.file.current().inventory.seconds == 10
    watched.write(text(40))
    assert watched.next_seconds() == 40
    assert watched.file.problem() == ""


def test_the_links_of_a_configmap_are_followed(tmp_path: Path, watched: Watched) -> None:
    """`node.yaml` links to `..data/node.yaml`, and `..data` is moved to another folder."""
    for name, seconds in (("..1", 50), ("..2", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.yaml").write_text(text(seconds), encoding="utf-8")
    data = tmp_path / "..data"
    data.symlink_to("..1")
    watched.path.unlink()
    watched.path.symlink_to("..data/node.yaml")
    assert watched.next_seconds() == 50
    os.utime(tmp_path / "..2" / "node.yaml", (0, 0))  # older than what it replaces
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(data)
    assert watched.next_seconds() == 60


def test_what_is_still_being_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what two looks have found counts: a part of a file may be right by itself."""
    contents = [text(10), HEAD, text(20), text(20), "", text(30), text(30)]
    seen = iter([content.encode() for content in contents])
    over = threading.Event()

    def next_content(_: Path) -> bytes:
        content = next(seen, None)
        if content is None:
            over.set()
        return content or text(30).encode()

    monkeypatch.setattr(config_file, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(config_source, "_content", next_content)
    told: list[float] = []
    file = ConfigFile(
        settings_of(tmp_path / "node.yaml"),
        Metrics(),
        EventQueue(),
        lambda config: told.append(config.inventory.seconds),
    )
    file.start()
    assert over.wait(60)
    file.stop()
    assert told == [20, 30]
    assert file.problem() == ""


def test_whoever_is_told_may_fail(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    told = watched.told.put
    failed = threading.Event()

    def fail(_: NodeConfig) -> None:
        failed.set()
        raise RuntimeError("our own mistake")

    monkeypatch.setattr(watched.file, "_on_change", fail)
    watched.write(text(70))
    assert failed.wait(60)
    monkeypatch.setattr(watched.file, "_on_change", told)
    watched.write(text(80))
    assert watched.next_seconds() == 80


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file"),
        (b"", "line 1: apiVersion: is missing"),
        (b"\xff", "is not UTF-8: invalid start byte"),
        (b"#" * ((1 << 20) + 1), "is larger than 1048576 bytes"),
    ],
)
def test_a_start_needs_a_right_file(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "node.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingInvalid) as caught:
        ConfigFile(settings_of(path), Metrics(), EventQueue(), lambda _: None)
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "node.yaml")
    with pytest.raises(SettingInvalid, match="there is no such file"):
        read_config(settings_of(tmp_path / "node.yaml"), {})


def test_a_mark_of_the_byte_order_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("\ufeff" + text(10), encoding="utf-8")
    assert read_config(settings_of(tmp_path / "node.yaml"), {}).inventory.seconds == 10


def test_without_a_file_the_defaults_hold() -> None:
    file = ConfigFile(settings_of(None), Metrics(), EventQueue(), lambda _: None)
    file.start()
    assert (file.current(), file.problem()) == (DEFAULT_CONFIG, "")
    file.stop()
    file.stop()
