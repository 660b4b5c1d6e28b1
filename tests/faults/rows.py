"""Rows and columns of the fault matrix, generated from the steps of Prepare and Unprepare."""

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
}
_POINTS: Final = {
    "write": ("before-write", "before-rename"),
    "rename": ("before-rename", "after-rename"),
    "replace": ("before-replace", "after-replace"),
    "remove": ("before-remove", "after-remove"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A step of Prepare or Unprepare, or one change of a file within it."""

    operation: str
    step: str
    part: str = ""

    @property
    def name(self) -> str:
        """`prepare:commit`, or `prepare:commit/rename`."""
        return f"{self.operation}:{self.step}" + (f"/{self.part}" if self.part else "")

    @property
    def title(self) -> str:
        """Name for people."""
        return f"… {_WORDS[self.part]}" if self.part else f"{self.operation.title()}: {self.step}"

    @property
    def before(self) -> str:
        """Failpoint before it."""
        return self._point(0)

    @property
    def after(self) -> str:
        """Failpoint after it."""
        return self._point(1)

    def _point(self, position: int) -> str:
        name = f"{self.operation}:{self.step}"
        if not self.part:
            return f"{('before', 'after')[position]}-{name}"
        part, mark, time = self.part.partition("#")
        points = _POINTS.get(part, (f"before-{part}", f"after-{part}"))
        return f"{name}/{points[position]}{mark}{time}"


ROWS: Final = tuple(
    Row(operation, step, part)
    for operation, steps in STEPS.items()
    for step in steps
    for part in ("", *_PARTS.get(f"{operation}:{step}", ()))
)
