"""Processes that make and remove partitions: killed anywhere, and several at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.host import RangeLock
from dra_driver.model.errors import HardwareBusy
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.state import ClaimRecord
from tests.support.mig import MakeMigBed, MigBed
from tests.support.node import MakeNode

MODELS = pytest.mark.parametrize(("model", "on"), [("a100-40gb", True), ("h100-80gb", False)])
ROUNDS = 20
MAKING = ("mig-mode", "gpu-instance", "compute-instance")
REMOVING = ("remove-compute-instance", "remove-gpu-instance", "mig-mode")


def bed_of(make_node: MakeNode, mig_bed: MakeMigBed, model: str, *, on: bool) -> MigBed:
    spec = NodeSpec.model_validate({"gpus": [{"model": model, "migMode": on}]})
    return mig_bed(make_node(spec=spec))


def start(
    bed: MigBed, folder: Path, work: str, record: ClaimRecord, failpoint: str = ""
) -> subprocess.Popen[str]:
    """Begin work on a record in another process, to be killed at the failpoint."""
    file = folder / f"{record.uid}.json"
    file.write_text(record.model_dump_json())
    data = folder / "plugins/gpu.nvidia.com"
    command = [sys.executable, "-m", "tests.support.mig_process"]
    more = {"DRA_DRIVER_FAILPOINT": failpoint} if failpoint else {}
    return subprocess.Popen(
        [*command, str(bed.node.root), str(data), work, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | more,
        cwd=Path(__file__).parents[2],
    )


def finished(process: subprocess.Popen[str]) -> list[ClaimRecord]:
    """Wait for its end; gives what it made."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [ClaimRecord.model_validate_json(line) for line in out.splitlines()]


def killed(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"it did not come by: {err}"


@MODELS
def test_killed_while_making(
    make_node: MakeNode, mig_bed: MakeMigBed, tmp_path: Path, model: str, *, on: bool
) -> None:
    bed = bed_of(make_node, mig_bed, model, on=on)
    bed.watch.discovery.stop()  # who holds the GPU open keeps others from switching the mode
    record = bed.record((bed.gpu().slots[0].profile.name, 4))
    for part in MAKING[on:]:
        for when in ("before", "after"):
            for then in ("undo", "apply+undo"):
                killed(start(bed, tmp_path, "apply", record, f"prepare:mig/{when}-{part}"))
                is_begun = part == "compute-instance" or (when, part) == ("after", "gpu-instance")
                assert len(bed.standing()) == is_begun
                finished(start(bed, tmp_path, then, record))
                assert (bed.standing(), bed.mode()) == ([], (on, on))


@MODELS
def test_killed_while_removing(
    make_node: MakeNode, mig_bed: MakeMigBed, tmp_path: Path, model: str, *, on: bool
) -> None:
    bed = bed_of(make_node, mig_bed, model, on=on)
    bed.watch.discovery.stop()
    record = bed.record((bed.gpu().slots[0].profile.name, 4))
    for part in REMOVING[: 2 if on else 3]:
        for when in ("before", "after"):
            killed(start(bed, tmp_path, "apply+undo", record, f"unprepare:mig/{when}-{part}"))
            is_gone = part == "mig-mode" or (when, part) == ("after", "remove-gpu-instance")
            assert len(bed.standing()) == (not is_gone)
            finished(start(bed, tmp_path, "undo", record))
            assert (bed.standing(), bed.mode()) == ([], (on, on))


def test_processes_at_once_on_one_gpu(
    make_node: MakeNode, mig_bed: MakeMigBed, tmp_path: Path
) -> None:
    bed = bed_of(make_node, mig_bed, "h100-80gb", on=True)
    foreign = bed.node.state.partition(0, "1g.10gb", 6)
    records = [
        bed.record(("1g.10gb", at)).model_copy(update={"uid": f"uid-{at}"}) for at in range(4)
    ]
    work = "+".join(["apply", "undo"] * ROUNDS)
    running = [start(bed, tmp_path, work, record) for record in records]
    made = [finished(process) for process in running]
    assert [len(each) for each in made] == [ROUNDS] * len(records)
    uuids = {record.devices[0].uuid for each in made for record in each}
    assert len(uuids) == ROUNDS * len(records), "each time another partition"
    assert [gi["id"] for gi in bed.node.gpu(0)["instances"]] == [foreign]


def test_a_halted_process_keeps_its_gpu_until_it_dies(
    make_node: MakeNode, mig_bed: MakeMigBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.nvml.jobs._LOCK_SECONDS", 0.2)
    bed = bed_of(make_node, mig_bed, "h100-80gb", on=True)
    record = bed.record(("1g.10gb", 0))
    halted = start(bed, tmp_path, "apply", record, "prepare:mig/after-gpu-instance=stop")
    try:
        os.waitpid(halted.pid, os.WUNTRACED)
        for work in (bed.effect.apply, bed.effect.undo):
            with pytest.raises(HardwareBusy, match=r"has held gpus\.lock"):
                work(record)
    finally:
        halted.kill()
        halted.communicate()
    bed.effect.undo(bed.effect.apply(record))
    assert (bed.standing(), bed.mode()) == ([], (False, False))


def test_work_on_other_gpus_does_not_wait_for_a_lock(
    make_node: MakeNode, mig_bed: MakeMigBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.nvml.jobs._LOCK_SECONDS", 0.2)
    bed = mig_bed(make_node(gpus=2))
    lock = tmp_path / "plugins" / "gpu.nvidia.com" / "gpus.lock"
    with RangeLock(lock, bed.gpu(0).uuid, 1.0):
        with pytest.raises(HardwareBusy, match=r"has held gpus\.lock"):
            bed.effect.apply(bed.record(("1g.10gb", 0)))
        bed.effect.undo(bed.effect.apply(bed.record(("1g.10gb", 0), position=1)))
    bed.effect.undo(bed.effect.apply(bed.record(("1g.10gb", 0))))
    assert (bed.standing(), bed.mode()) == ([], (False, False))
