"""The images that the cluster's Pods run: made here, since no registry is needed or reached.

- `pause` holds a Pod's namespaces.
- `busybox` is static: it runs whatever libraries a node injects.
- `debian` and `lib64` hold glibc, in Debian's folders and as distributions with /usr/lib64 do:
  there the loader looks nowhere else, so what a node injects in Debian's folders is found
  through ld.so.cache only. Both have `dlopen-check LIBRARY...`.
"""

import hashlib
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tests.cluster import debian, oci
from tests.cluster.cache import HarnessError, artifact, run, say

REGISTRY = "cluster.test"
PAUSE = f"{REGISTRY}/pause:1"
BUSYBOX = f"{REGISTRY}/busybox:1"
DEBIAN = f"{REGISTRY}/debian:1"
LIB64 = f"{REGISTRY}/lib64:1"

_NATIVE = Path(__file__).parent / "native"
_MULTIARCH = "x86_64-linux-gnu"
_LOADER = "ld-linux-x86-64.so.2"


def archives() -> list[Path]:
    """Return the OCI archives of all images, making them where the cache lacks them."""
    packages = debian.packages()
    digest = hashlib.sha256((packages / ".key").read_bytes())
    for source in (Path(__file__), Path(oci.__file__), *sorted(_NATIVE.iterdir())):
        digest.update(source.read_bytes())
    folder = artifact("images", digest.hexdigest(), lambda into: _make(packages, into))
    return sorted(folder.glob("*.tar"))


def _make(packages: Path, into: Path) -> None:
    say("images: making pause, busybox, debian and lib64")
    with tempfile.TemporaryDirectory(dir=into) as name:
        scratch = Path(name)
        pause = _compile(scratch / "pause", _NATIVE / "pause.c", "-static")
        check = _compile(scratch / "dlopen-check", _NATIVE / "dlopen_check.c", "-ldl")
        roots = {
            PAUSE: (_pause(pause), "/pause"),
            BUSYBOX: (_busybox(packages, "bin"), "/bin/sh"),
            DEBIAN: (_debian(packages, check), "/bin/sh"),
            LIB64: (_lib64(packages, check), "/bin/sh"),
        }
        for image, (root, command) in roots.items():
            short = image.rpartition("/")[2].partition(":")[0]
            oci.write_archive(into / f"{short}.tar", image, root, [command])


def _compile(program: Path, source: Path, *options: str) -> Path:
    run(["cc", "-O2", "-s", "-o", program, source, *options], what=f"cc {source.name}")
    return program


def _pause(program: Path) -> oci.Root:
    root = oci.Root()
    root.file("pause", program)
    return root


def _busybox(packages: Path, programs: str) -> oci.Root:
    root = oci.Root()
    for folder in ("dev", "etc", "proc", "sys", "tmp"):
        root.folder(folder)
    busybox = packages / "busybox-static" / "bin" / "busybox"
    root.file(f"{programs}/busybox", busybox)
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for applet in applets.stdout.split():
        if applet != "busybox":
            root.link(f"{programs}/{applet}", "busybox")
    return root


def _debian(packages: Path, check: Path) -> oci.Root:
    root = _glibc(packages, check, f"usr/lib/{_MULTIARCH}")
    root.link(f"usr/lib64/{_LOADER}", f"../lib/{_MULTIARCH}/{_LOADER}")
    root.file("etc/ld.so.conf", packages / "libc-bin" / "etc" / "ld.so.conf", 0o644)
    for package in ("libc-bin", "libc6"):
        for path in (packages / package / "etc" / "ld.so.conf.d").iterdir():
            root.file(f"etc/ld.so.conf.d/{path.name}", path, 0o644)
    return _with_loader_cache(root, packages)


def _lib64(packages: Path, check: Path) -> oci.Root:
    root = _glibc(packages, check, "usr/lib64")
    loader = (packages / "libc6" / "lib" / _MULTIARCH / _LOADER).read_bytes()
    debian_folder = f"/lib/{_MULTIARCH}".encode()
    if loader.count(debian_folder) < 2:
        raise HarnessError(f"{_LOADER}: its built-in search path is not where it was")
    own_folder = b"/lib64".ljust(len(debian_folder), b"/")
    root.file(f"usr/lib64/{_LOADER}", loader.replace(debian_folder, own_folder))
    root.folder("usr/lib")
    root.folder("etc/ld.so.conf.d")
    root.file("etc/ld.so.conf", b"include ld.so.conf.d/*.conf\n/usr/lib64\n", 0o644)
    return _with_loader_cache(root, packages)


def _glibc(packages: Path, check: Path, libraries: str) -> oci.Root:
    """Lay out a merged /usr, busybox, glibc with its libraries in this folder, and dlopen-check."""
    root = _busybox(packages, "usr/bin")
    for merged in ("bin", "lib", "lib64", "sbin"):
        root.link(merged, f"usr/{merged}")
    root.file("usr/bin/dlopen-check", check)
    root.file("usr/sbin/ldconfig", packages / "libc-bin" / "sbin" / "ldconfig")
    for path in sorted((packages / "libc6" / "lib" / _MULTIARCH).iterdir()):
        if path.is_symlink():
            root.link(f"{libraries}/{path.name}", path.readlink().name)
        else:
            root.file(f"{libraries}/{path.name}", path)
    return root


def _with_loader_cache(root: oci.Root, packages: Path) -> oci.Root:
    """Add /etc/ld.so.cache as the image's own ldconfig makes it."""
    with tempfile.TemporaryDirectory() as name:
        unpacked = Path(name)
        with tarfile.open(fileobj=BytesIO(root.layer())) as layer:
            layer.extractall(unpacked, filter="data")
        ldconfig = packages / "libc-bin" / "sbin" / "ldconfig"
        run([ldconfig, "-X", "-r", unpacked], what="ldconfig")
        root.file("etc/ld.so.cache", unpacked / "etc" / "ld.so.cache", 0o644)
    return root
