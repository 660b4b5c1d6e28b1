"""The files of a simulated node: driver root, /proc and /sys, and how they follow the hardware."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from dra_driver.host import HostRoot
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.native_library import SimulatorError
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import NodeSpec, alike
from tests.support.node import MakeNode, SimulatedNode

OLD, NEW = "580.95.05", "590.44.01"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def gpu_nodes(node: Node) -> set[str]:
    return {path.name for path in (node.root / "dev").glob("nvidia[0-9]*")}


def shown_nodes(node: Node) -> set[str]:
    return {f"nvidia{gpu['minor']}" for gpu in node.show()["gpus"]}


def test_libraries_have_versions_sonames_and_can_be_loaded(make_node: MakeNode) -> None:
    folder = make_node().root / LIBRARY_FOLDER
    libraries = [path for path in folder.glob(f"*.so.{OLD}") if "simstate" not in path.name]
    assert len(libraries) >= 8
    for path in libraries:
        links = [link for link in folder.iterdir() if link.is_symlink() and link.samefile(path)]
        sonames = {link.name for link in links if link.name.rpartition(".so.")[2].isdigit()}
        assert len(sonames) == 1, path.name
        load = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
        subprocess.run([sys.executable, "-c", load, str(folder / sonames.pop())], check=True)
    assert (folder / "libcuda.so").resolve() == (folder / f"libcuda.so.{OLD}").resolve()


def test_every_link_stays_inside_when_the_tree_moves(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(gpus=2)
    links = [path for path in node.root.rglob("*") if path.is_symlink()]
    assert len(links) > 10
    assert [link for link in links if link.readlink().is_absolute()] == []
    before = node.smi("-L").stdout
    node.close()
    moved = node.root.rename(tmp_path / "moved")
    with SimulatedNode(moved) as again:
        assert before.count("UUID: GPU-") == 2
        assert again.smi("-L").stdout == before
        assert [link for link in moved.rglob("*") if link.is_symlink() and not link.exists()] == []


def test_upgrade_leaves_no_file_of_the_old_driver(make_node: MakeNode) -> None:
    node = make_node()
    before = names(node.root)
    node.set_driver_version(NEW)
    after = names(node.root)
    assert {name.replace(OLD, NEW) for name in before} == after
    assert not [name for name in after if OLD in name]
    assert NEW in (node.root / "proc/driver/nvidia/version").read_text()
    assert node.nvml("print(json.dumps(pynvml.nvmlSystemGetDriverVersion()))") == NEW


def test_upgrade_can_be_repeated_after_it_was_cut_short(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dra_driver.simulator.driver_files.link", killed)
        with pytest.raises(KeyboardInterrupt):
            node.set_driver_version(NEW)
    node.set_driver_version(NEW)
    assert not [name for name in names(node.root) if OLD in name]
    assert node.nvml("print(json.dumps(pynvml.nvmlSystemGetDriverVersion()))") == NEW


def test_running_client_notices_the_upgrade_and_can_load_the_new_library(
    make_node: MakeNode,
) -> None:
    node = make_node()
    told = node.nvml(
        f"from pathlib import Path; from dra_driver.simulator.node import Node\n"
        f"with Node(Path({str(node.root)!r})) as node: node.set_driver_version({NEW!r})\n"
        "try: before = pynvml.nvmlDeviceGetCount()\n"
        "except pynvml.NVMLError as error: before = error.value\n"
        "pynvml.nvmlLib = ctypes.CDLL(str(Path(sys.argv[1]).resolve()))\n"
        "pynvml._nvmlGetFunctionPointer_cache.clear()\n"
        "pynvml.nvmlInit()\n"
        "print(json.dumps([before, pynvml.nvmlDeviceGetCount()]))"
    )
    assert told == [18, 1]  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


def test_host_files_tell_of_the_gpus_in_the_state(make_node: MakeNode) -> None:
    node = make_node(model="h100-80gb", gpus=8)
    host = HostRoot(node.root)
    gpus = node.show()["gpus"]
    assert len(gpus) == 8
    for gpu in gpus:
        address = gpu["pci"]
        assert host.numa_node(address) == gpu["numaNode"]
        assert (host.pcie_root(address) or "").startswith("pci0000:")
        information = node.root / f"proc/driver/nvidia/gpus/{address}/information"
        assert gpu["uuid"] in information.read_text()
    assert {gpu["numaNode"] for gpu in gpus} == {0, 1}
    assert host.boot_id() == node.show()["bootId"]
    assert host.device_majors()["nvidia"] == 195
    assert host.device_majors().keys() >= {"nvidia-uvm", "nvidia-caps", "nvidiactl"}


def test_adding_and_removing_gpus_changes_nodes_and_sysfs(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    node.add_gpu("l40s")
    assert len(shown_nodes(node)) == 3
    assert gpu_nodes(node) == shown_nodes(node)
    node.remove_gpu(0)
    assert len(shown_nodes(node)) == 2
    assert gpu_nodes(node) == shown_nodes(node)
    functions = list((node.root / "sys/bus/pci/devices").iterdir())
    assert len(functions) == 2
    assert all((function / "vendor").read_text() == "0x10de\n" for function in functions)
    assert len(list((node.root / "sys/devices").rglob("numa_node"))) == 2


def test_exchanged_minors_move_the_partitions_files(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    node.state.set_mig_mode(0, on=True)
    gi = node.state.partition(0, "1g.10gb")
    assert HostRoot(node.root).gpu_instance_minor(0, gi) is not None
    node.set_minor(0, 1)
    assert HostRoot(node.root).gpu_instance_minor(0, gi) is None
    assert HostRoot(node.root).gpu_instance_minor(1, gi) is not None


def test_reboot_gives_a_new_boot_id_and_a_driver_reload_does_not(make_node: MakeNode) -> None:
    node = make_node()
    host = HostRoot(node.root)
    first = host.boot_id()
    node.state.driver_reload()
    assert host.boot_id() == first
    node.reboot()
    assert host.boot_id() not in {"", first}
    assert host.boot_id() == node.show()["bootId"]


def test_partition_made_through_nvml_by_another_process_has_files_and_nodes(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.state.set_mig_mode(0, on=True)
    gi = node.nvml(
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)\n"
        "pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)\n"
        "print(json.dumps(pynvml.nvmlGpuInstanceGetInfo(gi).id))"
    )
    host = HostRoot(node.root)
    minors = [host.gpu_instance_minor(0, gi), host.compute_instance_minor(0, gi, 0)]
    assert None not in minors
    for minor in minors:
        assert (node.root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()
    table = (node.root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert f"gpu0/gi{gi}/access {minors[0]}" in table
    assert f"gpu0/gi{gi}/ci0/access {minors[1]}" in table
    node.state.unpartition(0, gi)
    assert host.gpu_instance_minor(0, gi) is None


def test_capability_nodes_can_be_absent_and_come_back(make_node: MakeNode) -> None:
    node = make_node()
    node.state.set_mig_mode(0, on=True)
    node.remove_capability_nodes()
    gi = node.state.partition(0, "1g.10gb")
    assert not (node.root / "dev/nvidia-caps").exists()
    assert node.smi("-L").stdout.count("UUID: MIG-") == 0
    node.restore_capability_nodes()
    minor = HostRoot(node.root).gpu_instance_minor(0, gi)
    assert (node.root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()
    assert node.smi("-L").stdout.count("UUID: MIG-") == 1


def test_node_without_mig_has_no_capability_nodes(make_node: MakeNode) -> None:
    node = make_node(model="l40s")
    assert not (node.root / "dev/nvidia-caps").exists()
    node.add_gpu("a100-40gb")
    assert (node.root / "dev/nvidia-caps/nvidia-cap1").exists()


def test_same_seed_same_gpus(tmp_path: Path) -> None:
    def uuids(name: str, seed: str | None) -> list[str]:
        with Node.create(tmp_path / name, alike("t4", 3), seed=seed) as node:
            return [gpu["uuid"] for gpu in node.show()["gpus"]]

    assert uuids("a", "same") == uuids("b", "same")
    assert not set(uuids("c", None)) & set(uuids("d", None))


def test_folder_with_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("keep me")
    with pytest.raises(SettingInvalid, match="is not empty"):
        Node.create(tmp_path, alike("t4", 1))
    assert names(tmp_path) == {"letter"}


def test_of_two_who_make_a_node_in_one_folder_one_has_it(tmp_path: Path) -> None:
    root, both = tmp_path / "node", Barrier(2)

    def make(seed: str) -> Node | SettingInvalid:
        both.wait(60)
        try:
            return Node.create(root, alike("h100-80gb", 2), seed=seed)
        except SettingInvalid as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(make, ("one", "other")))
    (node,) = [each for each in results if isinstance(each, Node)]
    (refused,) = [each for each in results if isinstance(each, SettingInvalid)]
    assert "is not empty" in str(refused)
    assert gpu_nodes(node) == shown_nodes(node) == {"nvidia0", "nvidia1"}
    node.close()


def test_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    spec = NodeSpec.model_validate(
        {"gpus": [{"model": "h100-80gb", "partitions": [{"profile": "9g.1gb"}]}]}
    )
    with pytest.raises(SimulatorError, match=r"9g\.1gb"):
        Node.create(tmp_path / "new", spec)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SimulatorError, match=r"9g\.1gb"):
        Node.create(tmp_path / "empty", spec)
    assert list((tmp_path / "empty").iterdir()) == []


def test_changes_by_several_processes_at_once_all_count(make_node: MakeNode) -> None:
    node = make_node(model="t4")
    script = (
        "import sys; from pathlib import Path; from dra_driver.simulator.node import Node\n"
        "with Node(Path(sys.argv[1])) as node: node.add_gpu('l40s')"
    )
    adders = [subprocess.Popen([sys.executable, "-c", script, str(node.root)]) for _ in range(4)]
    assert [adder.wait(60) for adder in adders] == [0, 0, 0, 0]
    assert len(shown_nodes(node)) == 5
    assert gpu_nodes(node) == shown_nodes(node)


def test_plain_files_need_no_privilege(make_node: MakeNode) -> None:
    node = make_node()
    assert (node.root / "dev/nvidia0").is_file()
    assert os.access(node.root / "dev/nvidia0", os.R_OK | os.W_OK)
