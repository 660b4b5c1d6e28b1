"""The GPU driver's files: found where people have them, and found anew when they change."""

import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from dra_driver.cdi import driver_root
from dra_driver.cdi.driver_files import DriverFiles, find_driver_files
from dra_driver.cdi.driver_root import DriverRoot
from dra_driver.model.errors import DriverFilesMissing
from tests.support.driver_tree import LIBRARIES, VERSION, DriverTree


def find(tree: DriverTree) -> DriverFiles:
    return find_driver_files(tree.root, tree.root)


def paths(found: DriverFiles) -> dict[str, str]:
    """Host path by container path."""
    files = (*found.libraries, *found.others, *found.sockets)
    return {file.container_path: file.host_path for file in files}


def test_files_of_the_driver_in_use(tree: DriverTree) -> None:
    tree.write("usr/lib/x86_64-linux-gnu/libc.so.6")
    tree.write("usr/lib/x86_64-linux-gnu/libother.so.1.2.3")
    tree.write("usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4")
    tree.add_libraries("570.86.10")  # left over by an upgrade
    names = [f"/usr/lib/x86_64-linux-gnu/{name}.so.{VERSION}" for name in LIBRARIES]
    expected = {
        *names,
        "/usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4",
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    }
    found = find(tree)
    assert expected == set(paths(found))
    assert all(host == f"{tree.root}{name}" for name, host in paths(found).items())
    assert found.folders == ("/usr/lib/x86_64-linux-gnu",)
    assert found.unversioned == ("libnvidia-nvvm70.so.4",)


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib64",
        "lib64",
        "usr/lib/aarch64-linux-gnu",
        "usr/local/nvidia/lib64",
        "usr/local/glibc/usr/lib",
        "usr/lib/wsl/lib",
        "usr/lib",
    ],
)
def test_b09_library_folders_of_all_distributions(tmp_path: Path, folder: str) -> None:
    found = find(DriverTree(tmp_path / "root", folder=folder).build())
    assert f"/{folder}/libcuda.so.{VERSION}" in paths(found)


def test_b09_a_root_that_holds_nothing_but_libraries(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path / "nvidia", folder="lib64")
    tree.add_libraries(VERSION)
    tree.link(VERSION)
    assert {f"/lib64/{name}.so.{VERSION}" for name in LIBRARIES} <= set(paths(find(tree)))


def test_b09_absolute_links_are_those_of_the_host(tree: DriverTree, tmp_path: Path) -> None:
    """Debian's alternatives, seen by a process in a container: links lead below the driver root."""
    libraries = tree.root / tree.folder
    real = libraries / "nvidia/current"
    real.mkdir(parents=True)
    alternatives = tree.root / "etc/alternatives"
    alternatives.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml"):
        shutil.move(libraries / f"{name}.so.{VERSION}", real / f"{name}.so.{VERSION}")
        link = libraries / f"{name}.so.1"
        link.unlink()
        link.symlink_to(f"/etc/alternatives/{name}")
        (alternatives / name).symlink_to(f"/{tree.folder}/nvidia/current/{name}.so.{VERSION}")
    found = find_driver_files(Path("/"), tree.root)
    name = f"/{tree.folder}/nvidia/current/libcuda.so.{VERSION}"
    assert found.version == VERSION
    assert paths(found)[name] == name


