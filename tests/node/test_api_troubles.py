"""The whole plugin while the API server is away, busy, in conflict, or says no."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.api import wait_for
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, MakeBed

SLICES, CLAIMS = "resourceslices", "resourceclaims/"
KUBELET_SECONDS = 45.0  # that the kubelet waits for an answer
POLL = "--poll-interval=100ms"


@pytest.mark.parametrize("status", [403, 410, 422, 429, 503])
def test_a_plugin_that_cannot_publish_yet_prepares_all_the_same(
    make_bed: MakeBed, status: int
) -> None:
    bed = make_bed(gpus=2)
    bed.api.faults.fail("", SLICES, status=status)
    bed.kubelet.start()
    process = bed.serve(wait=False)
    bed.kubelet.wait_registered(DRIVER, 60)
    eventually(lambda: f"answered {status}" in bed.get("/readyz")[1], "/readyz says why")
    claim = bed.claim("mine", "gpu-1")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.get("/healthz") == (200, "ok\n")
    assert bed.slices() == []
    bed.api.faults.clear()
    print(f"published after {bed.wait_ready(process):.2f} s")
    (obj,) = bed.slices()
    assert obj["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert bed.device_names() == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize("status", [409, 410, 422, 429, 503])
def test_a_change_is_published_when_the_server_takes_it_again(
    make_bed: MakeBed, status: int
) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    process = bed.serve(POLL)
    bed.api.faults.fail("update", SLICES, status=status, times=3)
    bed.api.requests.clear()
    bed.node.add_gpu("h100-80gb")
    seconds = eventually(lambda: "gpu-2" in bed.device_names(), "the new GPU is published")
    print(f"published after {seconds:.2f} s")
    bed.wait_ready(process)
    assert [entry.status for entry in bed.api.requests.writes()] == [status] * 3 + [200]


def test_a_change_that_the_watch_missed_is_found_by_a_new_list(make_bed: MakeBed) -> None:
    """410: the server no longer knows from where to go on."""
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve()
    lists = bed.api.requests.count("list")
    bed.api.stop()
    bed._wipe_slices()
    bed.api.objects.forget_history()
    bed.api.start()
    wait_for(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "slices are back")
    assert bed.api.requests.count("list") > lists


@pytest.mark.parametrize("status", [409, 410, 429, 503])
def test_a_prepare_outlasts_what_passes(make_bed: MakeBed, status: int) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("mine", "gpu-0")
    bed.api.faults.fail("get", CLAIMS, status=status, times=3)
    (device,) = bed.kubelet.prepare(DRIVER, [claim])[claim.uid]
    assert device.name == "gpu-0"
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "PermissionMissing: .*allow verb 'get' on 'resourceclaims"), (422, "Refused: .*422")],
)
def test_a_prepare_does_not_wait_for_what_does_not_pass(
    make_bed: MakeBed, status: int, words: str
) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("mine", "gpu-0")
    bed.api.faults.fail("get", CLAIMS, status=status)
    with pytest.raises(CallFailed, match=words):
        bed.kubelet.prepare(DRIVER, [claim])
    assert bed.api.requests.count("get", "resourceclaims") == 1
    assert bed.claim_files() == set()
    bed.api.faults.clear()
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])


def test_a_busy_server_is_left_alone_as_long_as_it_asks(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("mine", "gpu-0")
    bed.api.faults.fail("get", CLAIMS, status=429, times=1, headers={"Retry-After": "2"})
    began = time.monotonic()
    bed.kubelet.prepare(DRIVER, [claim])
    assert time.monotonic() - began > 1.9
    assert bed.api.requests.count("get", "resourceclaims") == 2


def test_a_server_that_is_away_for_longer_than_a_call_lasts(make_bed: MakeBed) -> None:
    """What was prepared goes on, what is new hears in time why not, and it all ends well."""
    bed = make_bed(gpus=3)
    bed.kubelet.start()
    process = bed.serve(POLL)
    kept, ended, new = (bed.claim(f"claim-{n}", f"gpu-{n}") for n in range(3))
    prepared = bed.kubelet.prepare(DRIVER, [kept])
    bed.kubelet.prepare(DRIVER, [ended])
    bed.api.stop()
    bed.kubelet.restart()  # wipes the slices
    bed.kubelet.wait_registered(DRIVER, 60)
    with ThreadPoolExecutor(1) as pod:
        began = time.monotonic()
        call = pod.submit(bed.kubelet.prepare, DRIVER, [new])
        assert bed.kubelet.prepare(DRIVER, [kept]) == prepared
        bed.kubelet.unprepare(DRIVER, [ended])
        bed.node.add_gpu("h100-80gb")
        seconds = time.monotonic() - began
        with pytest.raises(CallFailed, match=r"ApiUnavailable: .*the API server does not answer"):
            call.result(60)
        waited = time.monotonic() - began
    print(f"the others had to wait for {seconds:.2f} s, the new claim for {waited:.1f} s")
    assert waited < KUBELET_SECONDS, "the kubelet hears the reason, not a deadline"
    assert bed.get("/readyz")[0] == 503
    bed.api.start()
    print(f"ready after {bed.wait_ready(process):.2f} s")
    assert bed.device_names() == {f"gpu-{n}" for n in range(4)}
    bed.kubelet.prepare(DRIVER, [new])
    bed.kubelet.unprepare(DRIVER, [kept])
    bed.kubelet.unprepare(DRIVER, [new])
    assert bed.claim_files() == set()


def test_a_server_that_accepts_and_never_answers_costs_one_timeout(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    claim = bed.claim("mine", "gpu-0")
    prepared = bed.kubelet.prepare(DRIVER, [claim])
    bed.api.faults.hang("", "", seconds=600)
    began = time.monotonic()
    assert bed.kubelet.prepare(DRIVER, [claim]) == prepared
    took = time.monotonic() - began
    print(f"the record stood in after {took:.1f} s")
    assert took < KUBELET_SECONDS
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()
