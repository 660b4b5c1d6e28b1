"""What each NVML answer means: the one place where NVML's error numbers become model errors."""

from typing import Final

import pynvml

from dra_driver.model.errors import (
    DeviceNotFound,
    DriverError,
    DriverNotReady,
    HardwareBusy,
    HardwareFailed,
    PermissionMissing,
)
from dra_driver.model.gpu import Problem

_PREFIX: Final = "NVML_ERROR_"
# Names by number. pynvml's own texts are of no use here: it asks the library for some of them,
# which may hang.
_NAMES: Final[dict[int, str]] = {
    getattr(pynvml, name): name.removeprefix(_PREFIX)
    for name in dir(pynvml)
    if name.startswith(_PREFIX)
}

_ABSENT: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
_LOST: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_NOWHERE: Final = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_DRIVER_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_BUSY: Final = frozenset(
    {
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_MEMORY,  # of the host
        pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
    }
)


class GpuAbsent(DeviceNotFound):
    """There is no such GPU on the node (any more)."""


class GpuLost(HardwareFailed):
    """The GPU fell off the bus or waits for a reset: no partition of it outlives that."""


_BRANCHES: Final[tuple[tuple[frozenset[int], type[DriverError], str], ...]] = (
    (_DRIVER_GONE, DriverNotReady, "check that the GPU driver is loaded and fits its library"),
    (_BUSY, HardwareBusy, "try again, or end what uses the GPU"),
    (_LOST, GpuLost, "look for Xid lines in the kernel log; the GPU needs a reset"),
    (
        frozenset({pynvml.NVML_ERROR_NO_PERMISSION}),
        PermissionMissing,
        "run the plugin as root and privileged",
    ),
)


class CallFailed(Exception):
    """One NVML call answered with an error number. Stays inside this package."""

    def __init__(self, call: str, code: int) -> None:
        """Keep the function's name and NVML's error number."""
        super().__init__(f"{call} answered {_NAMES.get(code, f'error {code}')}")
        self.call = call
        self.code = code

    @property
    def absent(self) -> bool:
        """Whether the GPU or its driver lacks the ability: not an error."""
        return self.code in _ABSENT

    @property
    def lost(self) -> bool:
        """Whether the GPU fell off the bus or waits for a reset."""
        return self.code in _LOST

    @property
    def nowhere(self) -> bool:
        """Whether what was asked about is not there."""
        return self.code in _NOWHERE

    @property
    def driver_gone(self) -> bool:
        """Whether the library must be loaded and initialised anew."""
        return self.code in _DRIVER_GONE

    @property
    def timed_out(self) -> bool:
        """Whether a wait came to its end without an event."""
        return bool(self.code == pynvml.NVML_ERROR_TIMEOUT)

    @property
    def past_the_end(self) -> bool:
        """Whether an enumeration by index has come to its end (nvml.h: INVALID_ARGUMENT)."""
        return bool(self.code == pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def explained(self, subject: str) -> DriverError:
        """Make the model error that says of `subject` what happened and what to do."""
        for codes, branch, advice in _BRANCHES:
            if self.code in codes:
                return branch(f"{subject}: {self}; {advice}")
        return HardwareFailed(f"{subject}: {self}; look at the kernel log of the node")


class Notes:
    """What could not be found out about one subject, and what that cost."""

    def __init__(self, subject: str) -> None:
        """Take the name that a person knows the subject by: a GPU's UUID, or `node`."""
        self._subject = subject
        self._problems: list[Problem] = []

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All notes so far."""
        return tuple(self._problems)

    def failed(self, failure: CallFailed, cost: str) -> None:
        """Note a failed call; a missing ability is none.

        Raises `failure` itself when asking on makes no sense: GPU lost, driver gone.
        """
        if failure.lost or failure.driver_gone:
            raise failure
        if not failure.absent:
            self.say(f"{failure}; {cost}")

    def say(self, message: str) -> None:
        """Note something else that a person should know, in one line."""
        self._problems.append(Problem(self._subject, message))
