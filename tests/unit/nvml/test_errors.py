"""What each NVML answer becomes."""

import pynvml
import pytest

from dra_driver.model.errors import (
    BadNode,
    DriverError,
    DriverNotReady,
    HardwareBusy,
    HardwareFailed,
    PermissionMissing,
    TryAgain,
)
from dra_driver.nvml.errors import CallFailed, GpuLost, Notes

EVERY_CODE = sorted(
    {getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
)


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("DRIVER_NOT_LOADED", DriverNotReady),
        ("UNINITIALIZED", DriverNotReady),
        ("LIB_RM_VERSION_MISMATCH", DriverNotReady),
        ("TIMEOUT", HardwareBusy),
        ("IN_USE", HardwareBusy),
        ("GPU_IS_LOST", GpuLost),
        ("RESET_REQUIRED", GpuLost),
        ("UNKNOWN", HardwareFailed),
        ("NO_PERMISSION", PermissionMissing),
    ],
)
def test_branch_says_what_the_caller_must_do(name: str, branch: type[DriverError]) -> None:
    failure = CallFailed("nvmlDeviceGetUUID", getattr(pynvml, f"NVML_ERROR_{name}"))
    error = failure.explained("GPU-1")
    assert type(error) is branch
    assert str(error).startswith(f"GPU-1: nvmlDeviceGetUUID answered {name}; ")


@pytest.mark.parametrize("code", EVERY_CODE)
def test_every_error_has_a_name_and_one_line(code: int) -> None:
    error = CallFailed("nvmlInit", code).explained("the GPU driver")
    assert isinstance(error, TryAgain | BadNode)
    assert "answered error" not in str(error)
    assert "\n" not in str(error)


def test_a_number_of_a_newer_driver_is_named_by_its_number() -> None:
    assert str(CallFailed("nvmlInit", 4711)) == "nvmlInit answered error 4711"


def test_missing_abilities_are_no_problems() -> None:
    notes = Notes("GPU-1")
    for name in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
        notes.failed(CallFailed("f", getattr(pynvml, f"NVML_ERROR_{name}")), "x is left out")
    assert notes.problems == ()


def test_a_failure_is_noted_with_call_answer_and_cost() -> None:
    notes = Notes("GPU-1")
    notes.failed(CallFailed("f", pynvml.NVML_ERROR_UNKNOWN), "x is left out")
    (problem,) = notes.problems
    assert problem.subject == "GPU-1"
    assert problem.message == "f answered UNKNOWN; x is left out"


@pytest.mark.parametrize("name", ["GPU_IS_LOST", "RESET_REQUIRED", "DRIVER_NOT_LOADED"])
def test_asking_on_ends_with_a_lost_gpu_or_driver(name: str) -> None:
    failure = CallFailed("f", getattr(pynvml, f"NVML_ERROR_{name}"))
    with pytest.raises(CallFailed) as raised:
        Notes("GPU-1").failed(failure, "x is left out")
    assert raised.value is failure
