"""`dra-driver demo` as a program: it ends by itself, tells what it shows, and leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_driver.cli import bed as beds
from dra_driver.cli.demo import demo
from dra_driver.host import Child

PROGRAM = Path(sys.executable).with_name("dra-driver")
LIMIT = 300.0  # seconds; the demo promises 30


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Give a short folder that the demo takes for its temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="d"))
    yield folder
    shutil.rmtree(folder)


def _start(scratch: Path) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(scratch)}
    return subprocess.Popen(
        [str(PROGRAM), "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _processes(scratch: Path) -> list[str]:
    """Return the command lines of processes that work in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(scratch) in words:
            found.append(words)
    return found


def _read_until(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    _, errors = process.communicate()
    raise AssertionError(f"it ended before {words!r}:\n{text}\n{errors}")


def test_it_shows_the_whole_way_and_ends_well(scratch: Path) -> None:
    begin = time.monotonic()
    process = _start(scratch)
    out, err = process.communicate(timeout=LIMIT)
    print(f"the demo took {time.monotonic() - begin:.1f} s")
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    for number in range(1, 7):
        assert f"[{number}/6] " in out
    assert "publishes 17 devices" in out
    assert out.count("  gpu-6  [- 1g][- 1g][- 1g][- 1g][- 1g][- 1g][- 1g]") == 1
    assert "  gpu-6  [B 1g][- 1g][- 1g][- 1g][- 1g][- 1g][- 1g]" in out
    assert "  gpu-0  [A NVIDIA H100 80GB HBM3                       ]  taken" in out
    assert "  gpu-1  [C NVIDIA H100 80GB HBM3                       ]  taken" in out
    assert "pending     request gpu wants 1 device, 0 found" in out
    assert '"path": "/dev/nvidia-caps/nvidia-cap' in out
    assert "no file is left" in out
    assert out.rstrip().endswith("nothing is left behind.")
    assert list(scratch.iterdir()) == []
    assert _processes(scratch) == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "dra-driver demo"),
        (signal.SIGINT, "[2/6]"),
        (signal.SIGINT, "[3/6]"),
        (signal.SIGTERM, "[2/6]"),
        (signal.SIGHUP, "[2/6]"),
    ],
)
def test_a_signal_ends_it_in_order(scratch: Path, number: signal.Signals, moment: str) -> None:
    process = _start(scratch)
    _read_until(process, moment)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number, out + err
    assert err == "interrupted: all processes have ended, all files are removed\n"
    assert list(scratch.iterdir()) == []
    assert _processes(scratch) == []


def test_a_killed_demo_takes_the_plugin_with_it(scratch: Path) -> None:
    process = _start(scratch)
    _read_until(process, "[3/6]")
    process.kill()
    process.communicate()
    deadline = time.monotonic() + LIMIT
    while _processes(scratch):
        assert time.monotonic() < deadline, _processes(scratch)
        time.sleep(0.05)


def test_a_plugin_that_fails_is_quoted(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(bed: beds.Bed) -> int:
        script = "echo first; echo 'the node is on fire' >&2; exit 3"
        bed.plugin = Child(["sh", "-c", script], bed.folder / "plugin.log", dict(os.environ))
        return bed.plugin.pid

    monkeypatch.setattr(beds.Bed, "start_plugin", start)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    result = CliRunner().invoke(demo)
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the plugin was asked to register with the kubelet, but it ended with status 3\n"
        "The plugin's last words:\nfirst\nthe node is on fire\n"
    )
    assert list(scratch.iterdir()) == []


def test_a_plugin_that_does_nothing_is_not_waited_for(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(bed: beds.Bed) -> int:
        bed.plugin = Child(["sleep", "600"], bed.folder / "plugin.log", dict(os.environ))
        bed._ends.callback(bed.plugin.stop, 60.0)
        return bed.plugin.pid

    monkeypatch.setattr(beds.Bed, "start_plugin", start)
    monkeypatch.setattr(beds, "PATIENCE", 0.3)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    result = CliRunner().invoke(demo)
    assert result.exit_code == 1
    assert "was asked to register with the kubelet, but did not in 0.3 s" in result.stderr
    assert list(scratch.iterdir()) == []
    assert _processes(scratch) == []
