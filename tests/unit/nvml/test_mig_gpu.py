"""NVML's answers to the calls of one job, as the errors that people read."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dra_driver.host import HostRoot
from dra_driver.model import Placement
from dra_driver.model.errors import DriverError, DriverNotReady, HardwareBusy, HardwareFailed
from dra_driver.nvml import GpuInstance, GpuLost, MigGpu, reads, writes
from dra_driver.nvml.errors import CallFailed

UUID = "GPU-1"
INSTANCE = GpuInstance(3, 0, Placement(0, 8), "handle")


class Card:
    """A GPU of which the test says what each call answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.monkeypatch = monkeypatch
        self.gpu = MigGpu(UUID, "device", HostRoot(root), time.monotonic() + 60)

    def answers(self, name: str, answer: Callable[..., Any] | Any) -> None:
        """Let a read or write of that name give this, or what this function gives."""
        where = reads if hasattr(reads, name) else writes
        call = answer if callable(answer) else lambda *_, **__: answer
        self.monkeypatch.setattr(where, name, call)

    def answers_switches(self) -> list[bool]:
        """Let every switch of MIG mode succeed; gives what they were to be."""
        modes: list[bool] = []

        def switch(_: object, *, on: bool) -> int:
            modes.append(on)
            return 0

        self.answers("set_mig_mode", switch)
        return modes

    def fails(self, name: str, error: str) -> None:
        """Let it answer this NVML error."""

        def call(*_: object, **__: object) -> None:
            raise failure(error, name)

        self.answers(name, call)


