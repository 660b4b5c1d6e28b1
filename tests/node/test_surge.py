"""Two instances of the plugin on one node, as in a rolling update with a surge."""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed, PluginConnection
from tests.support.api import wait_for
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed, NodeBed, PluginProcess

# After a restart the kubelet stand-in finds sockets by name, so the first of these is its newest.
UIDS = ("8f3a9d4e-1b2c-4d5e-8f90-a1b2c3d4e5f6", "00000000-1b2c-4d5e-8f90-a1b2c3d4e5f6")
GPUS, CLAIMS = 8, 30
DYNAMIC = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic}
"""
# What a call meets whose instance goes away; the kubelet calls again, and then another instance.
PASSING = ("code = UNAVAILABLE", "code = CANCELLED", "is not registered")


def start(bed: NodeBed, uid: str, *more: str) -> PluginProcess:
    """Start an instance and wait until the kubelet has taken it, too."""
    before = len(bed.kubelet.history)
    process = bed.serve(*more, environment={"POD_UID": uid})
    eventually(lambda: _registered(bed, uid, before), f"{uid} is registered")
    return process


def _registered(bed: NodeBed, uid: str, before: int) -> bool:
    happenings = bed.kubelet.history[before:]
    return any(each.what == "registered" and uid in each.path.name for each in happenings)


def instance(bed: NodeBed, uid: str) -> PluginConnection:
    """Find the kubelet's connection to one instance."""
    (found,) = [
        connection
        for _, connection in bed.kubelet._plugins.values()
        if connection.introduction.endpoint.name == f"dra-{uid}.sock"
    ]
    return found


def busy_for(bed: NodeBed, claim: str) -> bool:
    """Whether the API server has put off a status of that claim."""
    return any(claim in entry.url and entry.status == 429 for entry in bed.api.requests.all())


def is_published_by(bed: NodeBed, pool: str) -> bool:
    return {each["spec"]["pool"]["name"] for each in bed.slices()} == {pool}


class Traffic:
    """Pods that come and go, one at a time on each GPU, until it is told that enough did."""

    def __init__(self, bed: NodeBed) -> None:
        self._bed = bed
        self._enough = threading.Event()
        self._lock = threading.Lock()
        self.done = 0
        self.retried: list[str] = []

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Let claims come and go; leaves when as many as promised have, all of them well."""
        with ThreadPoolExecutor(GPUS) as pods:
            calls = [pods.submit(self._use, f"gpu-{number}") for number in range(GPUS)]
            try:
                yield
                goal = self.done + CLAIMS
                eventually(lambda: self.done >= goal or any(c.done() for c in calls), "claims")
            finally:
                self._enough.set()
                wait(calls, 120)
        for call in calls:
            call.result()
        print(f"{self.done} claims came and went; calls made again: {Counter(self.retried)}")

    def _use(self, gpu: str) -> None:
        for number in range(10_000):
            claim = self._bed.claim(f"{gpu}-{number}", gpu)
            self._until_it_works(partial(self._prepare, claim, gpu))
            self._until_it_works(partial(self._bed.kubelet.unprepare, DRIVER, [claim]))
            with self._lock:
                self.done += 1
            if self._enough.is_set():
                return

    def _prepare(self, claim: ClaimRef, gpu: str) -> None:
        (device,) = self._bed.kubelet.prepare(DRIVER, [claim])[claim.uid]
        assert device.name == gpu

    def _until_it_works(self, call: Callable[[], None]) -> None:
        """Call again as the kubelet does, only sooner."""
        deadline = time.monotonic() + 60
        while True:
            try:
                call()
            except CallFailed as error:
                if not any(word in str(error) for word in PASSING) or time.monotonic() > deadline:
                    raise
                self.retried.append(str(error))
                time.sleep(0.05)
            else:
                return


def test_either_instance_answers_for_the_claims_of_the_other(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    start(bed, UIDS[0])
    start(bed, UIDS[1])
    old, new = (instance(bed, uid) for uid in UIDS)
    one, two = bed.claim("one", "gpu-0"), bed.claim("two", "gpu-1")
    prepared = old.prepare([one], 45)
    assert new.prepare([one], 45) == prepared
    assert new.prepare([two], 45)[two.uid][0].name == "gpu-1"
    rival = bed.claim("rival", "gpu-0")
    with ThreadPoolExecutor(1) as pod:
        refused = pod.submit(new.prepare, [rival], 45)
        eventually(lambda: bed.processes[1].lines("rival", "still held"), "both know the holder")
        old.unprepare([two], 45)
        new.unprepare([one], 45)
        assert refused.result(60)[rival.uid][0].name == "gpu-0"
    old.unprepare([rival], 45)
    new.unprepare([rival], 45)
    assert bed.claim_files() == set()


@pytest.mark.parametrize("called_last", [UIDS[0], UIDS[1]])
def test_an_update_under_load_fails_no_call_for_good(make_bed: MakeBed, called_last: str) -> None:
    """Whichever of the two the kubelet calls: after its own restart that is not the newest."""
    bed = make_bed(gpus=GPUS)
    bed.kubelet.start()
    old = start(bed, UIDS[0])
    published = bed.slices()
    bed.api.requests.clear()
    traffic = Traffic(bed)
    with traffic.flowing():
        start(bed, UIDS[1])
        if called_last == UIDS[0]:
            bed.kubelet._wipe_slices = None  # it would; this shows that nobody else does
            bed.kubelet.restart()
        eventually(
            lambda: (
                bed.kubelet.wait_registered(DRIVER, 60).introduction.endpoint.name
                == f"dra-{called_last}.sock"
            ),
            "the kubelet calls that one",
        )
        assert old.stop() == 0
    assert bed.claim_files() == set()
    assert bed.slices() == published
    assert bed.api.requests.writes() == []
    assert bed.sockets() == {f"dra-{UIDS[1]}.sock", f"{DRIVER}-{UIDS[1]}-reg.sock"}
    for process in bed.processes:
        assert process.lines("ERROR") == []


def test_an_instance_that_is_killed_under_load_fails_no_call_for_good(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=GPUS)
    bed.kubelet.start()
    start(bed, UIDS[1])
    newest = start(bed, UIDS[0])
    published = bed.slices()
    traffic = Traffic(bed)
    with traffic.flowing():
        eventually(lambda: traffic.done > GPUS, "claims come and go")
        newest.kill()
    assert bed.claim_files() == set()
    assert bed.slices() == published
    dead = [bed.data_folder / f"dra-{UIDS[0]}.sock", *bed.registrar_folder.glob(f"*{UIDS[0]}*")]
    assert len(dead) == 2
    assert all(path.is_socket() for path in dead), "SIGKILL leaves them"
    bed.kubelet.restart()
    eventually(lambda: bed.slices() != [], "the survivor publishes again")
    claim = bed.claim("next", "gpu-0")
    bed.kubelet.wait_registered(DRIVER, 60)
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])
    for path in dead:
        os.utime(path, (0, 0), follow_symlinks=False)  # what is young may be on its way to listen
    start(bed, "11111111-1b2c-4d5e-8f90-a1b2c3d4e5f6")
    assert not any(path.exists() for path in dead)
    assert bed.sockets() >= {f"dra-{UIDS[1]}.sock", f"{DRIVER}-{UIDS[1]}-reg.sock"}


def test_the_newest_publishes_and_the_older_takes_over_again(make_bed: MakeBed) -> None:
    """They differ in the pool's name, as two versions may differ in what they publish."""
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    poll = "--poll-interval=100ms"
    old = start(bed, UIDS[0], poll)
    old_port = bed.port
    assert is_published_by(bed, NODE)
    new = start(bed, UIDS[1], poll, "--pool-name=newer")
    wait_for(lambda: is_published_by(bed, "newer"), "the newest has taken over")
    wait_for(lambda: old.lines("a newer instance publishes"), "the older knows")
    bed.api.requests.clear()
    bed.node.add_gpu("h100-80gb")
    wait_for(lambda: "gpu-2" in bed.device_names(), "the marker: both see another GPU")
    bed.kubelet.restart()
    wait_for(lambda: bed.slices() != [], "slices are back")
    assert is_published_by(bed, "newer")
    assert [entry.verb for entry in bed.api.requests.writes()] == ["update", "create"]
    bed.port = old_port
    bed.wait_ready(old)
    new.kill()
    wait_for(lambda: is_published_by(bed, NODE), "the older has taken over again")
    assert bed.device_names() == {"gpu-0", "gpu-1", "gpu-2"}
    wait_for(lambda: "gpu_dra_driver_publisher 1.0" in bed.get("/metrics")[1], "it says so")


