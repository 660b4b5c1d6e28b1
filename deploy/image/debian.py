"""Packages of Debian's release that this machine runs: fetched, not installed."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def download(packages: Sequence[str], into: Path) -> None:
    """Put the archives (`NAME_VERSION_ARCHITECTURE.deb`) into an empty folder.

    With package lists of our own: the machine's may be missing or old, and stay as they are.
    Raises RuntimeError with what apt-get says.
    """
    for part in ("lists/partial", "cache/archives/partial"):
        (into / part).mkdir(parents=True)
    options = [
        "--quiet=2",
        "--option=APT::Sandbox::User=",
        f"--option=Dir::State::Lists={into}/lists",
        f"--option=Dir::Cache={into}/cache",
    ]
    for action in (["update"], ["download", *packages]):
        argv = ["apt-get", *options, *action]
        done = subprocess.run(argv, check=False, cwd=into, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"apt-get {action[0]}: {done.stderr.strip()}")
