"""What a GPU says of its own health, and what stays when it says nothing."""

import pynvml
import pytest

from dra_driver.model import Health, HealthState, combined
from dra_driver.nvml import reads
from dra_driver.nvml.condition import condition
from dra_driver.nvml.errors import CallFailed, Notes

ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
REMAP = pynvml.NVML_FI_DEV_REMAPPED_FAILURE


def asked(
    monkeypatch: pytest.MonkeyPatch, answer: dict[int, int] | str, known: Health | None = None
) -> tuple[Health, int]:
    """Health when NVML answers so, and how many problems were noted."""

    def fields(_: object, *numbers: int) -> dict[int, int]:
        if isinstance(answer, str):
            code = getattr(pynvml, f"NVML_ERROR_{answer}")
            raise CallFailed("nvmlDeviceGetFieldValues", code)
        return {number: answer[number] for number in numbers if number in answer}

    monkeypatch.setattr(reads, "fields", fields)
    notes = Notes("GPU-a")
    return condition(None, known or Health(), notes), len(notes.problems)


@pytest.mark.parametrize("answer", [{}, {ACTION: 0}, {ACTION: 0, REMAP: 0}])
def test_nothing_to_do_is_healthy(monkeypatch: pytest.MonkeyPatch, answer: dict[int, int]) -> None:
    assert asked(monkeypatch, answer) == (Health(), 0)


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "gpu-reset"), (2, "node-reboot"), (4, "drain-and-reset"), (9, "action-9")],
)
def test_every_action_is_a_reason(monkeypatch: pytest.MonkeyPatch, number: int, word: str) -> None:
    health, _ = asked(monkeypatch, {ACTION: number})
    assert (health.state, health.reason) == (HealthState.UNHEALTHY, "recovery-action")
    assert health.value == word


def test_a_failed_remapping_is_a_reason_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    health, _ = asked(monkeypatch, {ACTION: 1, REMAP: 1})
    assert [entry.reason for entry in health.entries()] == ["recovery-action", "row-remap-failed"]


def test_after_a_failure_only_its_own_reasons_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU answers: it is not lost any more, whatever was known."""
    lost = Health(HealthState.UNHEALTHY, "gpu-lost", "GPU_IS_LOST")
    action = Health(HealthState.UNHEALTHY, "recovery-action", "reset", 5.0, "gpu-reset")
    health, problems = asked(monkeypatch, "UNKNOWN", combined((lost, action)))
    assert health == action
    assert problems == 1


def test_a_driver_without_these_words_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Health(HealthState.UNHEALTHY, "recovery-action", "reset")
    assert asked(monkeypatch, "FUNCTION_NOT_FOUND", known) == (Health(), 0)


def test_a_gpu_that_is_lost_meanwhile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallFailed):
        asked(monkeypatch, "GPU_IS_LOST")
