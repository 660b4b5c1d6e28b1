"""Debian packages that the cluster uses, unpacked into the cache: nothing is installed."""

import hashlib
import platform
import tempfile
from pathlib import Path

from deploy.image.debian import download
from tests.cluster.cache import HarnessError, artifact, run, say

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
        try:
            download(PACKAGES, scratch)
        except RuntimeError as error:
            raise HarnessError(str(error)) from error
        for package in PACKAGES:
            (archive,) = scratch.glob(f"{package}_*.deb")
            run(["dpkg-deb", "-x", archive, folder / package], what=f"unpacking of {package}")