def test_a_status_that_waited_does_not_undo_that_of_the_other_instance(
    make_bed: MakeBed, tmp_path: Path
) -> None:
    """The API server was busy when the older instance prepared a claim that others use again."""
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    config = tmp_path / "node.yaml"
    config.write_text(DYNAMIC)
    start(bed, UIDS[0], f"--config={config}")
    keeps_mig_mode = bed.claim("other", "gpu-0-mig-1g10gb-19-6")  # two can't switch it
    bed.kubelet.prepare(DRIVER, [keeps_mig_mode])
    wait_for(lambda: bed.api.requests.count("patch") == 1, "its status is written")
    old_port = bed.port
    start(bed, UIDS[1], f"--config={config}")
    old, new = (instance(bed, uid) for uid in UIDS)
    claim = bed.claim("used-again", "gpu-0-mig-1g10gb-19-0")
    busy = {"Retry-After": "4"}
    bed.api.faults.fail("patch", "/used-again/status", status=429, times=1, headers=busy)
    old.prepare([claim], 45)
    wait_for(lambda: busy_for(bed, "used-again"), "the older one has to wait")
    new.unprepare([claim], 45)
    time.sleep(1)  # times in records are whole seconds
    new.prepare([claim], 45)
    bed.port = old_port
    over = re.compile(r'gpu_dra_driver_claim_status_writes_total.*("gone"} 1|"written"} 2)')
    wait_for(lambda: over.search(bed.get("/metrics")[1]), "the older one has done with it")
    (told,) = bed.api.objects.get("resourceclaims", "used-again")["status"]["devices"]
    (made,) = [each for each in bed.node.gpu(0)["instances"] if each["start"] == 0]
    assert told["data"]["uuid"] == made["computeInstances"][0]["uuid"]
    new.unprepare([claim, keeps_mig_mode], 45)


def test_a_restart_of_a_single_instance_waits_for_nobody(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    start(bed, UIDS[0]).kill()
    bed.api.requests.clear()
    bed.node.add_gpu("h100-80gb")
    began = time.monotonic()
    bed.serve(environment={"POD_UID": UIDS[0]})
    print(f"ready {time.monotonic() - began:.2f} s after the start")
    assert bed.device_names() == {"gpu-0", "gpu-1", "gpu-2"}
    assert len(bed.api.requests.writes()) == 1
