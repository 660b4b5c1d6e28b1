"""What the host's `/proc` tells of the GPU driver, and of processes that use a GPU."""

import os
from pathlib import Path

import pytest

from dra_driver.host import HostProcess, HostRoot, inside


def process(root: Path, pid: int, name: str, *opened: str) -> None:
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    for number, path in enumerate(opened):
        (folder / f"fd/{number}").symlink_to(path)


def test_processes_have_names_where_proc_knows_them(tmp_path: Path) -> None:
    process(tmp_path, 42, "python3")
    host = HostRoot(tmp_path)
    assert host.process(42) == HostProcess(42, "python3")
    assert [str(host.process(pid)) for pid in (42, 43)] == [
        "python3 (PID 42)",
        "a process (PID 43)",
    ]


def test_users_of_a_device_are_those_that_have_it_open(tmp_path: Path) -> None:
    process(tmp_path, 1100, "nv-hostengine", "socket:[7]", "/dev/nvidia0", "/dev/nvidia0")
    process(tmp_path, 900, "nvidia-smi", "/dev/nvidia0")
    process(tmp_path, 901, "other", "/dev/nvidia1", "/dev/nvidia01", "/tmp/dev/nvidia0")
    process(tmp_path, 902, "dra-driver", "/dev/nvidia0")
    (tmp_path / "proc/self").symlink_to("902")
    (tmp_path / "proc/903").mkdir()  # it has just ended
    (tmp_path / "proc/driver").mkdir()
    assert HostRoot(tmp_path).users_of("/dev/nvidia0") == (
        HostProcess(900, "nvidia-smi"),
        HostProcess(1100, "nv-hostengine"),
    )


def test_this_process_is_not_named_where_proc_has_no_self(tmp_path: Path) -> None:
    process(tmp_path, os.getpid(), "pytest", "/dev/nvidia0")
    assert HostRoot(tmp_path).users_of("/dev/nvidia0") == ()


def test_without_proc_there_are_no_users(tmp_path: Path) -> None:
    assert HostRoot(tmp_path / "missing").users_of("/dev/nvidia0") == ()


@pytest.mark.parametrize(
    ("devices", "folder", "expected"),
    [
        ("Character devices:\n  1 mem\n195 nvidia\n", True, True),
        ("Character devices:\n  1 mem\n195 nvidia-frontend\n", False, True),
        ("Character devices:\n  1 mem\n", True, True),
        ("Character devices:\n  1 mem\n", False, False),
        ("", False, True),  # nothing is known
        (None, False, True),
    ],
)
def test_whether_the_kernel_has_the_gpu_driver(
    tmp_path: Path, devices: str | None, *, folder: bool, expected: bool
) -> None:
    (tmp_path / "proc").mkdir()
    if devices is not None:
        (tmp_path / "proc/devices").write_text(devices)
    if folder:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert HostRoot(tmp_path).has_gpu_driver() is expected


@pytest.mark.parametrize("is_file", [True, False])
def test_a_link_that_goes_away_while_it_is_read_is_no_fault(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_file: bool,  # noqa: FBT001
) -> None:
    """As the GPU driver's own, while another one is installed."""
    link, readlink = tmp_path / "libcuda.so", Path.readlink
    link.symlink_to("libcuda.so.1")

    def slow(path: Path) -> Path:
        link.unlink()
        if is_file:
            link.touch()
        return readlink(path)

    monkeypatch.setattr(Path, "readlink", slow)
    assert inside(tmp_path, "libcuda.so") == (link if is_file else None)
