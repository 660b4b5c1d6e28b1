"""Rows and columns of the fault matrix, generated from the steps of Prepare and Unprepare.

And those of the take-over of claims that the driver before has prepared, at a start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.claims.steps import STEPS

COLUMNS: Final = (
    "error once",
    "error for ever",
    "hang",
    "kill -9 before",
    "kill -9 after",
    "reboot",
)

# What each step does to files. A test compares this with the failpoints that a claim passes.
FILE_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prepare:reserve": ("write", "rename"),
    "prepare:cdi": ("replace", "replace#2"),
    "prepare:commit": ("write", "rename"),
    "unprepare:forget": ("remove",),
}
# What it does to the hardware, for a claim that needs all of it.
HARDWARE_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prepare:mig": ("mig-mode", "gpu-instance", "compute-instance"),
    "prepare:sharing": ("time-slice", "memory-limit", "compute-mode", "mps"),
    "unprepare:sharing": (
        "release-mps",
        "reset-compute-mode",
        "clear-memory-limit",
        "reset-time-slice",
    ),
    "unprepare:mig": ("remove-compute-instance", "remove-gpu-instance", "mig-mode"),
}
# What the take-over does to files, for a checkpoint with two claims.
TAKE_OVER: Final = "take-over"
TAKE_OVER_PARTS: Final = ("record", "copy#3", "remove-checkpoint")
# Parts that only a claim with MPS has.
MPS_PARTS: Final = frozenset({"compute-mode", "mps", "release-mps", "reset-compute-mode"})
_PARTS: Final = {**FILE_PARTS, **HARDWARE_PARTS}
_WORDS: Final = {
    "mig-mode": "switch MIG mode",
    "gpu-instance": "make the GPU instance",
    "compute-instance": "make the compute instance",
    "remove-compute-instance": "remove the compute instance",
    "remove-gpu-instance": "remove the GPU instance",
    "time-slice": "set the time-slice",
    "reset-time-slice": "put the time-slice back",
    "memory-limit": "limit the Pod's memory",
    "clear-memory-limit": "take the limit away",
    "compute-mode": "set the compute mode",
    "reset-compute-mode": "put the compute mode back",
    "mps": "let a control daemon of MPS serve it",
    "release-mps": "release the control daemon",
    "write": "write and flush the new record",
    "rename": "rename it into place",
    "replace": "replace the common file",
    "replace#2": "replace the claim's file",
    "remove": "remove the record",
    "record": "write a claim's record",
    "copy#3": "keep a copy of the checkpoint",
    "remove-checkpoint": "remove the checkpoint",
}
_POINTS: Final = {
    "write": ("before-write", "before-rename"),
    "rename": ("before-rename", "after-rename"),
    "replace": ("before-replace", "after-replace"),
    "remove": ("before-remove", "after-remove"),
    "record": ("before-write", "after-rename"),
    "copy": ("before-write", "after-rename"),
    "remove-checkpoint": ("before-remove", "after-remove"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A step of Prepare or Unprepare, or the take-over, or one change of a file within it."""

    operation: str
    step: str
    part: str = ""

    @property
    def name(self) -> str:
        """`prepare:commit`, or `prepare:commit/rename`."""
        return self._scope + (f"/{self.part}" if self.part else "")

    @property
    def title(self) -> str:
        """Name for people."""
        if self.part:
            return f"… {_WORDS[self.part]}"
        return f"{self.operation.capitalize()}: {self.step}" if self.step else "Take-over of claims"

    @property
    def before(self) -> str:
        """Failpoint before it."""
        return self._point(0)

    @property
    def after(self) -> str:
        """Failpoint after it."""
        return self._point(1)

    @property
    def _scope(self) -> str:
        return f"{self.operation}:{self.step}" if self.step else self.operation

    def _point(self, position: int) -> str:
        name = self._scope
        if not self.part:
            return f"{('before', 'after')[position]}-{name}"
        part, mark, time = self.part.partition("#")
        points = _POINTS.get(part, (f"before-{part}", f"after-{part}"))
        return f"{name}/{points[position]}{mark}{time}"


ROWS: Final = (
    *(
        Row(operation, step, part)
        for operation, steps in STEPS.items()
        for step in steps
        for part in ("", *_PARTS.get(f"{operation}:{step}", ()))
    ),
    *(Row(TAKE_OVER, "", part) for part in ("", *TAKE_OVER_PARTS)),
)
