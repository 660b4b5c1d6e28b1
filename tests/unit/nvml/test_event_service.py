"""Making event sets: which GPUs are in them, and what one that fails costs."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from dra_driver.model.errors import HardwareBusy
from dra_driver.nvml import event_service as module
from dra_driver.nvml import reads
from dra_driver.nvml.errors import CallFailed
from dra_driver.nvml.event_service import EventService
from dra_driver.nvml.worker import Worker

GPUS = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
ALL = frozenset(GPUS.values())
XID = pynvml.nvmlEventTypeXidCriticalError


class FakeLibrary:
    """Stands for a loaded library."""

    def adopt(self) -> None:
        """Do nothing."""


class FakeNvml:
    """Answers what an event set asks; handles are index + 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sets = 0
        self.freed = 0
        self.added: list[tuple[int, int, int]] = []
        self.refuse: dict[int, Callable[[], None]] = {}
        self.supported = XID | pynvml.nvmlEventTypeDoubleBitEccError | 1 << 40
        self.uuids = dict(GPUS)
        self.quiet = threading.Event()
        fakes: dict[str, Callable[..., Any]] = {
            "new_event_set": self._create,
            "device": lambda index: index + 1,
            "uuid": lambda device: self.uuids[device - 1],
            "supported_events": lambda _: self.supported,
            "add_events": self._add,
            "address": lambda device: device,
            "wait_for_event": lambda _, ms: self.quiet.wait(ms / 1000) and None,
            "free_event_set": self._free,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(reads, name, fake)

    def _create(self) -> int:
        self.sets += 1
        return self.sets

    def _add(self, device: int, kinds: int, event_set: int) -> None:
        self.refuse.get(device - 1, lambda: None)()
        self.added.append((event_set, device, kinds))

    def _free(self, _: int) -> None:
        self.freed += 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml(monkeypatch)


@pytest.fixture
def service(nvml: FakeNvml) -> Iterator[EventService]:
    workers = {index: Worker(f"gpu {index}") for index in GPUS}

    def submit(index: int, job: Callable[[], None]) -> Any:
        try:
            return workers[index].submit(job)
        except HardwareBusy as error:
            return error

    made = EventService(FakeLibrary(), submit, lambda _: None, lambda: None)  # type: ignore[arg-type]
    yield made
    made.close(5.0)
    for worker in workers.values():
        worker.close()


def refusing(name: str) -> Callable[[], None]:
    def refuse() -> None:
        code = getattr(pynvml, f"NVML_ERROR_{name}")
        raise CallFailed("nvmlDeviceRegisterEvents", code)

    return refuse


def test_all_gpus_with_the_kinds_that_they_have(service: EventService, nvml: FakeNvml) -> None:
    assert service.listen(GPUS) == ALL
    wanted = XID | pynvml.nvmlEventTypeDoubleBitEccError
    assert sorted(nvml.added) == [(1, 1, wanted), (1, 2, wanted), (1, 3, wanted)]


def test_nothing_is_done_while_nothing_changes(service: EventService, nvml: FakeNvml) -> None:
    for _ in range(5):
        assert service.listen(GPUS) == ALL
    assert nvml.sets == 1


def test_other_gpus_make_another_set(service: EventService, nvml: FakeNvml) -> None:
    service.listen(GPUS)
    assert service.listen({0: "GPU-a"}) == {"GPU-a"}
    assert service.listen(GPUS) == ALL
    assert nvml.sets == 3


def test_a_gpu_that_lacks_events_is_left_out_for_good(
    service: EventService, nvml: FakeNvml
) -> None:
    nvml.refuse[1] = refusing("NOT_SUPPORTED")
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}
    nvml.refuse.clear()
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}
    assert nvml.sets == 1, "the set can still be used (nvml.h)"


def test_a_gpu_without_xid_events_is_as_good_as_without(
    service: EventService, nvml: FakeNvml
) -> None:
    nvml.supported = pynvml.nvmlEventTypePState
    assert service.listen(GPUS) == frozenset()
    assert nvml.added == []


def test_after_an_error_the_set_is_not_used(
    service: EventService, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.refuse[1] = refusing("UNKNOWN")
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}
    assert {number for number, _, _ in nvml.added if number > 1} == {2}
    nvml.refuse.clear()
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}, "not tried again at once"
    monkeypatch.setattr(time, "monotonic", _in(61.0))
    assert service.listen(GPUS) == ALL


def _in(seconds: float) -> Callable[[], float]:
    real = time.monotonic
    return lambda: real() + seconds


def _wait(release: threading.Event) -> None:
    release.wait(60)


def test_a_gpu_that_hangs_costs_only_its_own_events(
    service: EventService, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTEN_SECONDS", 2.0)
    release = threading.Event()
    nvml.refuse[1] = lambda: _wait(release)
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}
    release.set()


def test_a_gpu_that_moved_is_taken_at_the_next_look(service: EventService, nvml: FakeNvml) -> None:
    nvml.uuids[1] = "GPU-new"
    assert service.listen(GPUS) == {"GPU-a", "GPU-c"}
    assert service.listen({0: "GPU-a", 1: "GPU-new", 2: "GPU-c"}) == {"GPU-a", "GPU-new", "GPU-c"}


def test_no_gpus_no_set(service: EventService, nvml: FakeNvml) -> None:
    assert service.listen({}) == frozenset()
    assert nvml.sets == 0
