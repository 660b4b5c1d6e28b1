"""A CDI folder that can't be written, is gone, or that the runtime does not read (report B13).

One that is read and is not the default: `test_b03_b09_pods.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.chart.helm import setting
from tests.cluster import linux, view
from tests.cluster.claims import claim, use
from tests.cluster.release import Release
from tests.cluster.workload import Namespace, pod

_DISK: Final = Path("/run/cdi-elsewhere")
_FOLDER: Final = _DISK / "of/driver"
_PREPARE: Final = "FailedPrepareDynamicResources"


@contextmanager
def cdi_elsewhere(release: Release) -> Iterator[None]:
    """Let the driver write where no runtime looks, in a folder that is not there yet."""
    _DISK.mkdir()
    linux.mount("tmpfs", _DISK, "tmpfs")
    release.helm("upgrade", *setting(f"cdiRoot={_FOLDER}"))
    try:
        release.wait_settled()
        yield
    finally:
        linux.mount("none", _DISK, flags=linux.MS_REMOUNT)
        release.helm("upgrade")
        release.wait_settled()
        linux.unmount(_DISK)
        _DISK.rmdir()


def asks(namespace: Namespace, name: str) -> None:
    namespace.apply(claim(name), pod(name, claims=use(name)))


def test_b13_the_pod_says_what_is_wrong_with_the_folder(release: Release) -> None:
    with release.namespace() as namespace:
        with cdi_elsewhere(release):
            linux.mount("none", _DISK, flags=linux.MS_REMOUNT | linux.MS_RDONLY)
            asks(namespace, "early")
            said = namespace.wait_event("early", _PREPARE, f"cannot write {_FOLDER}/")["message"]
            assert "Read-only file system" in said
            linux.mount("none", _DISK, flags=linux.MS_REMOUNT)
            said = namespace.wait_event("early", "Failed", "unresolvable CDI devices")["message"]
            uid = namespace.claim("early")["metadata"]["uid"]
            assert f"k8s.gpu.nvidia.com/claim={uid}" in said
            written = [path.name for path in _FOLDER.iterdir()]
            assert any(uid in name for name in written), "as docs/troubleshooting.md has it"
        # The folder is put right: nothing else has to be done.
        namespace.wait_pod("early", "Running")
        names = view.devices_of(namespace, "early")
        assert view.seen(namespace, "early") == view.expected(release.node, names)
        assert {path.parent for path in release.cdi_files()} == {Path("/var/run/cdi")}
