"""The hook on the host: installed before any file names it, and called as runtimes expect."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi import CdiDevice
from dra_driver.cdi.hook import Hook
from dra_driver.model.errors import Bug, StorageFailed
from tests.support.cdi_rules import edits
from tests.support.driver_tree import VERSION, DriverTree

UID = "0b9b1a5e-5f4c-4a2e-9d35-3f6d5e0f7a11"
GPU = CdiDevice("gpu-0", "GPU-0", 0)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
BUILT = Path(__file__).parents[3] / "dra_driver/cdi/native/build/gpu-dra-cdi-hook"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path / "hook/gpu-dra-cdi-hook"


def calls(tree: DriverTree, **settings: Any) -> list[dict[str, Any]]:
    tree.specs(**settings).apply(UID, [GPU])
    found: list[dict[str, Any]] = edits(
        tree.root.parent / "cdi/k8s.gpu.nvidia.com-driver.json", "common"
    )["hooks"]
    return found


def test_the_hook_is_installed_and_can_be_run(tree: DriverTree, installed: Path) -> None:
    previous = os.umask(0o077)
    try:
        tree.specs().install_hook()
    finally:
        os.umask(previous)
    assert installed.read_bytes() == BUILT.read_bytes()
    assert stat.S_IMODE(installed.stat().st_mode) == 0o755
    assert stat.S_IMODE(installed.parent.stat().st_mode) == 0o755


def test_an_older_hook_is_replaced_and_the_same_one_is_not(
    tree: DriverTree, installed: Path
) -> None:
    installed.parent.mkdir()
    installed.write_text("older")
    tree.specs().install_hook()
    inode = installed.stat().st_ino
    tree.specs().install_hook()
    assert inode == installed.stat().st_ino
    assert installed.read_bytes() == BUILT.read_bytes()


def test_one_call_of_our_hook_does_everything(tree: DriverTree, installed: Path) -> None:
    tree.write("usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4")
    (call,) = calls(tree)
    expected = {
        "hookName": "createContainer",
        "path": str(installed),
        "args": [
            "gpu-dra-cdi-hook",
            *("--driver-version", VERSION, "--folder", LIBRARIES),
            *("--library", "libnvidia-nvvm70.so.4"),
            *("--link", f"libcuda.so.1::{LIBRARIES}/libcuda.so"),
            *("--link", f"libnvidia-ml.so.1::{LIBRARIES}/libnvidia-ml.so"),
            "--mask-params",
        ],
    }
    assert expected == call


def test_the_toolkits_hook_is_used_where_the_host_has_it(tree: DriverTree, installed: Path) -> None:
    tree.write("usr/bin/nvidia-cdi-hook", mode=0o755)
    found = calls(tree, driver_root=Path("/"), host_root=Path("/"))
    toolkit = "/usr/bin/nvidia-cdi-hook"
    assert [toolkit, toolkit, str(installed)] == [call["path"] for call in found]
    commands = ["create-symlinks", "update-ldcache", "--mask-params"]
    assert commands == [call["args"][1] for call in found]


@pytest.mark.parametrize("case", ["not executable", "of a driver container"])
def test_b13_a_hook_that_the_host_could_not_run_is_not_named(
    tree: DriverTree, installed: Path, case: str
) -> None:
    tree.write("usr/bin/nvidia-cdi-hook", mode=0o644 if case == "not executable" else 0o755)
    root = Path("/" if case == "not executable" else "/run/nvidia/driver")
    assert [str(installed)] == [call["path"] for call in calls(tree, driver_root=root)]


@pytest.mark.parametrize("loss", ["removed", "not executable"])
def test_b13_a_lost_hook_is_back_before_a_file_names_it(
    tree: DriverTree, installed: Path, loss: str
) -> None:
    specs = tree.specs()
    specs.install_hook()
    if loss == "removed":
        installed.unlink()
    else:
        installed.chmod(0o644)
    specs.apply(UID, [GPU])
    assert installed.read_bytes() == BUILT.read_bytes()
    assert os.access(installed, os.X_OK)


def test_b13_no_file_names_a_hook_that_cannot_be_installed(
    tree: DriverTree, tmp_path: Path
) -> None:
    (tmp_path / "hook").touch()
    with pytest.raises(StorageFailed, match=f"{tmp_path}/hook"):
        tree.specs().apply(UID, [GPU])
    assert not (tmp_path / "cdi").exists()


def test_b13_a_file_system_without_execution_is_refused(
    tree: DriverTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = os.statvfs_result((0, 0, 0, 0, 0, 0, 0, 0, os.ST_NOEXEC, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: refused)
    with pytest.raises(StorageFailed, match=r"noexec.*--hook-folder"):
        tree.specs().install_hook()


def test_an_installation_without_the_hook_says_so(
    tree: DriverTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.cdi.hook._BUILT", tmp_path / "missing")
    with pytest.raises(Bug, match="make native"):
        Hook(tree.settings()).install()
