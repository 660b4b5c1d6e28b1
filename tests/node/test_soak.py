"""Thousands of claims, and hundreds at once, leave the process as it was."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import NODE, MakeBed, NodeBed

GPUS = 8
PODS = 200
ROUNDS = 2000
# Up to 32 connections to the API server are kept, and how many of them calls at once have opened is
# a matter of luck, as is how far pools have grown; the allocator's free lists come and go. A leak
# would be one a claim.
FILES = 40
THREADS = 32
MEGABYTES = 3.0


@dataclass(frozen=True)
class Size:
    """What a process holds of the machine."""

    megabytes: float
    threads: int
    files: int


def size_of(pid: int) -> Size:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return Size(
        megabytes=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
    )


def share(bed: NodeBed, number: int) -> ClaimRef:
    """Make a claim that has a share of a GPU, so that many can be prepared at once."""
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": f"gpu-{number % GPUS}",
        "shareID": str(uuid4()),
    }
    claim = bed.api.objects.create(
        "resourceclaims",
        {
            "metadata": {"namespace": "default", "generateName": "share-"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [result], "config": []}}},
        },
    )
    return ClaimRef("default", claim["metadata"]["name"], claim["metadata"]["uid"])


def pods_at_once(bed: NodeBed) -> None:
    claims = [share(bed, number) for number in range(PODS)]
    with ThreadPoolExecutor(PODS) as kubelet:
        list(kubelet.map(lambda ref: bed.kubelet.prepare(DRIVER, [ref]), claims))
        assert len(bed.claim_files()) == 2 * PODS
        list(kubelet.map(lambda ref: bed.kubelet.unprepare(DRIVER, [ref]), claims))
    assert bed.claim_files() == set()
    for claim in claims:
        bed.api.objects.delete("resourceclaims", claim.name, "default")


def pods_in_a_row(bed: NodeBed, count: int) -> None:
    for number in range(count):
        claim = share(bed, number)
        bed.kubelet.prepare(DRIVER, [claim])
        bed.kubelet.unprepare(DRIVER, [claim])
        bed.api.objects.delete("resourceclaims", claim.name, "default")


@pytest.mark.timeout(600)
def test_memory_threads_and_files_stay_flat(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=GPUS)
    bed.kubelet.start()
    plugin = bed.serve()
    bed.api.faults.hang("get", "resourceclaims", seconds=0.5, times=PODS)  # all threads are at work
    for _ in range(3):
        pods_at_once(bed)
    pods_in_a_row(bed, 300)
    warm = size_of(plugin.pid)
    pods_at_once(bed)
    pods_in_a_row(bed, ROUNDS)
    pods_in_a_row(bed, 300)
    end = size_of(plugin.pid)
    print(f"warm {warm}, after {ROUNDS} claims in a row and {PODS} at once {end}")
    assert end.threads <= warm.threads + THREADS
    assert end.files <= warm.files + FILES
    assert end.megabytes <= warm.megabytes + MEGABYTES
