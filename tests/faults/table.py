"""The fault matrix as a page of the documentation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.faults.faults import FAULTS, HANGS
from tests.faults.rows import COLUMNS, ROWS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
_INTRODUCTION: Final = """\
# What happens when something fails

This page is written by `python -m pytest tests/faults`, which hurts the real `dra-driver serve` in
every step of Prepare and Unprepare, and in every change of a file within a step. Rows come from the
list of steps in [`dra_driver/claims/steps.py`](../dra_driver/claims/steps.py): a step without cases
fails a test, and so does this page when it is not what the tests found.

In each cell, afterwards: Prepare and Unprepare work and may be called twice; no CDI file, record,
lock or temporary file is left; a claim on another GPU has not been touched; the hardware is set as
before; the slices are complete.

- **error once**: the step fails once. **error for ever**: it fails until somebody mends the cause.
  A word such as `StorageFailed` is the reason that people read in the Pod's events. A call that
  fails takes back what it began; where the same cause keeps it from that, the next one does.
- **hang**: the step does not come back until the kubelet has given up its call and has asked for
  Unprepare; then it goes on. Where nothing is named for it below, the whole process is halted.
- **kill -9 before**: the process dies just before the step, and the Pod is deleted: Unprepare comes
  first. **kill -9 after**: it dies just after, and the kubelet goes on with Prepare.
- **reboot**: it dies just after the step with the node; the CDI folder is empty afterwards.

The last rows are the take-over of claims that NVIDIA's own driver has prepared
([more](from-the-peer.md)), which a start begins with. What they have is given to nobody else, and
they end well. An error lasts until its cause is gone; its word is what other claims are told.
"""
_WAYS: Final = "\n## How the steps are made to fail\n"


def page(results: Mapping[tuple[str, str], str]) -> str:
    """Text of the page; `results` are the words of each cell by row and column."""
    lines = [_INTRODUCTION, f"| step | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in ROWS:
        cells = (results[row.name, column] for column in COLUMNS)
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    lines += [_WAYS, "| step | error | hang |", "|---|---|---|"]
    for row in ROWS:
        hang = HANGS.get(row.name)
        lines.append(
            f"| {row.title} | {FAULTS[row.name].words} | "
            f"{hang.words if hang else 'the process is halted'} |"
        )
    return "\n".join(lines) + "\n"
