"""What discovery finds on a simulated node: GPUs, partitions, and their changes."""

from pathlib import Path

import pytest

from dra_driver.model import Gpu, Inventory, MemoryType, Placement
from dra_driver.simulator.node_file import NodeSpec
from tests.support.discovery import MakeWatch
from tests.support.node import MakeNode, SimulatedNode

MIB = 1 << 20


def spec(*gpus: dict[str, object]) -> NodeSpec:
    return NodeSpec.model_validate({"gpus": gpus})


def named(inventory: Inventory) -> list[str]:
    return [device.name for device in inventory.devices()]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("h100-80gb", ("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", (9, 0), 81559, "HMM", True)),
        ("a100-40gb", ("NVIDIA A100-SXM4-40GB", "Nvidia", "Ampere", (8, 0), 40960, "HMM", True)),
        ("gb200", ("NVIDIA GB200", "Nvidia", "Blackwell", (10, 0), 189471, "ATS", True)),
        ("l40s", ("NVIDIA L40S", "Nvidia", "Ada Lovelace", (8, 9), 46068, "HMM", False)),
        ("t4", ("Tesla T4", "Nvidia", "Turing", (7, 5), 15360, "None", False)),
        ("p4", ("Tesla P4", "Tesla", "Pascal", (6, 1), 7680, None, False)),
    ],
)
def test_facts_of_each_kind_of_gpu(
    make_node: MakeNode, watch: MakeWatch, model: str, expected: tuple[object, ...]
) -> None:
    node = make_node(model=model, gpus=2)
    inventory = watch(node.root).look()
    assert inventory.problems == ()
    assert [gpu.uuid for gpu in inventory.gpus] == [gpu["uuid"] for gpu in node.show()["gpus"]]
    gpu = inventory.gpus[1]
    assert gpu.minor == 1
    assert gpu.memory_bytes is not None
    assert expected == (
        gpu.product_name,
        gpu.brand,
        gpu.architecture,
        gpu.compute_capability,
        gpu.memory_bytes // MIB,
        gpu.addressing_mode,
        gpu.mig_capable,
    )
    assert gpu.memory_type is MemoryType.DEDICATED
    assert not gpu.mig_enabled


