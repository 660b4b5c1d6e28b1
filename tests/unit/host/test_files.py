"""Durable files are whole or absent, whatever happens to their writer."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_driver.host import (
    HostRoot,
    ensure_folder,
    files,
    fsyncs,
    inside,
    link_atomically,
    list_folder,
    read_file,
    remove_durably,
    sweep_unfinished,
    write_atomically,
    write_durably,
)
from dra_driver.model.errors import StorageFailed

KILL_POINTS = ["before-write", "before-rename", "after-rename"]


def test_a_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_durably(path, b"one")
    write_durably(path, b"two", mode=0o644)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_writer_killed_at_any_point_leaves_old_or_new(tmp_path: Path, point: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    code = (
        "from pathlib import Path; from dra_driver.host import write_durably;"
        f"write_durably(Path({str(path)!r}), b'new')"
    )
    writer = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DRA_DRIVER_FAILPOINT": point},
        check=False,
    )
    assert writer.returncode == -signal.SIGKILL
    assert path.read_bytes() == (b"new" if point.startswith("after") else b"old")
    sweep_unfinished(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_link_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.so.1"
    for target in ("one", "two", "two"):
        link_atomically(path, Path(target))
        assert path.readlink() == Path(target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.so.1"]
    with pytest.raises(StorageFailed, match=f"link {tmp_path}/none/a: No such file"):
        link_atomically(tmp_path / "none/a", Path("one"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageFailed, match=r"link .*/folder: Is a directory"):
        link_atomically(tmp_path / "folder", Path("one"))
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.so.1", "folder"}


def test_the_sweep_leaves_files_that_somebody_is_writing(tmp_path: Path) -> None:
    busy = tmp_path / ".tmp-1.aa-a.json~"
    with busy.open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        sweep_unfinished(tmp_path)
        assert busy.exists()
    sweep_unfinished(tmp_path, prefix="b")
    assert busy.exists()
    sweep_unfinished(tmp_path, prefix="a")
    assert not busy.exists()


@pytest.mark.parametrize("moment", ["flock", "failpoint"])
def test_a_sweep_at_any_moment_leaves_the_writer_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As when another instance starts: before the writer's lock, and between close and rename."""
    owner = fcntl if moment == "flock" else files
    original = getattr(owner, moment)

    def sweeping(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, moment, original)
        sweep_unfinished(tmp_path)
        return original(*arguments)

    monkeypatch.setattr(owner, moment, sweeping)
    files.write_atomically(tmp_path / "a.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"new"}


def test_a_program_can_be_started_while_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel starts nothing that somebody has open for writing (ETXTBSY)."""
    started = []

    def start(_: str) -> None:
        (program,) = tmp_path.iterdir()
        started.append(subprocess.run([program], check=True))

    monkeypatch.setattr(files, "failpoint", start)
    true = Path("/bin/true").resolve().read_bytes()
    files._replace(tmp_path / "hook", true, 0o755, flush=False, flush_folder=False)
    assert len(started) == 1


def test_failures_name_the_path(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(StorageFailed, match=r"file/a\.json"):
        write_durably(blocker / "a.json", b"")
    with pytest.raises(StorageFailed, match="file/sub"):
        ensure_folder(blocker / "sub")
    with pytest.raises(StorageFailed, match=str(tmp_path)):
        remove_durably(tmp_path)


def test_removing_and_reading_what_is_not_there(tmp_path: Path) -> None:
    assert remove_durably(tmp_path / "none") is False
    assert read_file(tmp_path / "none") is None
    assert list_folder(tmp_path / "none", ".json") == []


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("/usr/lib/real.so", "usr/lib/real.so"),
        ("real.so", "usr/lib/real.so"),
        ("../../../../../../usr/lib/real.so", "usr/lib/real.so"),
        ("/nowhere", None),
        ("link.so", None),
    ],
    ids=["absolute", "relative", "escaping", "dangling", "loop"],
)
def test_links_resolve_inside_the_root(tmp_path: Path, link: str, expected: str | None) -> None:
    folder = tmp_path / "usr/lib"
    folder.mkdir(parents=True)
    (folder / "real.so").touch()
    (folder / "link.so").symlink_to(link)
    found = inside(tmp_path, "/usr/lib/link.so")
    assert found == (tmp_path / expected if expected else None)


def test_the_host_root_reads_proc_and_sys(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put("proc/sys/kernel/random/boot_id", "b00t\n")
    put(
        "proc/devices",
        "Character devices:\n195 nvidia-frontend\n235 nvidia-caps\n\nBlock devices:\n8 sd\n",
    )
    put(
        "proc/driver/nvidia/capabilities/gpu1/mig/gi3/access",
        "DeviceFileMinor: 30\nDeviceFileMode: 292\n",
    )
    put("proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access", "DeviceFileMinor: 31\n")
    device = tmp_path / "sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:1b:00.0").symlink_to(
        "../../../devices/pci0000:17/0000:17:01.0/0000:1b:00.0"
    )
    host = HostRoot(tmp_path)
    assert host.boot_id() == "b00t"
    assert host.device_majors() == {"nvidia-frontend": 195, "nvidia-caps": 235}
    assert host.gpu_instance_minor(1, 3) == 30
    assert host.compute_instance_minor(1, 3, 0) == 31
    assert host.gpu_instance_minor(1, 4) is None
    assert host.pcie_root("0000:1b:00.0") == "pci0000:17"
    assert host.pcie_root("0000:ff:00.0") is None
    assert host.numa_node("0000:1b:00.0") == 1


def test_waits_for_the_disk_are_counted(tmp_path: Path) -> None:
    before = fsyncs()
    write_durably(tmp_path / "a", b"1")
    assert fsyncs() - before == 2
    write_durably(tmp_path / "a", b"2", flush_folder=False)
    write_atomically(tmp_path / "b", b"3")
    assert fsyncs() - before == 3
    remove_durably(tmp_path / "a")
    assert fsyncs() - before == 4
