"""Assembles the root file systems of the image from Debian's and Python's packages.

    python -m deploy.image.assemble base ROOT          Debian's and the locked Python packages
    python -m deploy.image.assemble driver ROOT WHEEL  the driver itself

Two layers, since the first one rarely changes. Both are unpacked here, for the machine's own
architecture, and nothing of either is configured by a package's scripts: no shell, package manager
or compiler comes along. Each layer carries its bill of materials (`sbom`). Needs Debian 12 with
Python 3.11 and pip, and root for `chroot`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from deploy.image import debian, sbom

PACKAGES = (
    "gcc-12-base",  # licence of the next two
    "libgcc-s1",
    "libstdc++6",  # grpcio
    "base-files",  # /etc/os-release tells scanners what this is
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)
_MERGED = ("bin", "lib", "lib64", "sbin")
_SITE = "usr/lib/python3/dist-packages"
_PYTHON = "/usr/bin/python3.11"
_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements" / "image.txt"
_PROGRAM = f"""#!{_PYTHON} -I
from dra_driver.cli import main

main()
"""
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# What no program of the image reads. Licences (usr/share/doc/*/copyright) stay.
_UNUSED = (
    "boot",
    "etc/debian_version",
    "etc/default",
    "etc/dpkg",
    "etc/init.d",
    "etc/issue*",
    "etc/profile.d",
    "etc/python3.11",
    "etc/skel",
    "etc/update-motd.d",
    "home",
    "usr/lib/*-linux-gnu/gconv",
    "usr/lib/binfmt.d",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/test",
    "usr/lib/valgrind",
    "usr/share/applications",
    "usr/share/base-files",
    "usr/share/binfmts",
    "usr/share/dict",
    "usr/share/gcc",
    "usr/share/gdb",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/misc",
    "usr/share/pixmaps",
    "var",
)
_FOLDERS = ("dev", "proc", "run", "sys", "tmp", "var/lib/dpkg/status.d")
# Modules are compiled here, since the root file system is read-only later. Those that are never
# imported, requests being raw JSON, are not worth the space.
_NEVER_IMPORTED = r"kubernetes/(client/(api|models)|.*_test\.py|e2e_test)|/test/"
_COMPILED = ("-q", "-x", _NEVER_IMPORTED, "--invalidation-mode=unchecked-hash")


def main() -> int:
    """Assemble one layer."""
    parser = argparse.ArgumentParser(prog="deploy.image.assemble")
    layers = parser.add_subparsers(dest="layer", required=True)
    base = layers.add_parser("base", help="Debian's and Python's packages")
    driver = layers.add_parser("driver", help="the driver, above them")
    base.add_argument("root", type=Path, help="an empty or new folder")
    driver.add_argument("root", type=Path, help="an empty or new folder")
    driver.add_argument("wheel", type=Path)
    options = parser.parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    if any(options.root.iterdir()):
        parser.error(f"{options.root} is not empty")
    if options.layer == "base":
        assemble_base(options.root)
    else:
        assemble_driver(options.root, options.wheel.resolve())
    return 0


def assemble_base(root: Path) -> None:
    """Lay out what the driver needs to run."""
    for folder in _MERGED:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    described = _unpack(root)
    documentation = (path for path in root.glob("usr/share/doc/*/*") if path.name != "copyright")
    _remove([*documentation, *(path for pattern in _UNUSED for path in root.glob(pattern))])
    _pip(root, "--require-hashes", f"--requirement={_REQUIREMENTS}")
    _remove([root / _SITE / "kubernetes/aio"])  # a second client, 45 MB
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for package, fields in described.items():  # where scanners look in images without dpkg
        (root / "var/lib/dpkg/status.d" / package).write_bytes(fields)
    (root / "tmp").chmod(0o1777)
    (root / "usr/bin/python3").symlink_to("python3.11")
    _run("ldconfig", "-X", "-r", root)
    folders = ("/usr/lib/python3.11", f"/{_SITE}")
    _run("chroot", root, _PYTHON, "-m", "compileall", *_COMPILED, *folders)
    sbom.write(root, "base", root / _SITE)


def assemble_driver(root: Path, wheel: Path) -> None:
    """Lay out the driver."""
    _pip(root, "--no-deps", "--no-index", str(wheel))
    program = root / "usr/bin/dra-driver"
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    if sys.version_info[:2] == (3, 11):  # by another Python it would be ignored
        relative = ("-s", root, "-p", "/")
        _run(sys.executable, "-m", "compileall", *_COMPILED, *relative, root / _SITE)
    sbom.write(root, "driver", root / _SITE)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # folders of documentation may be links to each other


def _unpack(root: Path) -> dict[str, bytes]:
    """Download Debian's packages, unpack them, and tell what they are."""
    described = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        debian.download(PACKAGES, scratch)
        for package in PACKAGES:
            (archive,) = scratch.glob(f"{package}_*.deb")
            content = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", archive], check=True, stdout=subprocess.PIPE
            ).stdout
            # Folders that are links here (merged /usr) stay links.
            subprocess.run(
                ["tar", "--extract", "--keep-directory-symlink", f"--directory={root}"],
                check=True,
                input=content,
            )
            described[package] = subprocess.run(
                ["dpkg-deb", "--field", archive], check=True, stdout=subprocess.PIPE
            ).stdout
    return described


def _pip(root: Path, *what: str) -> None:
    """Install wheels for the image's Python, whatever the version of the machine's is."""
    target = ["--python-version=3.11", "--only-binary=:all:", f"--target={root / _SITE}"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile", "--root-user-action=ignore"]
    _run(sys.executable, "-m", "pip", "install", *quiet, *target, *what)
    shutil.rmtree(root / _SITE / "bin", ignore_errors=True)  # programs for the machine's Python


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
