"""MIG through pynvml alone: every profile, every placement, and what fits together."""

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml
import pytest

from dra_driver.simulator import models
from dra_driver.simulator.mig_profiles import GiProfile
from dra_driver.simulator.models import GpuModel
from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, expect

MIG_MODELS = ["a100-40gb", "a100-80gb", "b200", "gb200", "h100-80gb", "h200"]

# Profile id to placements, from `nvidia-smi mig -lgipp` on GPUs with eight memory slices.
PLACEMENTS = {
    19: {(start, 1) for start in range(7)},
    20: {(start, 1) for start in range(7)},
    15: {(0, 2), (2, 2), (4, 2), (6, 2)},
    14: {(0, 2), (2, 2), (4, 2)},
    9: {(0, 4), (4, 4)},
    5: {(0, 4)},
    0: {(0, 8)},
}


@dataclass(frozen=True)
class MigGpu:
    """A GPU with MIG on."""

    node: SimulatedNode
    model: GpuModel
    device: Any

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.node.gpu(0)["instances"]
        return found


@pytest.fixture(params=MIG_MODELS)
def mig_gpu(request: pytest.FixtureRequest, make_node: MakeNode, use_nvml: UseNvml) -> MigGpu:
    node = make_node(model=request.param)
    node.state.set_mig_mode(0, on=True)
    node.state.reset(0)
    use_nvml(node)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return MigGpu(node, models.model(request.param), device)


def placements(device: Any, profile_id: int) -> set[tuple[int, int]]:
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        device, profile_id, array, ctypes.byref(count)
    )
    return {(entry.start, entry.size) for entry in array}


def create(device: Any, profile_id: int, start: int, size: int) -> Any:
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, ctypes.byref(wanted))


def listed(device: Any, version: int) -> dict[int, Any]:
    found = {}
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(pynvml.NVMLError_NotSupported):
            found[index] = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, index, version)
    return found


def check_profile(info: Any, profile: GiProfile) -> None:
    pairs = [
        (info.id, profile.id),
        (info.sliceCount, profile.slices),
        (info.instanceCount, profile.max_instances),
        (info.multiprocessorCount, profile.multiprocessors),
        (info.copyEngineCount, profile.copy_engines),
        (info.decoderCount, profile.decoders),
        (info.encoderCount, profile.encoders),
        (info.jpegCount, profile.jpegs),
        (info.ofaCount, profile.ofas),
        (info.memorySizeMB, profile.memory_mib),
    ]
    assert [left for left, _ in pairs] == [right for _, right in pairs], profile.name


def test_profiles_in_all_versions(mig_gpu: MigGpu) -> None:
    first, second = listed(mig_gpu.device, 1), listed(mig_gpu.device, 2)
    assert set(first) == set(second) == {profile.index for profile in mig_gpu.model.gi}
    for profile in mig_gpu.model.gi:
        check_profile(first[profile.index], profile)
        check_profile(second[profile.index], profile)
        assert second[profile.index].name == profile.name
        by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoByIdV(mig_gpu.device, profile.id)
        check_profile(by_id, profile)
    assert {info.id for info in first.values()} == set(PLACEMENTS)


def test_every_profile_and_placement_can_be_made_and_removed(mig_gpu: MigGpu) -> None:
    made = 0
    for profile_id, expected in PLACEMENTS.items():
        assert placements(mig_gpu.device, profile_id) == expected
        for start, size in sorted(expected):
            gi = create(mig_gpu.device, profile_id, start, size)
            info = pynvml.nvmlGpuInstanceGetInfo(gi)
            assert (info.profileId, info.placement.start, info.placement.size) == (
                profile_id,
                start,
                size,
            )
            ci = whole_compute_instance(gi)
            assert mig_gpu.instances()[0]["start"] == start
            pynvml.nvmlComputeInstanceDestroy(ci)
            pynvml.nvmlGpuInstanceDestroy(gi)
            assert mig_gpu.instances() == []
            made += 1
    assert made == 25


def whole_compute_instance(gi: Any) -> Any:
    """Make the compute instance that takes all slices: of those listed one can be made."""
    slices = whole_slices(gi)
    made = []
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with suppress(pynvml.NVMLError_NotSupported):
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, index, 0)
            if info.sliceCount == slices:
                made.append(pynvml.nvmlGpuInstanceCreateComputeInstance(gi, info.id))
    assert len(made) == 1
    return made[0]


def whole_slices(gi: Any) -> int:
    info = pynvml.nvmlGpuInstanceGetInfo(gi)
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfoByIdV(info.device, info.profileId)
    slices: int = profile.sliceCount
    return slices


def test_every_compute_placement_can_be_made_and_removed(mig_gpu: MigGpu) -> None:
    for profile in mig_gpu.model.gi:
        gi = pynvml.nvmlDeviceCreateGpuInstance(mig_gpu.device, profile.id)
        for ci_profile in profile.ci:
            for start in ci_profile.starts if ci_profile.creatable else ():
                wanted = pynvml.c_nvmlComputeInstancePlacement_t(start, ci_profile.slices)
                ci = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                    gi, ci_profile.id, ctypes.byref(wanted)
                )
                info = pynvml.nvmlComputeInstanceGetInfo(ci)
                assert (info.profileId, info.placement.start) == (ci_profile.id, start)
                pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)


LAYOUTS = (
    [19] * 7,
    [15] * 4,
    [14, 14, 14, 19],
    [9, 9],
    [5, 9],
    [5, 14, 19],
    [9, 14, 19],
    [0],
    [20, 19, 19, 19, 19, 19, 19],
)


