"""`dra-driver bench` against the real plugin, and the costs that the driver promises."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.bench.figures import Result, read_result
from tests.support.plugin_process import NODE, MakeBed

PROGRAM = Path(sys.executable).with_name("dra-driver")
LIMIT = 300.0  # seconds; a quick run takes ten


def _bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(PROGRAM), "bench", "--quick", f"--save={folder / 'result.json'}", *arguments],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Give the result of one quick run."""
    folder = tmp_path_factory.mktemp("bench")
    done = _bench(folder, "--embedded", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "result.json").read_text())
    return read_result(folder / "result.json")


def test_every_call_is_measured_alone_and_16_at_once(embedded: Result) -> None:
    for name in ("prepare", "prepare again", "unprepare"):
        for live in (0, 20):
            for at_once in (1, 16):
                figure = embedded.figure(name, live, at_once)
                assert figure.count == 16
                assert figure.p90 is not None
                assert figure.p99 is not None
                assert 0 < figure.p50 <= figure.p90 <= figure.p99
    assert embedded.figure("start to complete slices").p50 > 0
    assert embedded.figure("floor: read and two writes", 0, 1).count == 16
    assert embedded.figure("memory", 20).p50 > 10
    assert embedded.about["claimsAtOnce"] == "8 with a whole device, 8 with admin access"


@pytest.mark.parametrize("live", [0, 20])
def test_a_claim_costs_one_read_and_no_call_of_nvml(embedded: Result, live: int) -> None:
    def cost(what: str, call: str) -> float:
        return embedded.figure(f"{what} per {call}", live).p50

    assert cost("API requests", "prepare") == 1
    assert cost("API requests", "prepare again") == 1
    assert cost("API requests", "unprepare") == 0
    for call in ("prepare", "prepare again", "unprepare"):
        assert cost("API writes", call) == 0
        assert cost("NVML calls", call) == 0
        assert cost("fsyncs", call) <= 4
    assert cost("fsyncs", "prepare") >= 2  # a record that is durable before and after the change
    assert cost("fsyncs", "prepare again") == 0


def test_nothing_is_written_to_the_api_server_when_idle(embedded: Result) -> None:
    assert embedded.figure("API writes when idle", 20).p50 == 0
    # Once a minute the driver asks for its Node, to see who else gives out GPUs.
    assert embedded.figure("API requests when idle", 20).p50 <= 1


def test_any_driver_can_be_measured_by_its_socket(make_bed: MakeBed, tmp_path: Path) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    process = bed.serve()
    (socket,) = bed.data_folder.glob("dra*.sock")
    done = _bench(
        tmp_path,
        f"--socket={socket}",
        f"--kubeconfig={bed.folder / 'kubeconfig'}",
        f"--node={NODE}",
        f"--records-disk={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert "2 devices" in done.stdout
    result = read_result(tmp_path / "result.json")
    assert result.about["claimsAtOnce"] == "2 with a whole device, 14 with admin access"
    assert result.figure("prepare", 20, 1).count == 16
    assert result.figure("memory", 20).p50 > 10  # of the process behind the socket
    assert process.running
    left: list[Any] = bed.api.objects.select("resourceclaims")
    assert left == []
    assert bed.api.objects.select("namespaces") == []
    assert bed.claim_files() == set()


def test_a_driver_that_publishes_nothing_is_named(make_bed: MakeBed, tmp_path: Path) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    done = _bench(
        tmp_path,
        "--socket=/none.sock",
        f"--kubeconfig={bed.folder / 'kubeconfig'}",
        "--node=another",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the API server has no device of driver gpu.nvidia.com")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Give a folder whose name is short enough for sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="b"))
    yield folder
    shutil.rmtree(folder)


def test_a_signal_ends_it_and_nothing_is_left(scratch: Path) -> None:
    process = subprocess.Popen(
        [str(PROGRAM), "bench", "--embedded", "--live=0,30"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(scratch.glob("dra-bench-*/cdi/*claim_*")):  # in the midst of its calls
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert err == "interrupted: the claims are taken back, all processes have ended\n"
    assert list(scratch.iterdir()) == []