def failure(error: str, call: str = "call") -> CallFailed:
    return CallFailed(call, getattr(pynvml, f"NVML_ERROR_{error}"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Card:
    return Card(monkeypatch, tmp_path)


def ci_profiles(*profiles: tuple[int, int]) -> list[tuple[int, SimpleNamespace]]:
    """Give compute-instance profiles of these ids and slices."""
    return [(id_, SimpleNamespace(id=id_, sliceCount=slices)) for id_, slices in profiles]


def test_b37_a_switch_that_answers_success_and_does_not_happen_is_told(card: Card) -> None:
    switched = card.answers_switches()
    card.answers("mig_mode", (False, True))
    with pytest.raises(HardwareFailed, match="MIG mode of GPU GPU-1 is not on, though"):
        card.gpu.switch_mig_mode(on=True)
    assert switched == [True, False], "nothing stays pending"


def test_a_switch_that_can_not_be_checked_is_taken_back(card: Card) -> None:
    switched = card.answers_switches()
    card.fails("mig_mode", "UNKNOWN")
    with pytest.raises(HardwareFailed, match="UNKNOWN"):
        card.gpu.switch_mig_mode(on=False)
    assert switched == [False, True]


def test_a_switch_that_is_refused_changes_nothing_more(card: Card) -> None:
    calls: list[bool] = []

    def refuse(_: object, *, on: bool) -> int:
        calls.append(on)
        raise failure("NO_PERMISSION", "nvmlDeviceSetMigMode")

    card.answers("set_mig_mode", refuse)
    with pytest.raises(DriverError, match="GPU GPU-1: nvmlDeviceSetMigMode answered NO_PERMISSION"):
        card.gpu.switch_mig_mode(on=True)
    assert calls == [True]


def test_a_gpu_without_mig_is_never_in_mig_mode(card: Card) -> None:
    card.fails("mig_mode", "NOT_SUPPORTED")
    assert card.gpu.mig_mode() == (False, False)
    assert card.gpu.instances() == ()
    assert card.gpu.instance(19, Placement(0, 1)) is None


def test_a_profile_that_the_gpu_has_no_more_stands_nowhere(card: Card) -> None:
    card.answers("mig_mode", (True, True))
    card.fails("gpu_instances", "INVALID_ARGUMENT")
    card.answers("gi_profiles", [])
    assert card.gpu.instance(77, Placement(0, 1)) is None


def test_an_invalid_argument_is_not_taken_for_absence(card: Card) -> None:
    """The instance is found by the list of all."""
    found = iter([failure("INVALID_ARGUMENT"), ["handle"]])

    def listed(*_: object) -> Any:
        answer = next(found)
        if isinstance(answer, CallFailed):
            raise answer
        return answer

    card.answers("mig_mode", (True, True))
    card.answers("gpu_instances", listed)
    card.answers("gi_profiles", [(0, SimpleNamespace(id=19))])
    place = SimpleNamespace(start=2, size=1)
    card.answers("gpu_instance", SimpleNamespace(id=9, profileId=19, placement=place))
    assert card.gpu.instance(19, Placement(2, 1)) == GpuInstance(9, 19, Placement(2, 1), "handle")


def test_an_instance_that_can_not_be_described_is_removed(card: Card) -> None:
    removed: list[object] = []
    card.answers("create_gpu_instance", "handle")
    card.fails("gpu_instance", "UNKNOWN")
    card.answers("destroy_gpu_instance", removed.append)
    with pytest.raises(HardwareFailed, match="gpu_instance answered UNKNOWN"):
        card.gpu.create_instance(19, Placement(0, 1))
    assert removed == ["handle"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((None, None), 4),
        (("NOT_SUPPORTED", None), 8),
        (("INSUFFICIENT_RESOURCES", None), 8),
        (("NOT_SUPPORTED", "NOT_SUPPORTED"), "NOT_SUPPORTED"),
        (("NOT_SUPPORTED", "UNKNOWN"), "UNKNOWN"),
        (("UNKNOWN", "NOT_SUPPORTED"), "UNKNOWN"),
        (("GPU_IS_LOST", None), "GPU_IS_LOST"),
        (("DRIVER_NOT_LOADED", None), "DRIVER_NOT_LOADED"),
    ],
)
def test_b39_the_first_compute_profile_that_can_be_made_is_taken(
    card: Card, answers: tuple[str | None, ...], expected: int | str
) -> None:
    words = dict(zip((4, 8), answers, strict=True))

    def create(_: object, profile_id: int) -> int:
        word = words[profile_id]
        if word is not None:
            raise failure(word, "create")
        return profile_id

    card.answers("ci_profiles", ci_profiles((0, 1), (3, 4), (4, 7), (8, 7)))
    card.answers("create_compute_instance", create)
    card.answers("compute_instance", lambda handle: SimpleNamespace(id=0, profileId=handle))
    if isinstance(expected, int):
        made = card.gpu.create_spanning(INSTANCE)
        assert (made.profile_id, made.spans) == (expected, True)
    else:
        with pytest.raises(DriverError, match=f"create answered {expected}"):
            card.gpu.create_spanning(INSTANCE)


def test_an_instance_that_has_no_compute_profile_is_told(card: Card) -> None:
    card.answers("ci_profiles", [])
    with pytest.raises(HardwareFailed, match="ComputeInstanceProfileInfo answered NOT_SUPPORTED"):
        card.gpu.create_spanning(INSTANCE)


def test_compute_instances_tell_which_of_them_spans(card: Card) -> None:
    def listed(_: object, profile_id: int) -> list[int]:
        if profile_id == 8:
            raise failure("NOT_SUPPORTED")
        return [profile_id] if profile_id else []

    card.answers("ci_profiles", ci_profiles((0, 1), (1, 2), (4, 7), (8, 7)))
    card.answers("compute_instances", listed)
    card.answers("compute_instance", lambda handle: SimpleNamespace(id=handle, profileId=handle))
    found = card.gpu.compute_instances(INSTANCE)
    assert [(compute.profile_id, compute.spans) for compute in found] == [(1, False), (4, True)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("IN_USE", HardwareBusy),
        ("INSUFFICIENT_RESOURCES", HardwareBusy),
        ("GPU_IS_LOST", GpuLost),
        ("RESET_REQUIRED", GpuLost),
        ("DRIVER_NOT_LOADED", DriverNotReady),
        ("UNKNOWN", HardwareFailed),
    ],
)
def test_what_each_answer_means(card: Card, error: str, expected: type[DriverError]) -> None:
    card.fails("minor", error)
    with pytest.raises(expected, match=f"GPU GPU-1: minor answered {error}"):
        card.gpu.minor()


def test_a_compute_instance_without_mig_device_is_told(card: Card) -> None:
    card.answers("mig_devices", [])
    compute = SimpleNamespace(id=0)
    with pytest.raises(HardwareFailed, match="has no MIG device; check /dev/nvidia-caps"):
        card.gpu.mig_uuid(INSTANCE, compute)  # type: ignore[arg-type]


def test_users_of_an_instance_are_told_from_those_of_the_gpu(card: Card) -> None:
    card.answers("running_processes", {7: frozenset({3}), 5: frozenset({4}), 6: frozenset()})
    assert [process.pid for process in card.gpu.users(INSTANCE)] == [7]
    assert [process.pid for process in card.gpu.users()] == [5, 6, 7]


def test_users_that_can_not_be_had_cost_their_names_only(card: Card) -> None:
    card.fails("running_processes", "NO_PERMISSION")
    card.fails("minor", "GPU_IS_LOST")
    assert card.gpu.users() == ()


def test_a_profile_that_nvml_does_not_name_has_its_number(card: Card) -> None:
    card.fails("gi_profiles", "UNKNOWN")
    assert card.gpu.profile_name(19) == "profile 19"


def test_time_that_is_up(tmp_path: Path) -> None:
    late = MigGpu(UUID, "device", HostRoot(tmp_path), time.monotonic() - 1)
    with pytest.raises(HardwareBusy, match="took too long"):
        late.check_time()
