"""`dra-driver bench --sharing`: what time-slices, shares and MPS cost with the real plugin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.cli.bench.figures import Result, read_result
from dra_driver.cli.bench.rounds import BEYOND, DAEMON

PROGRAM = Path(sys.executable).with_name("dra-driver")
LIMIT = 300.0  # seconds; a quick run takes ten
CALLS = ("prepare", "prepare again", "unprepare")


def bench(folder: Path, sharing: str, live: str) -> Result:
    saved = folder / "result.json"
    done = subprocess.run(
        [
            *(str(PROGRAM), "bench", "--embedded", "--quick", "--gpus=2"),
            *(f"--sharing={sharing}", f"--live={live}", f"--save={saved}"),
        ],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return read_result(saved)


def costs(found: Result, what: str, live: int) -> list[float]:
    return [found.figure(f"{what} per {call}", live).p50 for call in CALLS]


def check_writes(found: Result, live: int) -> None:
    """However a device is shared, its claim costs what any claim does."""
    first, again, undo = costs(found, "fsyncs", live)
    assert (2 <= first <= 4, again, undo <= 4) == (True, 0, True)


def check_requests(found: Result, live: int) -> None:
    assert costs(found, "API requests", live) == [1, 1, 0]
    assert costs(found, "API writes", live) == [0, 0, 0]


def test_a_time_slice_costs_one_program(tmp_path: Path) -> None:
    found = bench(tmp_path, "time-slicing", "0")
    assert found.figure("prepare", 0, 1).count == 16
    assert max(costs(found, "programs run", 0)) == 1
    check_writes(found, 0)
    check_requests(found, 0)


def test_a_share_costs_what_a_device_costs(tmp_path: Path) -> None:
    found = bench(tmp_path, "shares", "4")
    assert found.about["claimsAtOnce"] == "16 with a share of a device"
    assert found.figure("prepare", 4, 16).count == 16
    assert costs(found, "programs run", 4) == costs(found, "NVML calls", 4) == [0, 0, 0]
    check_writes(found, 4)
    check_requests(found, 4)


def test_a_limit_of_memory_costs_calls_of_nvml(tmp_path: Path) -> None:
    found = bench(tmp_path, "memory", "0,4")
    assert costs(found, "programs run", 4) == [0, 0, 0]
    few, many = (costs(found, "NVML calls", live) for live in (0, 4))
    assert few == many
    assert 0 < min(few) <= max(few) <= 10
    check_writes(found, 4)
    requests, *_ = costs(found, "API requests", 4)
    assert 1 <= requests <= 2, "a read, and the status that tells the limit, in the background"


def test_mps_is_compared_with_the_start_of_a_daemon(tmp_path: Path) -> None:
    found = bench(tmp_path, "mps", "0,2")
    assert found.figure(DAEMON, 0, 1).p50 > 0
    assert found.figure(BEYOND, 0, 1).count == found.figure("prepare", 0, 1).count == 16
    with pytest.raises(KeyError):
        found.figure(DAEMON, 2, 1)  # there a claim joins a daemon that runs
    for live in (0, 2):
        assert costs(found, "programs run", live) == [0, 0, 0]
        assert max(costs(found, "NVML calls", live)) <= 10
        check_writes(found, live)
        check_requests(found, live)
