"""Every step of Prepare and Unprepare fails in every way, and the node is well afterwards."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver import mig, sharing
from dra_driver.host import failpoints, files
from tests.faults.cells import CELLS
from tests.faults.faults import FAULTS, HANGS
from tests.faults.rows import COLUMNS, FILE_PARTS, HARDWARE_PARTS, ROWS, Row
from tests.faults.scene import Scene
from tests.faults.table import PAGE, page
from tests.support.engine import EngineBed
from tests.support.inventories import gpu, inventory

_FAILPOINT = re.compile(r'failpoint\("([^"]+)"\)')
_results: dict[tuple[str, str], str] = {}


class Stage:
    """Keeps one scene from cell to cell; one that went wrong is not used again."""

    def __init__(self) -> None:
        self._scene: Scene | None = None

    def play(self, cell: Callable[[Scene, Row], str], row: Row) -> str:
        """Run a cell."""
        scene = self._scene = self._scene or Scene()
        try:
            return cell(scene, row)
        except BaseException:
            self._scene = None
            scene.show_logs()
            scene.abandon()
            raise

    def close(self) -> None:
        """Stop the last scene."""
        if self._scene is not None:
            self._scene.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_afterwards_all_works_and_nothing_is_left(stage: Stage, row: Row, column: str) -> None:
    _results[row.name, column] = stage.play(CELLS[column], row)


@pytest.mark.last
def test_the_page_of_the_documentation_is_what_was_found() -> None:
    missing = [(row.name, c) for row in ROWS for c in COLUMNS if (row.name, c) not in _results]
    if missing:
        pytest.skip(f"{len(missing)} cells failed or were not run, so the page is not known")
    found, shown = page(_results), PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(found)
    assert found == shown, f"{PAGE.name} was not what this run found; it has been written anew"


def test_every_step_has_a_fault_and_no_fault_is_without_a_step() -> None:
    names = {row.name for row in ROWS}
    assert set(FAULTS) == names
    assert set(HANGS) <= names
    assert tuple(CELLS) == COLUMNS


def test_every_change_of_a_file_in_a_step_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: dict[str, int] = {}

    def note(name: str) -> None:
        scope = failpoints._SCOPE.get()
        if scope:
            point = f"{scope}/{name}"
            passed[point] = passed.get(point, 0) + 1

    monkeypatch.setattr(files, "failpoint", note)
    bed = EngineBed(tmp_path, inventory(gpu(0))).start()
    passed.clear()
    claim = bed.claim("mine", "gpu-0")
    bed.prepare(claim)
    bed.unprepare(claim)
    found = {
        f"{point}#{time}" if time > 1 else point
        for point, times in passed.items()
        for time in range(1, times + 1)
    }
    # Whatever was set aside of a claim is removed with its record; there is nothing mostly.
    found -= {"unprepare:forget/before-remove#2", "unprepare:forget/after-remove#2"}
    rows = [row for row in ROWS if row.part in FILE_PARTS.get(f"{row.operation}:{row.step}", ())]
    assert found == {point for row in rows for point in (row.before, row.after)}


def test_every_change_of_the_hardware_in_a_step_has_a_row() -> None:
    sources = [path for each in (mig, sharing) for path in Path(each.__path__[0]).glob("*.py")]
    found = {name for path in sources for name in _FAILPOINT.findall(path.read_text())}
    parts = {part for parts in HARDWARE_PARTS.values() for part in parts}
    assert found == {f"{when}-{part}" for part in parts for when in ("before", "after")}
