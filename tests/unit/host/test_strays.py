"""Processes that nobody is the parent of: found by name and variable, and only those ended."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.host import end_strays, strays

NAME, VARIABLE = "sleep", "STRAY_FOLDER"


def start(**environment: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/bin/sleep", "600"], env=environment)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    found = [
        start(STRAY_FOLDER=str(tmp_path / "a")),
        start(STRAY_FOLDER=str(tmp_path / "a/b")),
        start(STRAY_FOLDER=str(tmp_path / "ab")),
        start(OTHER=str(tmp_path / "a")),
        start(),
    ]
    yield found
    for process in found:
        process.kill()
        process.wait()


def test_only_those_of_the_folder_are_ended(
    processes: list["subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    wanted = {process.pid for process in processes[:2]}

    def found() -> set[int]:
        return {process.pid for process in strays(NAME, VARIABLE, tmp_path / "a")}

    while found() != wanted:  # until all have become the program
        assert all(process.poll() is None for process in processes)
    assert {each.pid for each in strays("other", VARIABLE, tmp_path)} == set()
    ended = end_strays(NAME, VARIABLE, tmp_path / "a", 10)
    assert {process.pid for process in ended} == wanted
    assert [process.poll() is None for process in processes] == [False, False, True, True, True]
    assert end_strays(NAME, VARIABLE, tmp_path / "a", 10) == []