def test_versions_and_place_of_a_gpu(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(gpus=8)
    inventory = watch(node.root).look()
    assert inventory.driver_version == "580.95.05"
    assert inventory.cuda_driver_version == (13, 0)
    first, last = inventory.gpus[0], inventory.gpus[7]
    assert (first.pci_bus_id, first.pcie_root, first.numa_node) == ("0000:1b:00.0", "pci0000:10", 0)
    assert (last.pci_bus_id, last.pcie_root, last.numa_node) == ("0000:df:00.0", "pci0000:d0", 1)


def test_without_sysfs_the_place_is_left_out(
    make_node: MakeNode, watch: MakeWatch, tmp_path: Path
) -> None:
    gpu = watch(make_node().root, host_root=tmp_path).gpu()
    assert gpu.pci_bus_id == "0000:1b:00.0"
    assert gpu.pcie_root is None
    assert gpu.numa_node is None


def test_metrics_tell_of_discovery(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(gpus=3)
    seen = watch(node.root)
    seen.look()
    assert seen.metric("gpu_dra_driver_nvml_ready") == 1
    assert seen.metric("gpu_dra_driver_discovery_problems") == 0
    node.state.lose(0)
    seen.look()
    assert seen.metric("gpu_dra_driver_discovery_problems") == 1


def test_partitions_as_they_are(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(
        spec=spec(
            {
                "model": "h100-80gb",
                "partitions": [
                    {"profile": "3g.40gb", "start": 4},
                    {"profile": "1g.10gb+me", "start": 2},
                    {"profile": "1g.20gb", "start": 0},
                ],
            }
        )
    )
    seen = watch(node.root)
    gpu = seen.gpu()
    assert gpu.mig_enabled
    assert not gpu.mig_pending
    assert [(part.profile.name, part.placement) for part in gpu.partitions] == [
        ("1g.20gb", Placement(0, 2)),
        ("1g.10gb+me", Placement(2, 1)),
        ("3g.40gb", Placement(4, 4)),
    ]
    assert named(seen.look()) == [
        "gpu-0-mig-1g20gb-15-0",
        "gpu-0-mig-1g10gb-me-20-2",
        "gpu-0-mig-3g40gb-9-4",
    ]
    three = gpu.partitions[2].profile
    assert (three.gi_profile_id, three.ci_profile_id) == (9, 2)
    assert three.memory_bytes == 40448 * MIB
    assert (three.multiprocessors, three.copy_engines, three.decoders) == (60, 3, 3)
    assert (three.encoders, three.jpeg_engines, three.ofa_engines) == (0, 3, 0)


def mig_uuids(node: SimulatedNode) -> dict[tuple[int, int], str]:
    """UUIDs of MIG devices by instance ids, as any NVML client sees them."""
    rows = node.nvml(
        """
found = []
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
    try:
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except pynvml.NVMLError_NotFound:
        continue
    ids = pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)
    found.append([*ids, pynvml.nvmlDeviceGetUUID(mig)])
print(json.dumps(found))
"""
    )
    return {(gi, ci): uuid for gi, ci, uuid in rows}


def test_uuids_are_matched_by_instance_not_by_order(make_node: MakeNode, watch: MakeWatch) -> None:
    profiles = [{"profile": "1g.10gb", "start": start} for start in (6, 2, 4, 0)]
    node = make_node(spec=spec({"model": "h100-80gb", "partitions": profiles}))
    partitions = watch(node.root).gpu().partitions
    expected = mig_uuids(node)
    assert len(expected) == 4
    assert {(part.gi_id, part.ci_id): part.uuid for part in partitions} == expected


def test_a_gpu_instance_without_compute_instance_is_seen_but_not_given_out(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(
        spec=spec(
            {
                "model": "h100-80gb",
                "partitions": [
                    {"profile": "3g.40gb", "start": 0, "computeInstance": False},
                    {"profile": "1g.10gb", "start": 4},
                ],
            }
        )
    )
    seen = watch(node.root)
    bare, whole = seen.gpu().partitions
    assert (bare.placement, bare.uuid, bare.ci_id) == (Placement(0, 4), None, None)
    assert bare.profile.ci_profile_id == 2, "the compute-instance profile that would span it"
    assert whole.uuid is not None
    assert named(seen.look()) == ["gpu-0-mig-1g10gb-19-4"]


def test_a_gpu_instance_cut_into_compute_instances_is_not_given_out(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(
        spec=spec(
            {
                "model": "h100-80gb",
                "partitions": [{"profile": "2g.20gb", "computeInstance": False}],
            }
        )
    )
    gi = node.gpu(0)["instances"][0]["id"]
    node.nvml(
        f"""
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu, {gi})
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
"""
    )
    inventory = watch(node.root).look()
    assert named(inventory) == []
    (problem,) = inventory.problems
    assert problem.subject == inventory.gpus[0].uuid
    assert problem.message == (
        f"GPU instance {gi} (2g.20gb) is cut into smaller compute instances; it is not given out"
    )


def test_changes_by_hand_are_told_without_being_asked_for(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(gpus=2)
    seen = watch(node.root, poll_seconds=0.2)
    first = seen.told_that(lambda inventory: len(inventory.gpus) == 2)
    node.state.set_mig_mode(1, on=True)
    gi = node.state.partition(1, "2g.20gb", 2)
    second = seen.told_that(lambda i: "gpu-1-mig-2g20gb-14-2" in named(i))
    assert second.generation > first.generation
    node.state.unpartition(1, gi)
    seen.told_that(lambda inventory: named(inventory) == ["gpu-0"])
    node.add_gpu("l40s", seed="new")
    seen.told_that(lambda inventory: len(inventory.gpus) == 3)
    node.remove_gpu(0)
    seen.told_that(lambda inventory: len(inventory.gpus) == 2)


def test_nothing_is_told_while_nothing_changes(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(
        spec=spec({"model": "h100-80gb", "partitions": [{"profile": "1g.10gb"}]}, {"model": "gb10"})
    )
    seen = watch(node.root)
    first = seen.look()
    assert [seen.look() for _ in range(5)] == [first] * 5
    assert len(seen.told) == 1
    node.state.set_mig_mode(0, on=True)  # as it is already
    assert seen.look() is first


def test_a_driver_upgrade_is_a_reload_in_place(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(gpus=2)
    seen = watch(node.root, poll_seconds=0.2)
    seen.told_that(lambda inventory: inventory.driver_version == "580.95.05")
    node.set_driver_version("590.44.01")
    after = seen.told_that(lambda inventory: inventory.driver_version == "590.44.01")
    assert after.cuda_driver_version == (13, 1)
    assert len(after.gpus) == 2
    node.set_driver_version("580.95.05")
    seen.told_that(lambda inventory: inventory.driver_version == "580.95.05")


def test_a_driver_reload_is_seen_at_the_next_look(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(
        spec=spec({"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]}),
    )
    seen = watch(node.root)
    assert named(seen.look()) == ["gpu-0-mig-1g10gb-19-0"]
    node.state.driver_reload()
    assert named(seen.look()) == ["gpu-0"], "on Hopper neither mode nor instances survive"


def test_gpus_are_held_open_so_that_their_modes_last(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node()
    seen = watch(node.root)
    seen.look()
    set_exclusive = """
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceSetComputeMode(gpu, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
"""
    get = "print(pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(0)))"
    node.nvml(set_exclusive)
    for _ in range(3):
        seen.look()
    assert node.nvml(get) == 3
    seen.discovery.stop()
    assert node.nvml(get) == 0, "and let go of when discovery stops"


def whole(gpu: Gpu) -> bool:
    return not gpu.mig_enabled


def test_b37_mig_on_without_instances_is_not_a_whole_gpu(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(
        spec=spec(
            {"model": "h100-80gb", "migMode": True},
            {"model": "a100-40gb", "migMode": True},
            {"model": "h100-80gb"},
        )
    )
    seen = watch(node.root)
    inventory = seen.look()
    assert inventory.problems == ()
    assert [whole(gpu) for gpu in inventory.gpus].count(True) == 1
    assert len(named(inventory)) == 1, "the one GPU without MIG"
    assert node.state.calls() == [], "discovery changes nothing"


def test_b37_instances_made_by_hand_before_and_after_start_are_published(
    make_node: MakeNode, watch: MakeWatch
) -> None:
    node = make_node(
        spec=spec({"model": "a100-40gb", "partitions": [{"profile": "3g.20gb", "start": 4}]})
    )
    seen = watch(node.root, poll_seconds=0.2)
    seen.told_that(lambda i: named(i) == ["gpu-0-mig-3g20gb-9-4"])
    node.smi("mig", "-i", "0", "-cgi", "19:0", "-C")
    seen.told_that(lambda i: named(i) == ["gpu-0-mig-1g5gb-19-0", "gpu-0-mig-3g20gb-9-4"])


def test_b37_a_pending_mode_is_seen_and_left_alone(make_node: MakeNode, watch: MakeWatch) -> None:
    node = make_node(model="a100-40gb", gpus=2)
    node.state.set_mig_mode(0, on=True)
    seen = watch(node.root)
    pending, other = seen.look().gpus
    assert (pending.mig_enabled, pending.mig_pending) == (False, True)
    assert (other.mig_enabled, other.mig_pending) == (False, False)
    assert named(seen.look()) == ["gpu-0", "gpu-1"]
    node.state.reset(0)
    assert named(seen.look()) == ["gpu-1"]
    assert node.state.calls() == []
