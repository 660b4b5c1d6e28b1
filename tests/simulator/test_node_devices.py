"""Real device nodes on a simulated node, where the machine allows them."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from dra_driver.host import HostRoot
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.device_nodes import NodeKind, real_nodes_refused
from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import alike
from tests.support.node import MakeNode, SimulatedNode


@pytest.fixture
def real_node(make_node: MakeNode, tmp_path: Path) -> SimulatedNode:
    refused = real_nodes_refused(tmp_path)
    if refused is not None:
        pytest.skip(refused)
    return make_node(gpus=2, device_nodes=NodeKind.REAL)


def numbers(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode):
            name = str(path.relative_to(folder))
            found[name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return found


def test_numbers_are_those_of_proc_devices(real_node: SimulatedNode) -> None:
    majors = HostRoot(real_node.root).device_majors()
    assert numbers(real_node.root / "dev") == {
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidia-uvm": (majors["nvidia-uvm"], 0),
        "nvidia-uvm-tools": (majors["nvidia-uvm"], 1),
        "nvidia-caps/nvidia-cap1": (majors["nvidia-caps"], 1),
        "nvidia-caps/nvidia-cap2": (majors["nvidia-caps"], 2),
    }
    running = HostRoot(Path("/")).device_majors().values()
    assert majors["nvidia-uvm"] not in running
    assert majors["nvidia-caps"] not in running


def test_capability_nodes_of_partitions_are_devices_too(real_node: SimulatedNode) -> None:
    real_node.state.set_mig_mode(0, on=True)
    gi = real_node.state.partition(0, "1g.10gb")
    host = HostRoot(real_node.root)
    major = host.device_majors()["nvidia-caps"]
    found = numbers(real_node.root / "dev/nvidia-caps")
    for minor in (host.gpu_instance_minor(0, gi), host.compute_instance_minor(0, gi, 0)):
        assert minor is not None
        assert found[f"nvidia-cap{minor}"] == (major, minor)
    assert real_node.smi("-L").stdout.count("UUID: MIG-") == 1


def test_node_that_may_not_be_opened_hides_its_gpu(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    if refused := real_nodes_refused(tmp_path):
        pytest.skip(refused)
    with tempfile.TemporaryDirectory() as folder:  # pytest's folders are closed to other users
        Path(folder).chmod(0o755)
        spec = alike("h100-80gb", 2)
        with Node.create(Path(folder) / "node", spec, device_nodes=NodeKind.REAL) as node:
            (node.root / "dev/nvidia1").chmod(0o600)
            done = subprocess.run(
                [str(node.root / "usr/bin/nvidia-smi"), "-L"],
                capture_output=True,
                text=True,
                check=False,
                user=65534,
                group=65534,
                extra_groups=[],
            )
    assert done.stdout.count("UUID: GPU-") == 1, done.stdout + done.stderr


def test_container_with_nothing_else_sees_what_it_was_given(
    real_node: SimulatedNode, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the root folder of a process")
    root = tmp_path / "container"
    state = next((real_node.root / LIBRARY_FOLDER).glob("libnvidia-simstate.so.*"))
    for path in (real_node.root / "usr/bin/nvidia-smi", state):
        copy = root / path.relative_to(real_node.root)
        copy.parent.mkdir(parents=True)
        os.link(path, copy)
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia1"):
        os.mknod(
            root / "dev" / name,
            0o666 | stat.S_IFCHR,
            (real_node.root / "dev" / name).stat().st_rdev,
        )
    done = subprocess.run(
        ["chroot", str(root), "/usr/bin/nvidia-smi", "-L"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {real_node.gpu(1)['uuid']})\n"


def test_real_nodes_that_can_not_be_had_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.mknod", refuse)
    with pytest.raises(SettingInvalid, match="Operation not permitted"):
        Node.create(tmp_path / "node", alike("t4", 1), device_nodes=NodeKind.REAL)
    assert not (tmp_path / "node").exists()
