"""Statuses reach their claims in the end, and trouble with them reaches nobody else."""

import logging
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.kube import ClaimStatusSender, KubeClient, status_sender
from dra_driver.model import ClaimRef, ClaimStatus, DeviceStatus, Placement
from dra_driver.simulator.api_server import ApiServer
from dra_driver.telemetry import Metrics
from tests.support.api import DRIVER, NODE, wait_for

SLOT = "gpu-0-mig-1g10gb-19-6"
LOG = "dra_driver.kube.status_sender"


class Bed:
    """A sender at work on claims of the stand-in."""

    def __init__(self, server: ApiServer, kube: KubeClient) -> None:
        self.server = server
        self.metrics = Metrics()
        self.sender = ClaimStatusSender(kube, self.metrics, lambda _: True)

    def claim(self, name: str) -> ClaimRef:
        result = {"driver": DRIVER, "pool": NODE, "device": SLOT}
        status = {"allocation": {"devices": {"results": [result]}}}
        obj = self.server.objects.create(
            "resourceclaims", {"metadata": {"namespace": "team", "name": name}, "status": status}
        )
        return ClaimRef("team", name, obj["metadata"]["uid"])

    def add(self, ref: ClaimRef, uuid: str = "MIG-1") -> None:
        device = DeviceStatus(NODE, SLOT, uuid, "GPU-1", "1g.10gb", Placement(6, 1))
        self.sender.add(ClaimStatus(ref, 1_700_000_000, (device,)))

    def told(self, name: str) -> str:
        """UUID that a claim's status tells, empty when it tells none."""
        obj = self.server.objects.get("resourceclaims", name, "team")
        for entry in obj["status"].get("devices", []):
            uuid: str = entry["data"]["uuid"]
            return uuid
        return ""

    def wait_told(self, name: str, uuid: str = "MIG-1") -> None:
        wait_for(lambda: self.told(name) == uuid, f"{name} tells {uuid}")

    def results(self) -> dict[str, int]:
        """How often each result was counted, without those that never were."""
        return {
            sample.labels["result"]: int(sample.value)
            for family in text_string_to_metric_families(self.metrics.exposition().decode())
            for sample in family.samples
            if sample.name == "gpu_dra_driver_claim_status_writes_total" and sample.value
        }

    def wait_counted(self, result: str, times: int = 1) -> None:
        wait_for(lambda: self.results().get(result, 0) >= times, f"{result}, {times} times")


