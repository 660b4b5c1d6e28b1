"""Events: the same words less and less often, different words within a budget, the newest kept."""

from itertools import pairwise

from dra_driver.kube.events import event_object
from dra_driver.model import ClaimRef
from dra_driver.telemetry import Event, EventQueue

HELD = Event("DeviceInUse", "gpu-0 is held", warning=True, claim=ClaimRef("ns", "c", "u"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(queue: EventQueue) -> list[Event]:
    """All that waits to be delivered."""
    found = []
    while (event := queue.take(0)) is not None:
        found.append(event)
    return found


def test_a_thousand_failures_of_a_day_are_few_events() -> None:
    clock = Clock()
    queue = EventQueue(clock)
    times: list[float] = []
    for _ in range(1000):
        queue.add(HELD)
        times += [clock.now - 1000 for _ in told(queue)]
        clock.now += 90
    assert times[:5] == [0, 90, 270, 540, 1080]
    assert len(times) < 35
    pauses = [after - before for before, after in pairwise(times)]
    assert max(pauses) <= 3600 + 90, "it is told again before the server has forgotten it"


def test_an_event_says_how_often_and_since_when() -> None:
    clock = Clock()
    queue = EventQueue(clock)
    for seconds in (0, 20, 20, 60):
        clock.now += seconds
        queue.add(HELD)
        if seconds == 0:
            (first,) = told(queue)
    (again,) = told(queue)
    assert (first.times, again.times) == (1, 4)
    assert first.since == again.since
    _, obj = event_object(again, "gpu.nvidia.com", "node-a")
    assert obj["count"] == 4
    assert obj["firstTimestamp"] == event_object(first, "d", "n")[1]["firstTimestamp"]


def test_after_it_was_well_it_is_told_at_once() -> None:
    clock = Clock()
    queue = EventQueue(clock)
    for _ in range(10):
        queue.add(HELD)
        clock.now += 60
    told(queue)
    clock.now += 2 * 3600
    queue.add(HELD)
    assert [event.times for event in told(queue)] == [1]


def test_words_that_differ_each_time_have_a_budget_for_each_object_and_reason() -> None:
    clock = Clock()
    queue = EventQueue(clock)
    for number in range(100):
        queue.add(Event("HardwareBusy", f"after {number} s", warning=True, claim=HELD.claim))
    assert len(told(queue)) == 25
    queue.add(Event("HardwareBusy", "the node", warning=True))
    queue.add(Event("DeviceInUse", "by another claim", warning=True, claim=HELD.claim))
    assert len(told(queue)) == 2
    clock.now += 120
    for number in range(100, 110):
        queue.add(Event("HardwareBusy", f"after {number} s", warning=True, claim=HELD.claim))
    assert len(told(queue)) == 2


def test_the_oldest_of_too_many_are_dropped() -> None:
    queue = EventQueue()
    for number in range(300):
        about = ClaimRef("ns", f"c{number}", f"u{number}")
        queue.add(Event("Flood", str(number), warning=False, claim=about))
    assert [event.message for event in told(queue)] == [str(number) for number in range(44, 300)]
