"""Command line: `python -m tests.cluster run | check | build | shell`."""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from tests.cluster import binaries, debian, driver_image, images, preflight, sandbox
from tests.cluster.cache import HarnessError, cache_root, say
from tests.cluster.mounts import STATE
from tests.cluster.settings import NODE, VARIABLE, Settings, parse_gates

_FOLDER = Path(__file__).parent
_EXIT_CANNOT_RUN = 3
_TEST_SECONDS = 600  # of one test with its fixtures: the first one boots the cluster


def main() -> int:
    """Run one command and return its exit status."""
    options, rest = _parser().parse_known_args()
    if rest and options.command != "run":
        _parser().error(f"unknown arguments: {' '.join(rest)}")
    try:
        if options.command == "build":
            _prepare(options)
            return 0
        reasons = preflight.reasons()
        for reason in reasons:
            print(f"real cluster: {reason}", file=sys.stderr)
        if reasons or options.command == "check":
            return _EXIT_CANNOT_RUN if reasons else 0
        return _in_sandbox(options, rest)
    except HarnessError as error:
        print(f"real cluster: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say whether a cluster can run here; 3 if it can't")
    texts = {
        "build": "put what a cluster is made of into the cache",
        "run": "run tests in a sandbox; further arguments are pytest's",
        "shell": "open a shell in a sandbox with a running cluster",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        command.add_argument("--version", default=binaries.DEFAULT_VERSION, help="of Kubernetes")
        command.add_argument(
            "--feature-gates", default="", metavar="NAME=true,…", help="for all its parts"
        )
        command.add_argument(
            "--runtime-config", default="", metavar="GROUP/VERSION=true,…", help="more APIs"
        )
    return parser


def _prepare(options: argparse.Namespace) -> Settings:
    gates = parse_gates(options.feature_gates)
    packages = debian.packages()
    archives = images.archives()
    programs = binaries.build(options.version)
    return Settings(
        version=options.version,
        feature_gates=gates,
        runtime_config=tuple(filter(None, options.runtime_config.split(","))),
        programs={name: os.fspath(path) for name, path in programs.items()},
        packages=os.fspath(packages),
        images=tuple(os.fspath(path) for path in archives),
        driver_images={tag: os.fspath(path) for tag, path in driver_image.archives().items()},
    )


def _in_sandbox(options: argparse.Namespace, rest: list[str]) -> int:
    settings = _prepare(options)
    env = {
        VARIABLE: settings.dump(),
        "GPU_DRA_DRIVER_CACHE": os.fspath(cache_root()),
        "HOME": f"{STATE}/home",
        "TMPDIR": f"{STATE}/tmp",
    }
    module = "pytest" if options.command == "run" else "tests.cluster.shell"
    arguments = _pytest_arguments(rest) if options.command == "run" else []
    name = f"k8s-{options.version}{'-gates' if options.feature_gates else ''}"
    logs = cache_root() / "logs" / name
    shutil.rmtree(logs, ignore_errors=True)
    started = time.monotonic()
    argv = [sys.executable, "-m", module, *arguments]
    status = sandbox.run(sandbox.Command(argv, env, NODE, logs))
    minutes = (time.monotonic() - started) / 60
    say(f"Kubernetes {options.version}: {minutes:.1f} minutes, exit status {status}")
    return status


def _pytest_arguments(rest: list[str]) -> list[str]:
    """Run this folder unless the arguments name something else, and write no cache."""
    named = any(_FOLDER.name in item for item in rest if not item.startswith("-"))
    fixed = ["-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}"]
    return [*fixed, *rest, *([] if named else [os.fspath(_FOLDER)])]


if __name__ == "__main__":
    sys.exit(main())
