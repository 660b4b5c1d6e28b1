"""The runner counts what really happened, and nothing that failed ends well."""

import sys
from pathlib import Path
from typing import TextIO

import pytest

from tests import run
from tests.run import Counts, Step


def pytest_step(folder: Path, text: str) -> Step:
    (folder / "test_sample.py").write_text(text)
    report = folder / "results" / "sample.xml"
    argv = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
            f"--rootdir={folder}", f"--junit-xml={report}", str(folder))  # fmt: skip
    return Step("sample", argv, report)


def test_tests_are_counted_from_the_report(tmp_path: Path) -> None:
    step = pytest_step(
        tmp_path,
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): pass\n"
        "def test_c(): assert False\n"
        "def test_d(): pytest.skip('no reason')\n"
        "def test_e(nothing): pass\n",
    )
    counts = run.run_step(step)
    assert counts == Counts(failed=1, passed=2, skipped=1, errors=1)
    assert counts.line(1.25) == "==== 1 failed, 2 passed, 1 skipped, 1 error in 1.2s ===="


def test_a_run_without_tests_is_an_error(tmp_path: Path) -> None:
    assert run.run_step(pytest_step(tmp_path, "")) == Counts(errors=1)


def test_a_run_that_dies_is_an_error_whatever_an_older_report_says(tmp_path: Path) -> None:
    step = pytest_step(tmp_path, "def test_a(): pass\n")
    assert run.run_step(step) == Counts(passed=1)
    step = pytest_step(tmp_path, "import os\ndef test_a(): os._exit(1)\n")
    assert run.run_step(step) == Counts(errors=1)


def test_a_command_that_fails_is_an_error() -> None:
    assert run.run_step(Step("true", ("true",))) == Counts()
    assert run.run_step(Step("false", ("false",))) == Counts(errors=1)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (Counts(passed=412, skipped=3), "412 passed, 3 skipped"),
        (Counts(passed=1, errors=2), "1 passed, 2 errors"),
        (Counts(), "no tests ran"),
    ],
)
def test_the_last_line_reads_as_pytests_own(counts: Counts, words: str) -> None:
    assert counts.line(512.34) == f"==== {words} in 512.3s ===="


def test_the_cluster_waits_for_earlier_levels(capsys: pytest.CaptureFixture[str]) -> None:
    failed = run.Run(seed=1, total=Counts(failed=1))
    run._cluster(failed, "required")
    assert "an earlier level failed" in capsys.readouterr().out
    assert failed.minutes == {}


def test_every_cluster_has_a_report_and_minutes_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[Step] = []

    def fail(step: Step, output: TextIO | None) -> Counts:
        steps.append(step)
        return Counts(failed=1)

    monkeypatch.setattr(run, "run_step", fail)
    counted = run.Run(seed=1)
    run._cluster(counted, "required")
    assert list(counted.minutes) == [
        "cluster build",
        "cluster 1.37",
        "cluster 1.34",
        "cluster 1.34-gates",
    ]
    reports = [step.report for step in steps if step.report is not None]
    assert len(set(reports)) == len(reports) == 3
    assert counted.total.failed == len(steps)
    assert "cluster 1.34-gates: 0.0 minutes" in capsys.readouterr().out