@pytest.fixture
def bed(server: ApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(status_sender, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(status_sender, "_LONGEST_PAUSE", 0.05)
    made = Bed(server, kube)
    yield made
    server.faults.clear()
    made.sender.stop()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == LOG and each.levelno >= logging.WARNING
    ]


def test_statuses_are_written_in_turn(bed: Bed) -> None:
    bed.sender.start()
    for number in range(5):
        bed.add(bed.claim(f"c{number}"))
    for number in range(5):
        bed.wait_told(f"c{number}")
    bed.wait_counted("written", 5)
    assert bed.server.requests.count() == 5


def test_the_newest_status_of_a_claim_is_written_and_no_other(bed: Bed) -> None:
    ref = bed.claim("c")
    for number in range(50):
        bed.add(ref, f"MIG-{number}")
    bed.sender.start()
    bed.wait_told("c", "MIG-49")
    assert bed.server.requests.count("patch") == 1
    bed.add(ref, "MIG-50")
    bed.wait_told("c", "MIG-50")


def test_a_status_that_is_added_while_another_is_on_its_way_is_written_after_it(bed: Bed) -> None:
    ref = bed.claim("c")
    bed.server.faults.hang("patch", "/c/status", seconds=3, times=1)
    bed.sender.start()
    bed.add(ref, "MIG-1")
    wait_for(lambda: bed.server.requests.count("patch") == 1, "the first is on its way")
    began = time.monotonic()
    bed.add(ref, "MIG-2")
    assert time.monotonic() - began < 2.5, "whoever adds waits for nothing"
    bed.wait_told("c", "MIG-2")
    bed.wait_counted("written", 2)


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_a_server_in_trouble_is_asked_again_later(
    bed: Bed, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    bed.server.faults.fail("patch", "", status=status, times=7)
    bed.sender.start()
    bed.add(bed.claim("a"))
    bed.add(bed.claim("b"))
    bed.wait_told("a")
    bed.wait_told("b")
    bed.wait_counted("written", 2)
    assert bed.results() == {"unavailable": 7, "written": 2}
    assert warnings(caplog) == ["claims get their device status late"]


def test_a_server_in_trouble_is_left_alone_meanwhile(bed: Bed) -> None:
    bed.server.faults.fail("patch", "", status=503, times=1, headers={"Retry-After": "2"})
    bed.sender.start()
    began = time.monotonic()
    bed.add(bed.claim("a"))
    bed.wait_counted("unavailable")
    bed.add(bed.claim("b"))
    wait_for(lambda: bed.server.requests.count("patch") > 1, "it is asked again")
    assert time.monotonic() - began >= 2
    bed.wait_told("b")
    bed.wait_told("a")


def test_a_server_that_was_away_gets_the_newest_only(bed: Bed) -> None:
    ref = bed.claim("c")
    bed.server.stop()
    bed.sender.start()
    bed.add(ref, "MIG-1")
    bed.wait_counted("unavailable", 3)
    bed.add(ref, "MIG-2")
    bed.server.start()
    bed.wait_told("c", "MIG-2")
    assert bed.server.requests.count("patch") == 1


def test_a_claim_that_is_gone_is_given_up(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    replaced = bed.claim("replaced")
    bed.server.objects.delete("resourceclaims", "replaced", "team")
    bed.claim("replaced")
    bed.sender.start()
    bed.add(ClaimRef("team", "gone", "u-1"))
    bed.add(replaced)
    bed.wait_counted("gone", 2)
    assert bed.told("replaced") == ""
    assert bed.server.requests.count("patch") == 2
    assert warnings(caplog) == []


def test_a_missing_permission_is_told_once_and_holds_up_nobody(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_sender, "_PERMISSION_PAUSE", 0.05)
    bed.server.faults.fail("patch", "/forbidden-.*/status", status=403)
    bed.sender.start()
    for number in range(3):
        bed.add(bed.claim(f"forbidden-{number}"))
    bed.wait_counted("forbidden", 6)
    bed.add(bed.claim("allowed"))
    bed.wait_told("allowed")
    bed.wait_counted("forbidden", 12)
    assert warnings(caplog) == ["claims get no device status"]
    bed.server.faults.clear()
    for number in range(3):
        bed.wait_told(f"forbidden-{number}")
    bed.wait_counted("written", 4)


def test_a_missing_permission_is_not_asked_for_all_the_time(bed: Bed) -> None:
    bed.server.claims.drivers = set()
    bed.sender.start()
    refs = [bed.claim(f"c{number}") for number in range(10)]
    for ref in refs:
        bed.add(ref)
    bed.wait_counted("forbidden", 10)
    time.sleep(0.5)
    assert bed.server.requests.count("patch") == 10
    bed.server.claims.drivers = None
    bed.add(refs[0], "MIG-2")  # what is new is tried at once
    bed.wait_told("c0", "MIG-2")


def test_a_status_that_is_refused_is_not_sent_again(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.server.faults.fail("patch", "/bad/status", status=422)
    bed.sender.start()
    bed.add(bed.claim("bad"))
    bed.add(bed.claim("good"))
    bed.wait_told("good")
    bed.wait_counted("written")
    assert bed.results() == {"refused": 1, "written": 1}
    assert warnings(caplog) == ["a claim's device status is refused"]


def test_our_own_mistakes_do_not_end_the_thread(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send = bed.sender._kube.apply_claim_status
    mistakes = [ZeroDivisionError("oops")]

    def sometimes(status: ClaimStatus) -> bool:
        if mistakes:
            raise mistakes.pop()
        return send(status)

    monkeypatch.setattr(bed.sender._kube, "apply_claim_status", sometimes)
    bed.sender.start()
    bed.add(bed.claim("a"))
    bed.wait_counted("refused")
    bed.add(bed.claim("b"))
    bed.wait_told("b")
    assert warnings(caplog) == ["a claim's device status cannot be written"]


def test_a_server_that_keeps_no_status_is_told_of_once(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.server.become("1.34.4", {"DRAResourceClaimDeviceStatus": False})
    bed.sender.start()
    for number in range(3):
        bed.add(bed.claim(f"c{number}"))
    bed.wait_counted("ignored", 3)
    assert warnings(caplog) == ["the API server keeps no device status of claims"]


def test_a_claim_that_is_unprepared_is_forgotten(bed: Bed) -> None:
    bed.server.faults.fail("patch", "", status=503)
    bed.sender.start()
    short, long = bed.claim("short"), bed.claim("long")
    bed.add(short)
    bed.add(long)
    bed.wait_counted("unavailable", 2)
    bed.sender.forget(short.uid)
    bed.sender.forget("never-added")
    bed.wait_counted("unavailable", bed.results()["unavailable"] + 1)  # none is on its way now
    bed.server.faults.clear()
    bed.wait_told("long")
    assert bed.told("short") == ""


def test_a_status_that_holds_no_more_is_not_written(bed: Bed) -> None:
    old, new = bed.claim("old"), bed.claim("new")
    bed.sender = ClaimStatusSender(bed.sender._kube, bed.metrics, lambda status: status.ref != old)
    bed.sender.start()
    bed.add(old)
    bed.add(new)
    bed.wait_told("new")
    bed.wait_counted("gone")
    assert bed.told("old") == ""


def test_the_queue_is_bounded(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_sender, "_CAPACITY", 3)
    for number in range(5):
        bed.add(bed.claim(f"c{number}"))
    bed.sender.start()
    bed.wait_counted("written", 3)
    assert [bed.told(f"c{number}") for number in range(4)] == ["", "", "MIG-1", "MIG-1"]
    assert bed.results() == {"dropped": 2, "written": 3}
    assert warnings(caplog) == ["too many claim statuses wait: one is dropped"] * 2


def test_a_stop_writes_what_waits(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_sender, "_LAST_SECONDS", 30.0)
    for number in range(5):
        bed.add(bed.claim(f"c{number}"))
    bed.sender.start()
    bed.sender.stop()
    assert [bed.told(f"c{number}") for number in range(5)] == ["MIG-1"] * 5


def test_a_stop_does_not_wait_for_a_server_that_hangs(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_sender, "_LAST_SECONDS", 0.2)
    bed.server.faults.hang("patch", "", seconds=30)
    bed.sender.start()
    bed.add(bed.claim("c"))
    wait_for(lambda: bed.server.requests.count("patch") == 1, "it hangs")
    began = time.monotonic()
    bed.sender.stop()
    assert time.monotonic() - began < 5


def test_a_sender_that_was_never_started_stops(bed: Bed) -> None:
    bed.add(bed.claim("c"))
    bed.sender.stop()
    assert bed.server.requests.count("patch") == 0
