"""Discovery while the GPU driver is missing, fails, lies elsewhere or says odd things."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.model import MemoryType
from dra_driver.model.errors import DriverNotReady
from dra_driver.simulator import models
from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.node_file import NodeSpec
from tests.support.discovery import ALL_GPUS, MakeWatch, fault
from tests.support.node import MakeNode

# ---- B01: unified memory


def test_b01_a_gpu_without_memory_figure_is_found(make_node: MakeNode, watch: MakeWatch) -> None:
    inventory = watch(make_node(model="gb10").root).look()
    (gpu,) = inventory.gpus
    assert gpu.memory_bytes is None
    assert gpu.memory_type is MemoryType.UNIFIED
    assert inventory.problems == ()


def test_b01_a_total_of_zero_is_no_figure(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(
        models.MODELS["gb10"], abilities=models.MODELS["gb10"].abilities | models.MEMORY_INFO
    )
    monkeypatch.setitem(models.MODELS, "gb10", odd)
    node = make_node(model="gb10")
    get = "print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)"
    assert node.nvml(get) == 0
    gpu = watch(node.root).gpu()
    assert gpu.memory_bytes is None
    assert gpu.memory_type is MemoryType.UNIFIED


def test_b01_one_such_gpu_does_not_hide_the_others(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(gpus=4)
    fault(node, 2, "nvmlDeviceGetMemoryInfo", "NOT_SUPPORTED")
    inventory = watch(node.root).look()
    assert [gpu.memory_bytes is None for gpu in inventory.gpus] == [False, False, True, False]
    assert inventory.problems == ()


# ---- B03: driver not ready


def test_b03_a_library_that_comes_late_is_picked_up(
    make_node: MakeNode, watch: MakeWatch, tmp_path: Path
) -> None:
    node = make_node(gpus=2)
    libraries, aside = node.root / LIBRARY_FOLDER, tmp_path / "aside"
    libraries.rename(aside)
    seen = watch(node.root, poll_seconds=0.2)
    seen.not_ready_that("libnvidia-ml.so.1 was not found below", str(node.root), "/usr/lib64")
    assert seen.discovery.current() is None
    assert seen.metric("gpu_dra_driver_nvml_ready") == 0
    aside.rename(libraries)
    seen.told_that(lambda inventory: len(inventory.gpus) == 2)
    assert seen.discovery.not_ready() == ""
    assert seen.metric("gpu_dra_driver_nvml_ready") == 1


def test_b03_failing_init_is_tried_again(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(gpus=2)
    fault(node, ALL_GPUS, "nvmlInit*", "DRIVER_NOT_LOADED")
    seen = watch(node.root, poll_seconds=0.2)
    reason = seen.not_ready_that("nvmlInit answered DRIVER_NOT_LOADED")
    assert LIBRARY_FOLDER in reason
    assert seen.discovery.current() is None
    node.state.clear()
    seen.told_that(lambda inventory: len(inventory.gpus) == 2)
    assert seen.discovery.not_ready() == ""


def test_b03_gpus_that_come_after_an_empty_list_are_published(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=0)
    seen = watch(node.root, poll_seconds=0.2)
    empty = seen.told_that(lambda inventory: inventory.generation == 1)
    assert empty.gpus == ()
    assert seen.discovery.not_ready() == ""
    node.add_gpu("h100-80gb")
    seen.told_that(lambda inventory: len(inventory.gpus) == 1)


def test_b03_an_empty_list_is_asked_for_anew_from_the_driver(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=0)
    seen = watch(node.root)
    seen.look()
    fault(node, ALL_GPUS, "nvmlInit*", "DRIVER_NOT_LOADED")
    with pytest.raises(DriverNotReady, match="nvmlInit answered DRIVER_NOT_LOADED"):
        seen.look()


def test_nvml_is_held_over_looks_and_opened_anew_for_a_new_gpu(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=1)
    seen = watch(node.root)
    first = seen.look()
    fault(node, ALL_GPUS, "nvmlInit*", "DRIVER_NOT_LOADED")
    assert seen.look() is first, "no nvmlInit per look"
    node.add_gpu("h100-80gb")
    with pytest.raises(DriverNotReady, match="nvmlInit answered DRIVER_NOT_LOADED"):
        seen.look()


def test_a_gpu_that_nvml_lists_first_needs_no_new_session(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    """Closing a session loses the events that come before the next one listens."""
    node = make_node(gpus=1)
    seen = watch(node.root)
    seen.look()
    of_kernel = node.root / "proc/driver/nvidia/gpus"
    before = set(of_kernel.iterdir())
    node.add_gpu("h100-80gb")
    (new,) = set(of_kernel.iterdir()) - before
    new.rename(node.root / "later")
    assert len(seen.look().gpus) == 2
    (node.root / "later").rename(new)
    fault(node, ALL_GPUS, "nvmlInit*", "DRIVER_NOT_LOADED")
    assert len(seen.look().gpus) == 2


def test_b03_a_node_without_gpu_stays_up_quietly(make_node: MakeNode, watch: MakeWatch) -> None:
    seen = watch(make_node(gpus=0).root)
    assert [seen.look().gpus for _ in range(3)] == [()] * 3
    assert len(seen.told) == 1
    assert seen.metric("gpu_dra_driver_nvml_ready") == 1


def test_b03_gpus_that_nvml_does_not_list_are_told_of(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=2)
    (node.root / "dev/nvidia1").unlink()
    inventory = watch(node.root).look()
    assert len(inventory.gpus) == 1
    (problem,) = inventory.problems
    assert "NVML lists 1 of the 2 GPUs that the kernel driver has" in problem.message


def test_b03_half_initialised_gpus_are_looked_at_again(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=2)
    fault(node, 1, "nvmlDeviceGetHandleByIndex", "UNKNOWN")
    seen = watch(node.root, poll_seconds=0.2)
    first = seen.told_that(lambda inventory: len(inventory.gpus) == 1)
    (problem,) = first.problems
    assert problem.subject == "gpu 1"
    assert "nvmlDeviceGetHandleByIndex answered UNKNOWN" in problem.message
    node.state.clear()
    seen.told_that(lambda inventory: len(inventory.gpus) == 2 and not inventory.problems)


def test_b03_a_driver_that_goes_leaves_the_last_snapshot(
    make_node: MakeNode, watch: MakeWatch, tmp_path: Path
) -> None:
    node = make_node(gpus=2)
    seen = watch(node.root, poll_seconds=0.2)
    first = seen.told_that(lambda inventory: len(inventory.gpus) == 2)
    libraries, aside = node.root / LIBRARY_FOLDER, tmp_path / "aside"
    libraries.rename(aside)
    seen.not_ready_that("was not found")
    assert seen.discovery.current() is first
    with pytest.raises(DriverNotReady, match="was not found"):
        seen.look()
    aside.rename(libraries)
    assert seen.look() is first


# ---- B09: driver in a non-standard root


@pytest.mark.parametrize("folder", ["usr/lib64", "lib64", "usr/lib"])
def test_b09_libraries_in_another_folder(
    make_node: MakeNode, watch: MakeWatch, folder: str
) -> None:
    node = make_node()
    target = node.root / folder
    target.parent.mkdir(parents=True, exist_ok=True)
    source = node.root / LIBRARY_FOLDER
    aside = node.root / "aside"
    source.rename(aside)
    source.parent.rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    aside.rename(target)
    assert watch(node.root).gpu().product_name == "NVIDIA H100 80GB HBM3"


def test_b09_links_are_absolute_on_the_host(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node()
    link = node.root / LIBRARY_FOLDER / "libnvidia-ml.so.1"
    versioned = link.readlink()
    link.unlink()
    link.symlink_to(Path("/", LIBRARY_FOLDER, versioned))
    assert not link.exists(), "as a process outside of the root sees it"
    assert watch(node.root).gpu().minor == 0


def test_b09_a_driver_root_with_libraries_only(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = make_node()
    root = tmp_path / "home/kubernetes/bin/nvidia"
    (root / "lib64").mkdir(parents=True)
    for library in (node.root / LIBRARY_FOLDER).glob("libnvidia-ml.so.*"):
        shutil.copy(library, root / "lib64", follow_symlinks=False)
    state = next((node.root / LIBRARY_FOLDER).glob("libnvidia-simstate.so.*"))
    monkeypatch.setenv("SIM_NVML_STATE", str(state))  # device nodes stand elsewhere
    monkeypatch.setenv("SIM_NVML_PREFIX", str(node.root))
    assert watch(node.root, container_driver_root=root).gpu().minor == 0


# ---- B39: profile names are not keys


def test_b39_two_models_give_one_name_different_ids(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(
        spec=NodeSpec.model_validate(
            {
                "gpus": [
                    {"model": "a100-40gb", "partitions": [{"profile": "1g.10gb"}]},
                    {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb"}]},
                ]
            }
        )
    )
    inventory = watch(node.root).look()
    found = {
        gpu.product_name: (part.profile.name, part.profile.gi_profile_id, part.profile.memory_bytes)
        for gpu in inventory.gpus
        for part in gpu.partitions
    }
    assert found == {
        "NVIDIA A100-SXM4-40GB": ("1g.10gb", 15, 9856 << 20),
        "NVIDIA H100 80GB HBM3": ("1g.10gb", 19, 9984 << 20),
    }


@pytest.mark.parametrize("wanted", [4, 8])
def test_b39_the_compute_profile_is_the_one_in_use(
    make_node: MakeNode, watch: MakeWatch, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    h100 = models.MODELS["h100-80gb"]
    both = tuple(replace(gi, ci=tuple(replace(ci, creatable=1) for ci in gi.ci)) for gi in h100.gi)
    monkeypatch.setitem(models.MODELS, "h100-80gb", replace(h100, gi=both))
    node = make_node(
        spec=NodeSpec.model_validate(
            {
                "gpus": [
                    {
                        "model": "h100-80gb",
                        "partitions": [{"profile": "7g.80gb", "computeInstance": False}],
                    }
                ]
            }
        )
    )
    seen = watch(node.root)
    assert seen.gpu().partitions[0].profile.ci_profile_id == 4
    gi = seen.gpu().partitions[0].gi_id
    node.nvml(
        f"""
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu, {gi})
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, {wanted})
"""
    )
    (part,) = seen.gpu().partitions
    assert part.profile.ci_profile_id == wanted
    assert part.uuid is not None


def test_b39_names_come_from_the_driver_where_it_has_them(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    partitions = [{"profile": "1g.18gb"}, {"profile": "1g.35gb"}, {"profile": "3g.71gb"}]
    node = make_node(
        spec=NodeSpec.model_validate({"gpus": [{"model": "h200", "partitions": partitions}]})
    )
    told = {part.profile.name for part in watch(node.root).gpu().partitions}
    assert told == {"1g.18gb", "1g.35gb", "3g.71gb"}
    fault(node, ALL_GPUS, "nvmlDeviceGetGpuInstanceProfileInfoV", "FUNCTION_NOT_FOUND")
    computed = {part.profile.name for part in watch(node.root).gpu().partitions}
    assert computed == told, "older drivers have no text: computed as NVIDIA does"
