"""The process is killed at any moment while Pods come and go; the kubelet just goes on."""

import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.faults.reports import QUICK, prepare, unprepare
from tests.support.kubelet import eventually
from tests.support.plugin_process import MakeBed, NodeBed

KILLS = 8
PODS = 4
LONGEST_LIFE = 1.0  # seconds after which a process that serves is killed


def test_pods_come_and_go_over_kills_at_random_moments(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=PODS)
    bed.kubelet.start()
    bed.serve(*QUICK)
    claims = [bed.claim(f"claim-{number}", f"gpu-{number}") for number in range(PODS)]
    stop = threading.Event()
    with ThreadPoolExecutor(PODS) as pods:
        turns = [pods.submit(_come_and_go, bed, claim, stop) for claim in claims]
        try:
            for _ in range(KILLS):
                time.sleep(random.uniform(0, LONGEST_LIFE))  # noqa: S311 - any moment will do
                process = bed.processes[-1]
                process.kill()
                assert process.wait() == -signal.SIGKILL
                bed.serve(*QUICK)
        finally:
            stop.set()
        counts = [turn.result(120) for turn in turns]
    print(f"Pods that came and went: {counts}")
    assert all(counts)
    for claim in claims:
        unprepare(bed, claim)
    assert bed.claim_files() == set()
    left = [path.name for path in bed.data_folder.rglob("*") if path.is_file()]
    assert [name for name in left if not name.endswith(".lock")] == []
    assert [path.name for path in bed.cdi_folder.iterdir()] == []


def _come_and_go(bed: NodeBed, claim: ClaimRef, stop: threading.Event) -> int:
    """Prepare and unprepare until told to stop; whatever a kill interrupts is done again."""
    turns = 0
    while not stop.is_set():
        for work in (prepare, unprepare):
            eventually(partial(_is_done, work, bed, claim), "the kubelet gets through")
        turns += 1
    return turns


def _is_done(work: Callable[[NodeBed, ClaimRef], object], bed: NodeBed, claim: ClaimRef) -> bool:
    """Whether the call went through; it may fail only for want of a process that answers."""
    try:
        work(bed, claim)
    except CallFailed as error:
        lost = ("UNAVAILABLE", "CANCELLED", "not registered")
        assert any(word in str(error) for word in lost), str(error)
        return False
    return True