def test_usual_layouts_fit_and_fill(mig_gpu: MigGpu) -> None:
    for layout in LAYOUTS:
        for profile_id in layout:
            pynvml.nvmlDeviceCreateGpuInstance(mig_gpu.device, profile_id)
        shown = mig_gpu.instances()
        assert sorted(instance["profileId"] for instance in shown) == sorted(layout)
        taken = [n for i in shown for n in range(i["start"], i["start"] + i["size"])]
        assert len(taken) == len(set(taken))
        assert len({instance["id"] for instance in shown}) == len(layout)
        mig_gpu.node.state.reset(0)


def test_remaining_capacity_is_what_can_be_made(mig_gpu: MigGpu) -> None:
    for profile_id, expected in ((19, 7), (20, 1), (15, 4), (14, 3), (9, 2), (5, 1), (0, 1)):
        for left in range(expected, 0, -1):
            capacity = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig_gpu.device, profile_id)
            assert capacity == left
            pynvml.nvmlDeviceCreateGpuInstance(mig_gpu.device, profile_id)
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig_gpu.device, profile_id) == 0
        expect(
            "INSUFFICIENT_RESOURCES",
            pynvml.nvmlDeviceCreateGpuInstance,
            mig_gpu.device,
            profile_id,
        )
        mig_gpu.node.state.reset(0)


@pytest.mark.parametrize(
    ("profiles", "ids"),
    [
        ([19] * 7, [13, 11, 12, 7, 8, 9, 10]),
        ([19, 14, 5], [13, 5, 1]),  # MIG user guide, "4-2-1 geometry"
        ([9, 19, 14, 19], [2, 7, 4, 8]),  # MIG user guide, "3-2-1-1 geometry"
        ([19, 19, 14], [13, 11, 3]),  # the same, in an order that leaves no room for 3g
        ([14, 14, 14, 20], [5, 3, 4, 13]),
        ([9, 9], [2, 1]),
    ],
)
def test_driver_chooses_the_places_that_real_drivers_choose(
    nvml_node: SimulatedNode, profiles: list[int], ids: list[int]
) -> None:
    """Instance ids as `nvidia-smi mig -cgi` prints them; they follow from size and place."""
    nvml_node.state.set_mig_mode(0, on=True)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    made = [pynvml.nvmlDeviceCreateGpuInstance(gpu, profile_id) for profile_id in profiles]
    assert [pynvml.nvmlGpuInstanceGetInfo(gi).id for gi in made] == ids
    if profiles == [19, 19, 14]:
        expect("INSUFFICIENT_RESOURCES", pynvml.nvmlDeviceCreateGpuInstance, gpu, 9)


def test_mig_devices(nvml_node: SimulatedNode) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    first = nvml_node.state.partition(0, "3g.40gb", 0)
    second = nvml_node.state.partition(0, "1g.10gb", 6)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    uuid_of = {
        instance["id"]: instance["computeInstances"][0]["uuid"]
        for instance in nvml_node.gpu(0)["instances"]
    }
    for index, gi_id in enumerate(sorted((first, second))):
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
        assert pynvml.nvmlDeviceGetIndex(mig) == index
        assert pynvml.nvmlDeviceGetGpuInstanceId(mig) == gi_id
        assert pynvml.nvmlDeviceGetComputeInstanceId(mig) == 0
        assert pynvml.nvmlDeviceGetUUID(mig) == uuid_of[gi_id]
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        assert pynvml.nvmlDeviceGetUUID(parent) == nvml_node.gpu(0)["uuid"]
        again = pynvml.nvmlDeviceGetHandleByUUID(uuid_of[gi_id])
        assert pynvml.nvmlDeviceGetGpuInstanceId(again) == gi_id
    expect("NOT_FOUND", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 2)


def test_mig_device_attributes_and_memory(nvml_node: SimulatedNode) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    gi_id = nvml_node.state.partition(0, "3g.40gb", 0)
    nvml_node.state.process(0, 5, 2 << 30, gi_id=gi_id, ci_id=0)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    attributes = pynvml.nvmlDeviceGetAttributes(mig)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (60, 40448)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert (attributes.sharedCopyEngineCount, attributes.sharedDecoderCount) == (3, 3)
    memory = pynvml.nvmlDeviceGetMemoryInfo(mig)
    assert (memory.total, memory.used) == (40448 << 20, 2 << 30)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(mig)
    assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (5, gi_id, 0)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert process.gpuInstanceId == gi_id


def test_gpu_instance_without_compute_instance_is_no_mig_device(nvml_node: SimulatedNode) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    gi_id = nvml_node.state.partition(0, "2g.20gb", compute_instance=False)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    expect("NOT_FOUND", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0)
    gi = pynvml.nvmlDeviceGetGpuInstanceById(gpu, gi_id)
    assert pynvml.nvmlGpuInstanceGetInfo(gi).profileId == 14
    count = ctypes.c_uint()
    array = (pynvml.c_nvmlGpuInstance_t * 7)()
    pynvml.nvmlDeviceGetGpuInstances(gpu, 14, array, ctypes.byref(count))
    assert count.value == 1


def test_partition_made_anew_has_another_uuid(nvml_node: SimulatedNode) -> None:
    nvml_node.state.set_mig_mode(0, on=True)
    uuids = set()
    for _ in range(3):
        gi_id = nvml_node.state.partition(0, "1g.10gb", 0)
        uuids.add(nvml_node.gpu(0)["instances"][0]["computeInstances"][0]["uuid"])
        nvml_node.state.unpartition(0, gi_id)
    assert len(uuids) == 3
