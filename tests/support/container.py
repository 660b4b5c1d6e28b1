"""Containers as a runtime leaves them to hooks: root folder, bundle, state on standard input."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_NATIVE = Path(__file__).parents[2] / "dra_driver/cdi/native"
_DLOPEN_CHECK = Path(__file__).parents[1] / "cluster/native/dlopen_check.c"
BUILT_HOOK = _NATIVE / "build/gpu-dra-cdi-hook"
# Nothing of the test's own environment; ldconfig and chroot are not on every user's PATH.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_c(target: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compile C files into a program or library; warnings are errors."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", *flags]
    done = subprocess.run(
        [*command, "-o", target, *sources], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


def compile_hook(folder: Path, *flags: str) -> Path:
    """Compile the hook with sanitizers, or without where the compiler has none (that is said)."""
    sources = sorted(_NATIVE.glob("*.c"))
    flags = ("-D_GNU_SOURCE", *flags)
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        compile_c(folder / "probe", [probe], *SANITIZERS)
    except AssertionError as error:
        print(f"the hook is tested without sanitizers: {error}")
        return compile_c(folder / "hook", sources, *flags)
    return compile_c(folder / "hook", sources, "-O1", *SANITIZERS, *flags)


def compile_driver_libraries(folder: Path, sonames: Mapping[str, str]) -> None:
    """Put shared libraries in place of a driver tree's text files: soname by file name."""
    for name, soname in sonames.items():
        (folder / name).write_bytes(_library(soname))


@cache
def _library(soname: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "library.c")
        source.write_text("int answer(void) { return 42; }\n")
        flags = ("-shared", "-fPIC", f"-Wl,-soname,{soname}")
        return compile_c(source.with_suffix(".so"), [source], *flags).read_bytes()


@cache
def _dlopen_check() -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        return compile_c(Path(scratch, "check"), [_DLOPEN_CHECK]).read_bytes()


def may_chroot() -> Sequence[str]:
    """Give the words before `chroot` that this user needs; skips where it is refused."""
    prefix = [] if os.geteuid() == 0 else ["unshare", "-r"]
    probe = [*prefix, "chroot", "/", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        pytest.skip(f"chroot is refused: {done.stderr.strip()}")
    return prefix


def mount_namespace() -> Sequence[str]:
    """Give the words that run a command in a mount namespace of its own; skips without."""
    command = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
    probe = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        pytest.skip(f"mounts in a namespace of one's own are refused: {done.stderr.strip()}")
    return command


@cache
def _loader_files() -> tuple[str, str]:
    """Path of this machine's dynamic loader and of its libc."""
    text = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    libc = re.search(r"libc\.so\.6 => (\S+)", text)
    loader = re.search(r"^\s+(/\S+) \(", text, re.MULTILINE)
    assert libc is not None, text
    assert loader is not None, text
    return loader.group(1), libc.group(1)


@dataclass
class Container:
    """A container's root folder and bundle below `folder`."""

    folder: Path

    @property
    def root(self) -> Path:
        """The root folder, which is not yet any process's root."""
        return self.folder / "bundle/rootfs"

    def create(self) -> "Container":
        """Make the folders and files that every runtime makes."""
        for name in ("etc", "dev", "proc", "tmp"):
            (self.root / name).mkdir(parents=True)
        self.write_config({"ociVersion": "1.2.0", "root": {"path": "rootfs", "readonly": True}})
        return self

    def write_config(self, config: object) -> None:
        """Write the bundle's config.json."""
        text = config if isinstance(config, str) else json.dumps(config)
        (self.folder / "bundle/config.json").write_text(text)

    def add_glibc(self, folder: str) -> None:
        """Put this machine's loader, libc and the dlopen check into an image of that layout.

        Debian's loader finds nothing by itself in folders such as /usr/lib64: there the image
        depends on its ld.so.cache, which the hook must not break.
        """
        loader, libc = _loader_files()
        for source, target in ((loader, loader), (libc, f"{folder}/libc.so.6")):
            path = self.root / target.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(source), path)
        check = self.root / "bin/dlopen-check"
        check.parent.mkdir(exist_ok=True)
        check.write_bytes(_dlopen_check())
        check.chmod(0o755)
        (self.root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        conf = self.root / "etc/ld.so.conf.d/image.conf"
        conf.parent.mkdir()
        conf.write_text(f"/{folder}\n")

    def ldconfig(self, *arguments: str) -> None:
        """Run this machine's ldconfig on the root folder."""
        command = [*may_chroot(), "ldconfig", "-r", str(self.root), *arguments]
        subprocess.run(command, check=True, env=ENVIRONMENT)

    def cache_lines(self, cache: str = "etc/ld.so.cache") -> list[str]:
        """Entries of an ld.so.cache as ldconfig itself prints them."""
        command = ["ldconfig", "-p", "-C", str(self.root / cache)]
        done = subprocess.run(
            command, capture_output=True, errors="replace", check=True, env=ENVIRONMENT
        )
        return [line.strip() for line in done.stdout.splitlines() if " => " in line]

    def mount(self, edits: dict[str, Any]) -> None:
        """Copy what a runtime would mount."""
        for mount in edits["mounts"]:
            target = self.root / mount["containerPath"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(mount["hostPath"], target)

    def state(self) -> bytes:
        """Give what a runtime writes on a hook's standard input (OCI runtime.md, State)."""
        state = {
            "ociVersion": "1.2.0",
            "id": "c1",
            "status": "creating",
            "pid": 1,
            "annotations": {"bundle": "/not/this", "io.kubernetes.cri.sandbox-name": 'a"\\u00e9'},
            "bundle": str(self.folder / "bundle"),
        }
        return json.dumps(state).encode()

    def run_hook(
        self, program: str | Path, *arguments: str, prefix: Sequence[str] = (), state: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """Run a hook as the runtime does, with nothing in its environment."""
        done = subprocess.run(
            [*prefix, str(program), *arguments],
            input=state or self.state(),
            capture_output=True,
            timeout=60,
            check=False,
            env=ENVIRONMENT,
        )
        text = done.stderr.decode(errors="replace")
        assert "Sanitizer" not in text, text
        assert "runtime error" not in text, text
        assert done.returncode in (0, 1, 2), (done.returncode, text)
        return subprocess.CompletedProcess(done.args, done.returncode, "", text)

    def run_hooks(self, edits: dict[str, Any]) -> None:
        """Run the hooks of CDI edits; each must succeed without a word."""
        for hook in edits["hooks"]:
            done = self.run_hook(hook["path"], *hook["args"][1:])
            assert (done.returncode, done.stderr) == (0, "")

    def dlopen(self, *libraries: str) -> dict[str, str]:
        """Open libraries in the container: file by name, or the loader's words."""
        done = subprocess.run(
            [*may_chroot(), "chroot", str(self.root), "/bin/dlopen-check", *libraries],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert done.returncode in (0, 1), done.stderr
        lines = (line.split(" ", 1) for line in done.stdout.splitlines())
        return dict(lines)
