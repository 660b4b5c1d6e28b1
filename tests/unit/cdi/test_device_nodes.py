"""Device nodes: all that a GPU or a partition needs, as they are when the claim is prepared."""

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi import CdiDevice
from dra_driver.model.errors import Bug, DriverFilesMissing
from tests.support.cdi_rules import edits
from tests.support.driver_tree import DriverTree

UID = "0b9b1a5e-5f4c-4a2e-9d35-3f6d5e0f7a11"
GPU = CdiDevice("gpu-1", "GPU-1", 1)
PARTITION = CdiDevice("gpu-1-mig-1g10gb-19-0", "GPU-1", 1, gi_id=7, ci_id=0)


def nodes(tree: DriverTree, device: CdiDevice, **settings: Any) -> list[dict[str, Any]]:
    tree.specs(**settings).apply(UID, [device])
    path = tree.root.parent / "cdi" / f"k8s.gpu.nvidia.com-claim_{UID}.json"
    found: list[dict[str, Any]] = edits(path, f"{UID}-{device.name}")["deviceNodes"]
    return found


def common_nodes(tree: DriverTree) -> list[str]:
    tree.specs().apply(UID, [GPU])
    path = tree.root.parent / "cdi/k8s.gpu.nvidia.com-driver.json"
    return [node["path"] for node in edits(path, "common")["deviceNodes"]]


def test_a_gpu_is_one_node_named_by_its_minor(tree: DriverTree) -> None:
    (node,) = nodes(tree, GPU)
    expected = {
        "path": "/dev/nvidia1",
        "hostPath": f"{tree.root}/dev/nvidia1",
        "permissions": "rw",
    }
    assert expected == node


def test_b11_a_partition_is_three_nodes(tree: DriverTree) -> None:
    tree.add_partition(1, 7, (30, 31))
    expected = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert expected == [node["path"] for node in nodes(tree, PARTITION)]


def test_b11_minors_are_looked_up_for_each_claim(tree: DriverTree) -> None:
    tree.add_partition(1, 7, (30, 31))
    nodes(tree, PARTITION)
    tree.add_partition(1, 7, (40, 41))
    expected = ["/dev/nvidia-caps/nvidia-cap40", "/dev/nvidia-caps/nvidia-cap41"]
    assert expected == [node["path"] for node in nodes(tree, PARTITION)][1:]


@pytest.mark.parametrize("gone", [30, 31])
def test_b11_a_capability_node_that_was_never_made_is_an_error(tree: DriverTree, gone: int) -> None:
    tree.add_partition(1, 7, (30, 31))
    (tree.root / f"dev/nvidia-caps/nvidia-cap{gone}").unlink()
    with pytest.raises(DriverFilesMissing, match=f"nvidia-cap{gone}; make it: nvidia-modprobe -f"):
        nodes(tree, PARTITION)
    assert not list((tree.root.parent / "cdi").glob("*claim*"))


def test_b11_or_it_is_made_by_its_numbers_where_they_are_known(tree: DriverTree) -> None:
    tree.add_partition(1, 7, (30, 31))
    shutil.rmtree(tree.root / "dev/nvidia-caps")
    tree.write("proc/devices", "Character devices:\n195 nvidia\n237 nvidia-caps\n\n")
    found = nodes(tree, PARTITION)
    numbers = [(node.get("type"), node.get("major"), node.get("minor")) for node in found]
    assert numbers == [(None, None, None), ("c", 237, 30), ("c", 237, 31)]


@pytest.mark.parametrize("entry", ["gi7/access", "gi7/ci0/access"])
def test_b11_a_partition_that_the_kernel_does_not_know_is_an_error(
    tree: DriverTree, entry: str
) -> None:
    tree.add_partition(1, 7, (30, 31))
    (tree.root / "proc/driver/nvidia/capabilities/gpu1/mig" / entry).unlink()
    with pytest.raises(DriverFilesMissing, match=f"gpu1/mig/{entry}; the partition"):
        nodes(tree, PARTITION)


def test_half_a_partition_is_a_bug(tree: DriverTree) -> None:
    with pytest.raises(Bug):
        nodes(tree, CdiDevice("gpu-1-mig", "GPU-1", 1, gi_id=7))


def test_control_nodes_are_those_that_exist(tree: DriverTree) -> None:
    everything = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    assert [f"/dev/{name}" for name in everything] == common_nodes(tree)
    (tree.root / "dev/nvidia-modeset").unlink()
    assert [f"/dev/{name}" for name in everything[:3]] == common_nodes(tree)


@pytest.mark.parametrize(
    ("node", "remedy"), [("nvidia-uvm", "modprobe nvidia-uvm"), ("nvidia1", "nvidia-modprobe -c 1")]
)
def test_a_missing_node_is_an_error_that_says_how_to_make_it(
    tree: DriverTree, node: str, remedy: str
) -> None:
    (tree.root / "dev" / node).unlink()
    with pytest.raises(
        DriverFilesMissing, match=f"no device node .*/dev/{node}; make it: .*{remedy}"
    ):
        nodes(tree, GPU)
    assert not (tree.root.parent / "cdi").exists()


def test_b09_device_nodes_may_lie_in_another_root(tree: DriverTree, tmp_path: Path) -> None:
    shutil.move(tree.root / "dev", tmp_path / "elsewhere/dev")
    (node,) = nodes(tree, GPU, dev_root=tmp_path / "elsewhere")
    assert f"{tmp_path}/elsewhere/dev/nvidia1" == node["hostPath"]


def test_b09_a_driver_root_without_nodes_leaves_them_in_the_hosts_root(tree: DriverTree) -> None:
    shutil.rmtree(tree.root / "dev")
    here = tree.root.parent / "host"
    DriverTree(here).add_nodes(2)
    (node,) = nodes(tree, GPU, container_dev_root=here)
    assert node == {"path": "/dev/nvidia1", "permissions": "rw"}  # on the host: the same path


def test_b09_the_runtime_gets_host_paths(tree: DriverTree) -> None:
    (node,) = nodes(tree, GPU, driver_root=Path("/run/nvidia/driver"))
    assert node["hostPath"] == "/run/nvidia/driver/dev/nvidia1"


def test_a_node_of_another_device_is_never_handed_out(tree: DriverTree) -> None:
    path = tree.root / "dev/nvidia1"
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(195, 0))
    except PermissionError as error:
        pytest.skip(f"making a device node is refused: {error}")
    with pytest.raises(DriverFilesMissing, match="minor number 0 instead of 1"):
        nodes(tree, GPU)
