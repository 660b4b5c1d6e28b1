"""Run every level of tests and sum them up: `python -m tests.run --cluster=no|auto|required`."""

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree as ET

from tests.cluster.variants import VARIANTS, Variant

_ROOT = Path(__file__).resolve().parent.parent
_RESULTS = _ROOT / "build" / "test-results"
_BIN = Path(sys.executable).parent
_VERSIONS = {variant.version for variant in VARIANTS}
_SIDE_BY_SIDE = ("--numprocesses=2", "--dist=loadfile")  # a node's tests wait more than they work
_NO_CLUSTER_HERE = 3  # exit status of `python -m tests.cluster check`


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a level; `report` is where pytest leaves its counts."""

    name: str
    argv: Sequence[str]
    report: Path | None = None


@dataclass(slots=True)
class Counts:
    """What was found, in pytest's words."""

    failed: int = 0
    passed: int = 0
    skipped: int = 0
    errors: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts of another run."""
        self.failed += other.failed
        self.passed += other.passed
        self.skipped += other.skipped
        self.errors += other.errors

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return not self.failed and not self.errors

    def line(self, seconds: float) -> str:
        """Give the last line of a pytest run."""
        words = [
            f"{count} {word}"
            for count, word in (
                (self.failed, "failed"),
                (self.passed, "passed"),
                (self.skipped, "skipped"),
                (self.errors, "error" if self.errors == 1 else "errors"),
            )
            if count
        ]
        return f"==== {', '.join(words) or 'no tests ran'} in {seconds:.1f}s ===="


@dataclass(slots=True)
class Run:
    """All levels that have run so far."""

    seed: int
    total: Counts = field(default_factory=Counts)
    minutes: dict[str, float] = field(default_factory=dict)
    output: TextIO | None = None  # None: the process's own

    def level(self, name: str, steps: Sequence[Step]) -> None:
        """Run all steps of a level, also after a failure: it shows everything at once."""
        begin = time.monotonic()
        for step in steps:
            print(f"\n---- {name}: {step.name}", file=self.output, flush=True)
            self.total.add(run_step(step, self.output))
        self.minutes[name] = (time.monotonic() - begin) / 60
        print(f"---- {name}: {self.minutes[name]:.1f} minutes", file=self.output, flush=True)

    def add(self, other: "Run") -> None:
        """Add what another run has found beside this one."""
        self.total.add(other.total)
        self.minutes.update(other.minutes)

    def pytest(self, name: str, *paths: str, more: Sequence[str] = ()) -> Step:
        """Make a step of the tests in `paths`."""
        report = _RESULTS / f"{name}.xml"
        options = ("-q", f"--randomly-seed={self.seed}", f"--junit-xml={report}", *more)
        return Step(" ".join(paths), (sys.executable, "-m", "pytest", *options, *paths), report)


def main() -> int:
    """Run the levels in order; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", allow_abbrev=False)
    parser.add_argument(
        "--cluster",
        choices=("no", "auto", "required"),
        default="no",
        help="real clusters: auto runs them where it is possible",
    )
    parser.add_argument("--seed", type=int, help="of the random order, to repeat a run")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed  # noqa: S311
    print(f"random order of tests: --seed={seed}", flush=True)
    run = Run(seed)
    begin = time.monotonic()
    run.level("check", [*_lint(), run.pytest("unit", "tests/unit")])
    run.level("node", [run.pytest("node", "tests/simulator", "tests/node", more=_SIDE_BY_SIDE)])
    run.level("gpu", [run.pytest("gpu", "tests/gpu")])
    if (_ROOT / "tests/faults").is_dir():
        run.level("faults", [run.pytest("faults", "tests/faults")])
    _cluster(run, options.cluster)
    for name, minutes in run.minutes.items():
        print(f"{name:18} {minutes:5.1f} minutes")
    print(run.total.line(time.monotonic() - begin), flush=True)
    return 0 if run.total.good else 1


def run_step(step: Step, output: TextIO | None = None) -> Counts:
    """Run one command. A failure that no count tells of is an error of its own."""
    if step.report is not None:
        step.report.parent.mkdir(parents=True, exist_ok=True)
        step.report.unlink(missing_ok=True)
    status = subprocess.run(
        step.argv, cwd=_ROOT, check=False, stdout=output, stderr=output and subprocess.STDOUT
    ).returncode
    counts = read_report(step.report) if step.report is not None else Counts()
    if status and counts.good:
        print(f"---- {step.name}: exit status {status}", file=output, flush=True)
        counts.errors += 1
    return counts


def read_report(path: Path) -> Counts:
    """Count the tests of a JUnit report; one that is missing counts as nothing."""
    counts = Counts()
    try:
        suites = ET.parse(path).getroot().iter("testsuite")  # noqa: S314 - written by our own run
    except (OSError, ET.ParseError):
        return counts
    for suite in suites:
        tests, failed, errors, skipped = (
            int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")
        )
        passed = tests - failed - errors - skipped
        counts.add(Counts(failed=failed, passed=passed, skipped=skipped, errors=errors))
    return counts


def _lint() -> list[Step]:
    return [
        Step("ruff", (str(_BIN / "ruff"), "check", ".")),
        Step("format", (str(_BIN / "ruff"), "format", "--check", ".")),
        Step("spelling", (str(_BIN / "codespell"),)),
        Step("types", (str(_BIN / "mypy"),)),
        Step("layers", (str(_BIN / "lint-imports"),)),
    ]


def _cluster(run: Run, wish: str) -> None:
    """Run the real cluster if it is wished, can be had, and all before it was good."""
    if wish == "no":
        print("\n---- cluster: left out (--cluster=no)", flush=True)
        return
    if not run.total.good:
        print("\n---- cluster: left out, since an earlier level failed", flush=True)
        return
    check = (sys.executable, "-m", "tests.cluster", "check")
    if wish == "auto" and subprocess.run(check, cwd=_ROOT, check=False).returncode == (
        _NO_CLUSTER_HERE
    ):
        print("\n---- cluster: left out for the reasons above (--cluster=auto)", flush=True)
        return
    run.level("cluster build", [_build_step(version) for version in sorted(_VERSIONS)])
    newest, *older = VARIANTS
    _RESULTS.mkdir(parents=True, exist_ok=True)
    with (_RESULTS / "older-clusters.log").open("w+") as log, ThreadPoolExecutor(1) as executor:
        # Side by side, since they wait more than they work. Each has a sandbox of its own.
        beside = Run(run.seed, output=log)
        others = executor.submit(_clusters, beside, older)
        _clusters(run, [newest])
        others.result()
        log.seek(0)
        print(log.read(), flush=True)
    run.add(beside)


def _clusters(run: Run, variants: Sequence[Variant]) -> None:
    for variant in variants:
        run.level(f"cluster {variant.name}", [_cluster_step(variant)])


def _build_step(version: str) -> Step:
    """Make a step that fills the cache, which takes minutes the first time."""
    command = (sys.executable, "-m", "tests.cluster", "build", f"--version={version}")
    return Step(f"Kubernetes {version}", command)


def _cluster_step(variant: Variant) -> Step:
    report = _RESULTS / f"cluster-{variant.name}.xml"
    command = (sys.executable, "-m", "tests.cluster", "run", *variant.arguments)
    return Step(f"Kubernetes {variant.version}", (*command, "-q", f"--junit-xml={report}"), report)


if __name__ == "__main__":
    sys.exit(main())