def test_b09_host_paths_are_true_paths_on_the_host(tree: DriverTree) -> None:
    """The runtime resolves no link for us: what it gets has none left."""
    (tree.root / "lib64").symlink_to("usr/lib/x86_64-linux-gnu")
    smi = tree.root / "usr/bin/nvidia-smi"
    smi.unlink()
    smi.symlink_to("/opt/nvidia/smi")
    tree.write("opt/nvidia/smi")
    found = paths(find_driver_files(Path("/run/nvidia/driver"), tree.root))
    assert found["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/opt/nvidia/smi"
    assert sum(name.endswith(f"libcuda.so.{VERSION}") for name in found) == 1


def test_b09_what_was_looked_for_and_where_is_said(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(DriverFilesMissing) as caught:
        find_driver_files(Path("/run/nvidia/driver"), tmp_path / "root")
    for part in ("libcuda.so.1", "/run/nvidia/driver", "/usr/lib64", "--nvidia-driver-root"):
        assert part in str(caught.value)


def test_b09_a_root_that_fills_later_is_picked_up(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path / "root")
    root = DriverRoot(tree.root, tree.root)
    with pytest.raises(DriverFilesMissing):
        root.current()
    tree.build()
    assert root.current().version == VERSION


def test_a_driver_without_its_compute_part_is_incomplete(tree: DriverTree) -> None:
    (tree.root / tree.folder / f"libcuda.so.{VERSION}").unlink()
    with pytest.raises(DriverFilesMissing, match=rf"incomplete: no libcuda\.so\.{VERSION} "):
        find(tree)


def test_without_links_the_highest_version_counts(tree: DriverTree) -> None:
    for name in ("libcuda", "libnvidia-ml"):
        (tree.root / tree.folder / f"{name}.so.1").unlink()
    tree.add_libraries("580.100.1")
    tree.add_libraries("99.99")
    assert find(tree).version == "580.100.1"


def test_sockets_are_mounted_where_daemons_run(
    tree: DriverTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree.root / "run/nvidia-persistenced"
    folder.mkdir(parents=True)
    (tree.root / "var").mkdir()
    (tree.root / "var/run").symlink_to("/run")
    monkeypatch.chdir(folder)  # paths of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        sockets = find(tree).sockets
    expected = [("/run/nvidia-persistenced/socket", f"{folder}/socket")]
    assert expected == [(file.container_path, file.host_path) for file in sockets]


def test_b12_an_upgraded_driver_is_found_without_a_restart(tree: DriverTree) -> None:
    tree.settle()
    root = DriverRoot(tree.root, tree.root)
    assert root.current().version == VERSION
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    tree.remove_libraries(VERSION)
    found = root.current()
    assert found.version == "590.44.01"
    assert not [name for name in paths(found) if VERSION in name]


def test_b12_also_when_only_a_link_far_away_changes(tree: DriverTree) -> None:
    """Debian's alternatives switch between two installed drivers."""
    tree.add_libraries("570.86.10")
    (tree.root / "etc/alternatives").mkdir(parents=True)
    choice = tree.root / "etc/alternatives/nvidia"
    choice.symlink_to(f"/{tree.folder}/libcuda.so.{VERSION}")
    link = tree.root / tree.folder / "libcuda.so.1"
    link.unlink()
    link.symlink_to("/etc/alternatives/nvidia")
    tree.settle()
    root = DriverRoot(tree.root, tree.root)
    assert root.current().version == VERSION
    choice.unlink()
    choice.symlink_to(f"/{tree.folder}/libcuda.so.570.86.10")
    assert root.current().version == "570.86.10"


def test_nothing_is_searched_while_nothing_changes(
    tree: DriverTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.settle()
    root = DriverRoot(tree.root, tree.root)
    first = root.current()
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("searched again"))
    assert root.current() is first


def test_b12_a_root_that_is_replaced_during_a_look_is_looked_at_again(
    tree: DriverTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's container restarts: all folders of the new mount are old."""
    other = DriverTree(tmp_path / "other", version="590.44.01").build()
    for each in (tree, other):
        each.settle()
    looks = 0

    def find_then_replace(host: Path, here: Path) -> DriverFiles:
        nonlocal looks
        looks += 1
        found = find_driver_files(host, here)
        if looks == 1:
            tree.root.rename(tmp_path / "before")
            other.root.rename(tree.root)
        return found

    monkeypatch.setattr(driver_root, "find_driver_files", find_then_replace)
    root = DriverRoot(tree.root, tree.root)
    root.current()
    assert root.current().version == "590.44.01"


def test_what_has_just_changed_is_not_trusted(tree: DriverTree) -> None:
    """Two changes within one tick of the file system's clock have one stamp."""
    tree.settle()
    folder = tree.root / tree.folder
    now = time.time_ns()
    os.utime(folder, ns=(now, now))
    root = DriverRoot(tree.root, tree.root)
    root.current()
    tree.add_libraries("590.44.01")
    tree.link("590.44.01")
    tree.settle()
    os.utime(folder, ns=(now, now))
    assert root.current().version == "590.44.01"
