"""Programs that are run to their end."""

import pytest

from dra_driver.host import programs_run, run_program
from dra_driver.model.errors import DriverFilesMissing, HardwareBusy


def test_what_is_said_is_read_and_what_is_written_is_kept() -> None:
    done = run_program(["/bin/sh", "-c", "cat; echo wrong >&2; exit 3"], {}, 60, "line\n")
    assert (done.status, done.output, done.words) == (3, "line\nwrong\n", "wrong")


def test_nothing_is_said_by_default() -> None:
    before = programs_run()
    assert run_program(["/bin/cat"], {}, 60).output == ""
    assert programs_run() - before == 1


def test_a_program_that_does_not_read_may_end() -> None:
    assert run_program(["/bin/true"], {}, 60, "x" * 10**6).status == 0


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(HardwareBusy, match=r"/bin/sleep did not end within 0\.1 s"):
        run_program(["/bin/sleep", "600"], {}, 0.1)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(DriverFilesMissing, match="can't be run: No such file"):
        run_program(["/nowhere/program"], {}, 1)
