"""Events reach the API server, and trouble with them reaches nobody else."""

import logging
import time
from collections.abc import Iterator

import pytest

from dra_driver.config import Settings
from dra_driver.kube import EventSender, KubeClient, events
from dra_driver.kube.events import event_object
from dra_driver.model import ClaimRef
from dra_driver.simulator.api_server import ApiServer
from dra_driver.telemetry import Event, EventQueue
from tests.support.api import DRIVER, NODE, wait_for

CLAIM = ClaimRef("team", "c", "u-1")
ABOUT_CLAIM = Event("DeviceInUse", "gpu-0 is taken", warning=True, claim=CLAIM)
ABOUT_NODE = Event("DeviceNotPublished", "gpu-1 is sick", warning=False)


@pytest.fixture
def queue(kube: KubeClient, settings: Settings) -> Iterator[EventQueue]:
    made = EventQueue()
    sender = EventSender(kube, settings, made)
    sender.start()
    yield made
    sender.stop()


def test_events_name_the_claim_or_the_node(server: ApiServer, queue: EventQueue) -> None:
    queue.add(ABOUT_CLAIM)
    queue.add(ABOUT_NODE)
    wait_for(lambda: len(server.objects.select("events")) == 2, "events")
    on_node, on_claim = server.objects.select("events")
    assert on_claim["metadata"]["namespace"] == "team"
    assert on_claim["involvedObject"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": "team",
        "name": "c",
        "uid": "u-1",
    }
    assert (on_claim["type"], on_claim["reason"]) == ("Warning", "DeviceInUse")
    assert on_claim["source"] == {"component": DRIVER, "host": NODE}
    assert on_node["metadata"]["namespace"] == "default"
    assert on_node["involvedObject"]["kind"] == "Node"
    assert (on_node["type"], on_node["message"]) == ("Normal", "gpu-1 is sick")


def test_an_event_is_tried_again(server: ApiServer, queue: EventQueue) -> None:
    server.faults.fail("create", "events", status=503, times=1)
    queue.add(ABOUT_NODE)
    wait_for(lambda: server.objects.select("events"), "event after a failure")


def test_an_event_outlasts_a_server_that_is_away_for_minutes(
    server: ApiServer, queue: EventQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LONGEST_PAUSE", 0.5)  # of a minute
    server.faults.fail("create", "events", status=503, times=10)
    queue.add(ABOUT_NODE)
    wait_for(lambda: server.objects.select("events"), "event after many failures")


def test_an_event_whose_answer_is_lost_is_delivered_once_and_holds_up_nobody(
    server: ApiServer, queue: EventQueue, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.cut("create", "events", times=1, after=True)
    queue.add(ABOUT_NODE)
    queue.add(ABOUT_CLAIM)
    wait_for(
        lambda: [entry.status for entry in server.requests.all()] == [201, 409, 201], "both events"
    )
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("status", [403, 404, 422])
def test_an_event_that_cannot_be_posted_does_not_hold_up_the_next(
    server: ApiServer, queue: EventQueue, status: int
) -> None:
    server.faults.fail("create", "namespaces/team/events", status=status)
    queue.add(ABOUT_CLAIM)
    queue.add(ABOUT_NODE)
    wait_for(lambda: server.objects.select("events"), "the next event")


def test_a_stop_delivers_what_is_queued(
    server: ApiServer,
    kube: KubeClient,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_LAST_SECONDS", 30.0)
    waiting = EventQueue()
    sender = EventSender(kube, settings, waiting)
    for number in range(5):
        waiting.add(Event("Reason", f"message {number}", warning=True))
    sender.start()
    sender.stop()
    assert len(server.objects.select("events")) == 5


def test_a_stop_does_not_wait_for_a_server_that_is_away(
    server: ApiServer, kube: KubeClient, settings: Settings
) -> None:
    server.stop()
    waiting = EventQueue()
    sender = EventSender(kube, settings, waiting)
    sender.start()
    waiting.add(ABOUT_NODE)
    began = time.monotonic()
    sender.stop()
    assert time.monotonic() - began < 10


def test_long_words_are_cut_to_what_the_server_takes() -> None:
    claim = ClaimRef("team", "x" * 253, "u")
    _, obj = event_object(Event("R", "ä" * 2000, warning=True, claim=claim), DRIVER, NODE)
    assert len(obj["message"].encode()) <= 1024
    assert len(obj["metadata"]["name"]) <= 253
    _, other = event_object(Event("R", "m", warning=True, claim=claim), DRIVER, NODE)
    assert obj["metadata"]["name"] != other["metadata"]["name"]
