"""Mounts that the node sees, and labels of folders."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.host import is_mounted, mount_tmpfs, set_label, unmount
from dra_driver.model.errors import BadNode, StorageFailed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
MIB = 2**20
_WITHOUT_RIGHTS = """
import ctypes, os, sys
from pathlib import Path
from dra_driver.host import mount_tmpfs
from dra_driver.model.errors import PermissionMissing
libc = ctypes.CDLL(None)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(1001, 1001, 1001)
    os.setresuid(1001, 1001, 1001)
try:
    mount_tmpfs(Path(sys.argv[1]), 1 << 20, Path("/nowhere"))
except PermissionMissing as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "with a blank"
    path.mkdir()
    yield path
    unmount(path)


@needs_root
def test_a_tmpfs_has_its_size_and_is_for_everybody(folder: Path) -> None:
    mount_tmpfs(folder, 3 * MIB, Path("/"))
    assert is_mounted(folder)
    assert os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize == 3 * MIB
    assert folder.stat().st_mode & 0o7777 == 0o1777
    (folder / "file").write_text("kept")
    mount_tmpfs(folder, 3 * MIB, Path("/"))
    assert (folder / "file").read_text() == "kept"
    with (folder / "file").open():
        unmount(folder)  # also while somebody uses it
    assert not is_mounted(folder)
    unmount(folder)


@needs_root
def test_a_mount_that_the_host_does_not_see_is_taken_back(folder: Path, tmp_path: Path) -> None:
    mountinfo = tmp_path / "host/proc/1/mountinfo"
    mountinfo.parent.mkdir(parents=True)
    mountinfo.write_text("22 1 0:21 / / rw - overlay overlay rw\n")
    with pytest.raises(BadNode, match="mountPropagation: Bidirectional"):
        mount_tmpfs(folder, MIB, tmp_path / "host")
    assert not is_mounted(folder)
    mountinfo.unlink()
    mountinfo.symlink_to("/proc/1/mountinfo")
    mount_tmpfs(folder, MIB, tmp_path / "host")
    assert is_mounted(folder)


@needs_root
def test_a_folder_behind_a_link_is_the_same_folder(folder: Path, tmp_path: Path) -> None:
    """As a kubelet's folder that was moved to another disk: the host names it otherwise."""
    (tmp_path / "link").symlink_to(tmp_path)
    linked = tmp_path / "link" / folder.name
    mount_tmpfs(linked, MIB, Path("/"))
    (folder / "file").write_text("kept")
    mount_tmpfs(linked, MIB, Path("/"))
    assert (linked / "file").read_text() == "kept"
    assert is_mounted(linked)
    assert is_mounted(folder)
    unmount(linked)
    assert not is_mounted(folder)


def test_without_the_right_the_message_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHTS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.stdout.startswith(f"no tmpfs can be mounted at {tmp_path}: Operation not permitted")
    assert "run this as root and privileged" in done.stdout


@needs_root
def test_a_folder_that_is_not_there_can_not_be_mounted_on(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="No such file"):
        mount_tmpfs(tmp_path / "gone", MIB, Path("/"))


def test_labels_are_set_where_the_host_has_selinux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "setxattr", lambda *arguments: found.append(arguments))
    set_label(tmp_path, "system_u:object_r:container_file_t:s0", tmp_path)
    assert found == []
    enforce = tmp_path / "sys/fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.touch()
    set_label(tmp_path, "system_u:object_r:container_file_t:s0", tmp_path)
    label = b"system_u:object_r:container_file_t:s0\0"
    assert found == [(tmp_path, "security.selinux", label)]

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(StorageFailed, match="can't have the SELinux label nonsense"):
        set_label(tmp_path, "nonsense", tmp_path)
