"""Debian packages that the cluster uses, unpacked into the cache: nothing is installed."""

import hashlib
import platform
import tempfile
from pathlib import Path

from tests.cluster.cache import artifact, run, say

PACKAGES = (
    "busybox-static",  # the shell of all images
    "containernetworking-plugins",
    "libc-bin",  # ldconfig, for the glibc images
    "libc6",  # the glibc images
    "libseccomp2",  # runc needs it
    "openssl",  # the cluster's certificates
    "runc",  # a build without the seccomp tag fails, so Debian's
)


def packages() -> Path:
    """Return the folder that holds each package's files in a folder of its name."""
    release = platform.freedesktop_os_release()
    source = f"{release.get('ID')} {release.get('VERSION_ID')} {platform.machine()}"
    key = hashlib.sha256(repr((source, PACKAGES)).encode()).hexdigest()
    return artifact("debian", key, _download)


def _download(folder: Path) -> None:
    say(f"Debian packages: downloading {', '.join(PACKAGES)}")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        # Package lists of our own: the machine's may be missing or old, and stay as they are.
        for part in ("lists/partial", "cache/archives/partial"):
            (scratch / part).mkdir(parents=True)
        options = [
            "--quiet=2",
            "--option=APT::Sandbox::User=",
            f"--option=Dir::State::Lists={scratch}/lists",
            f"--option=Dir::Cache={scratch}/cache",
        ]
        run(["apt-get", *options, "update"], what="apt-get update", cwd=scratch)
        run(["apt-get", *options, "download", *PACKAGES], what="apt-get download", cwd=scratch)
        for package in PACKAGES:
            (archive,) = scratch.glob(f"{package}_*.deb")
            run(["dpkg-deb", "-x", archive, folder / package], what=f"unpacking of {package}")
