"""What the pages show of `dra-driver` and the simulated node's programs, typed as it stands there.

A page is typed from top to bottom by one person, on a node of its own. What a page shows of an
answer is compared with what comes: `…` stands for anything, and spaces are not counted.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from tests.docs.blocks import Command, blocks, commands
from tests.docs.ways import Way, way_of
from tests.support.mps import PATIENCE, MpsBed
from tests.support.node import SimulatedNode

PROGRAMS = Path(sys.executable).parent
TYPED = {
    page: list(found)
    for page, found in groupby(
        (each for each in commands() if way_of(each) is Way.NODE), key=lambda each: each.page
    )
}
SET_FOLDER = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps/sets/<id>"
MIG_FILE = "/etc/mig/config.yaml"
CONFIGURATION = ("docs/configuration.md", "yaml")
GPUS = {"docs/configuration.md": 2}  # of the node that the page shows; else three


class Person:
    """Someone who types what a page says, on a node with H100."""

    def __init__(self, node: SimulatedNode, folder: Path, mps: MpsBed) -> None:
        self.node, self.folder, self.mps = node, folder, mps
        self.places = {"ROOT": str(node.root), "/tmp/node": str(folder / "node")}
        self._env = {
            "PATH": f"{PROGRAMS}:{node.root / 'usr/bin'}:{os.environ['PATH']}",
            "NVIDIA_DRIVER_ROOT": str(node.root),
            "HOST_ROOT": str(node.root),
        }

    def types(self, command: Command) -> None:
        """Run a command: its answer and its end must be as the page says."""
        shown = [self.placed(line) for line in command.output]
        if command.words.endswith(" hold"):
            told = self._begins(command, len(shown))
        else:
            status, told = self._runs(command)
            fails = bool(shown) and shown[0].startswith("Error: ")
            assert (status != 0) == fails, f"{command}\n{told}"
        if shown:
            assert len(told) == len(shown), f"{command}\n{told}"
        for wanted, line in zip(shown, told, strict=False):
            assert re.fullmatch(pattern(wanted), line), f"{command}\n{line}"

    def placed(self, text: str) -> str:
        """Put the names of this test's places in."""
        names = "|".join(re.escape(name) for name in self.places)
        return re.sub(names, lambda match: self.places[match[0]], text)

    def _runs(self, command: Command) -> tuple[int, list[str]]:
        with self._bash(f"set -eu -o pipefail\n{self.placed(command.words)}") as process:
            told, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, told.splitlines()

    def _begins(self, command: Command, lines: int) -> list[str]:
        """Give what it says at first, then end it as Ctrl-C does."""
        with self._bash(f"exec {self.placed(command.words)}") as process:
            try:
                assert process.stdout is not None
                return [process.stdout.readline().rstrip("\n") for _ in range(lines)]
            finally:
                process.send_signal(signal.SIGINT)

    def _bash(self, script: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def pattern(line: str) -> str:
    """Say as a regular expression what a line of a page is the shape of."""
    words = " ".join(line.split())
    numbers = re.sub(r'("(?:pid|uid)": )\d+', r"\1…", words)
    return re.escape(numbers).replace("…", ".*").replace(r"\ ", r"\s*")


def has_configurations(person: Person) -> None:
    """Have the page's own file, and the same with a mistake in the line that is named."""
    block = next(each for each in blocks() if (each.page, each.language) == CONFIGURATION)
    (person.folder / "node.yaml").write_text(block.text)
    (person.folder / "wrong.yaml").write_text(block.text.replace("mode: Dynamic", "mode: dynamic"))


def has_a_layout(person: Person) -> None:
    """Have a file of layouts whose MIG modes the node has."""
    layout = "[{devices: all, mig-enabled: false}]"
    path = person.folder / "mig-parted.yaml"
    path.write_text(f"version: v1\nmig-configs: {{all-balanced: {layout}}}\n")
    person.places[MIG_FILE] = str(path)


def has_a_daemon(person: Person) -> None:
    """Have a control daemon of MPS where the page looks for one."""
    person.places[SET_FOLDER] = str(person.mps.daemon(person.node).start().pipe.parent)


SET_UP: dict[str, Callable[[Person], None]] = {
    "docs/configuration.md": has_configurations,
    "docs/layouts.md": has_a_layout,
    "docs/mps.md": has_a_daemon,
}


@pytest.mark.parametrize("page", TYPED)
def test_a_page_can_be_typed(page: str, mps: MpsBed) -> None:
    with tempfile.TemporaryDirectory() as folder:
        person = Person(mps.node(gpus=GPUS.get(page, 3)), Path(folder), mps)
        if page in SET_UP:
            SET_UP[page](person)
        for command in TYPED[page]:
            person.types(command)
