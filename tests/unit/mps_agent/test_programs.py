"""The control daemon's program in a driver root, and the libraries it gets."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.model.errors import DriverFilesMissing, StorageFailed
from dra_driver.mps_agent.programs import KERNEL_NAME, Programs
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import alike
from tests.support.node import SimulatedNode

_LOAD = """
import ctypes, sys
for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4"):
    ctypes.CDLL(name)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line})
"""


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode.create(
        tmp_path / "node", alike("h100-80gb", 1), device_nodes=NodeKind.PLAIN, seed="test"
    )


def test_the_driver_s_libraries_are_found_and_no_others(
    node: SimulatedNode, tmp_path: Path
) -> None:
    program = Programs(node.root, tmp_path / "lib").find()
    assert program.path == node.root / "usr/bin/nvidia-cuda-mps-control"
    assert program.environment["PATH"] == str(node.root / "usr/bin")
    folder = Path(program.environment["LD_LIBRARY_PATH"])
    assert all(".so." in link.name and link.resolve().is_file() for link in folder.iterdir())
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {link.name for link in folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", _LOAD],
        env=program.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(node.root))


def test_another_driver_has_other_libraries(node: SimulatedNode, tmp_path: Path) -> None:
    programs = Programs(node.root, tmp_path / "lib")
    before = programs.find().environment
    assert programs.find().environment == before
    node.set_driver_version("590.10.05")
    assert programs.find().environment["LD_LIBRARY_PATH"].endswith("/590.10.05")
    programs.sweep()
    assert not (tmp_path / "lib").exists()


def test_daemons_that_start_at_once_share_the_links(node: SimulatedNode, tmp_path: Path) -> None:
    many, rounds = 8, 20
    barrier = threading.Barrier(many)
    programs = Programs(node.root, tmp_path / "lib")

    def find() -> Path:
        barrier.wait()
        folder = Path(programs.find().environment["LD_LIBRARY_PATH"])
        assert (folder / "libcuda.so.1").resolve().is_file()
        return folder

    with ThreadPoolExecutor(many) as threads:
        for _ in range(rounds):
            programs.sweep()
            found = {each.result() for each in [threads.submit(find) for _ in range(many)]}
            assert len(found) == 1
            assert all(".so." in link.name and link.exists() for link in found.pop().iterdir())


def test_a_folder_that_takes_no_links_is_told_of(node: SimulatedNode, tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("no folder")
    with pytest.raises(StorageFailed, match=f"{tmp_path}/lib/.*Not a directory"):
        Programs(node.root, tmp_path / "lib").find()


def test_on_the_host_s_own_root_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(Path("/"), Path("/nowhere"))
    monkeypatch.setattr("dra_driver.mps_agent.programs.inside", lambda *_: Path("/bin/true"))
    assert programs.find().environment == {"PATH": "/bin"}


def test_clients_by_driver(node: SimulatedNode, tmp_path: Path) -> None:
    programs = Programs(node.root, tmp_path / "lib")
    assert programs.client_limit() == 48
    node.set_driver_version("590.10.05")
    assert programs.client_limit() == 60
    assert Programs(tmp_path / "nowhere", tmp_path / "lib").client_limit() == 48


def test_a_program_that_is_not_there_is_told_of(node: SimulatedNode, tmp_path: Path) -> None:
    (node.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    with pytest.raises(DriverFilesMissing, match=r"looked in usr/bin, .*compute utilities"):
        Programs(node.root, tmp_path / "lib").find()


def test_the_kernel_s_name_is_that_of_daemon_and_server() -> None:
    names = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
    assert {name[:15] for name in names} == {KERNEL_NAME}
