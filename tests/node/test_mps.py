"""MPS for claims: the real plugin, the real agent, and a simulated control daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.host import is_mounted
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import eventually
from tests.support.mps import needs_root
from tests.support.mps_agent import IS_ROOT, MakeMpsBed, MpsNodeBed, mps_config


@pytest.fixture
def bed(make_mps_bed: MakeMpsBed) -> MpsNodeBed:
    return make_mps_bed(gpus=2)


def test_a_claim_has_a_daemon_and_its_containers_find_it(bed: MpsNodeBed) -> None:
    config = mps_config(defaultActiveThreadPercentage=40, defaultPinnedDeviceMemoryLimit="10Gi")
    ref = bed.claim("one", "gpu-0", config=[config])
    bed.prepare(ref)
    (daemon,) = bed.daemons()
    assert daemon["visibleDevices"] == bed.node.gpu(0)["uuid"]
    assert daemon["activeThreadPercentage"] == 40
    assert daemon["pinnedMemoryLimits"] == {"0": 10 * 2**30}
    assert not daemon["multiUser"]
    assert bed.modes() == ["EXCLUSIVE_PROCESS", "DEFAULT"]
    (edits,) = bed.edits(ref)
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in edits["env"]
    assert str(bed.folders(ref)["/tmp/nvidia-mps"]) == daemon["pipeDirectory"]
    program = bed.attach(ref)
    program.gets("10Gi")
    assert program.refused_by("1Mi") == "mps"


def test_the_last_of_several_claims_takes_everything_along(bed: MpsNodeBed) -> None:
    first, second = bed.share("first", "gpu-0"), bed.share("second", "gpu-0")
    bed.prepare(first)
    bed.prepare(second)
    (daemon,) = bed.daemons()
    shm = bed.folders(first)["/dev/shm"]
    assert is_mounted(shm) is IS_ROOT
    bed.unprepare(first)
    assert [each["pid"] for each in bed.daemons()] == [daemon["pid"]]
    bed.attach(second).end()
    bed.unprepare(second)
    assert bed.leftovers() == []
    assert not is_mounted(shm)


@needs_root
def test_b35_programs_of_two_users_attach_at_the_same_time(bed: MpsNodeBed) -> None:
    first, second = bed.share("first", "gpu-0"), bed.share("second", "gpu-0")
    bed.prepare(first)
    bed.prepare(second)
    programs = [bed.attach(first, user=1001), bed.attach(second, user=1002)]
    for program in programs:
        program.gets("1Gi")
    assert bed.daemons()[0]["multiUser"]


@needs_root
def test_b35_a_claim_alone_serves_one_user_unless_it_says_so(bed: MpsNodeBed) -> None:
    ref = bed.claim("one", "gpu-0", config=[mps_config(multiUser=True)])
    bed.prepare(ref)
    for user in (1001, 1002):
        bed.attach(ref, user=user).gets("1Gi")


def test_b35_limits_reach_the_right_device(bed: MpsNodeBed) -> None:
    uuids = sorted(gpu["uuid"] for gpu in bed.node.show()["gpus"])
    config = mps_config(
        defaultPinnedDeviceMemoryLimit="3000Mi",
        defaultPerDevicePinnedMemoryLimit={uuids[1]: "1044Mi"},
        shmSize="32Mi",
    )
    ref = bed.claim("two", "gpu-0", "gpu-1", config=[config])
    bed.prepare(ref)
    (daemon,) = bed.daemons()
    assert daemon["visibleDevices"].split(",") == uuids
    assert daemon["pinnedMemoryLimits"] == {"0": 3000 * 2**20, "1": 1044 * 2**20}
    program = bed.attach(ref, "device", "1")
    program.gets("1044Mi")
    assert program.refused_by("1Mi") == "mps"
    if IS_ROOT:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        (options,) = [line[-1] for line in mounts if line[4] == str(bed.folders(ref)["/dev/shm"])]
        assert "size=32768k" in options


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"defaultActiveThreadPercentage": 101}, "defaultActiveThreadPercentage"),
        ({"defaultActiveThreadPercentage": -1}, "defaultActiveThreadPercentage"),
        ({"defaultPinnedDeviceMemoryLimit": "0"}, "defaultPinnedDeviceMemoryLimit"),
        ({"defaultPinnedDeviceMemoryLimit": "-1Gi"}, "defaultPinnedDeviceMemoryLimit"),
        ({"defaultPinnedDeviceMemoryLimit": "81Gi"}, "defaultPinnedDeviceMemoryLimit"),
        ({"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}, "invalid device index"),
    ],
)
def test_b35_limits_that_can_not_be_are_refused(
    bed: MpsNodeBed, settings: dict[str, Any], words: str
) -> None:
    ref = bed.claim("wrong", "gpu-0", config=[mps_config(**settings)])
    with pytest.raises(CallFailed, match=words):
        bed.prepare(ref)
    assert bed.claim_files() == set()
    assert bed.leftovers() == []


@pytest.mark.parametrize("model", ["p4", "gb10"])
def test_b35_unsupported_hardware_is_named(make_mps_bed: MakeMpsBed, model: str) -> None:
    bed = make_mps_bed(model=model)
    ref = bed.claim("old", "gpu-0", config=[mps_config(defaultPinnedDeviceMemoryLimit="1Gi")])
    wanted = r"capability 7\.0" if model == "p4" else "shares its memory with the CPU"
    with pytest.raises(CallFailed, match=wanted):
        bed.prepare(ref)
    assert bed.leftovers() == []


def test_b36_equal_settings_share_a_daemon_and_others_are_refused_by_name(bed: MpsNodeBed) -> None:
    first = bed.share("first", "gpu-0", defaultActiveThreadPercentage=50)
    bed.prepare(first)
    bed.prepare(bed.share("second", "gpu-0", defaultActiveThreadPercentage=50))
    assert len(bed.daemons()) == 1
    other = bed.share("other", "gpu-0", defaultActiveThreadPercentage=20)
    with pytest.raises(
        CallFailed, match=r"default/(first|second).*ThreadPercentage: 20 against 50"
    ):
        bed.prepare(other)
    assert len(bed.daemons()) == 1


def test_b36_sets_that_overlap_are_refused_by_name(bed: MpsNodeBed) -> None:
    bed.prepare(bed.share("both", "gpu-0", "gpu-1"))
    one = bed.share("one", "gpu-1")
    with pytest.raises(CallFailed, match=r"gpu-1 .*for gpu-0 with gpu-1, which claim default/both"):
        bed.prepare(one)
    assert len(bed.daemons()) == 1


def test_b36_two_daemons_for_one_container_are_refused_up_front(bed: MpsNodeBed) -> None:
    configs = [mps_config(defaultActiveThreadPercentage=percent) for percent in (10, 20)]
    ref = bed.claim_of_requests("two", gpu_0=configs[0], gpu_1=configs[1])
    with pytest.raises(CallFailed, match=r"gpu-0 \(request request-0\) and gpu-1 .*a container"):
        bed.prepare(ref)
    assert bed.leftovers() == []


def test_admin_access_changes_nothing(bed: MpsNodeBed) -> None:
    ref = bed.claim("admin", {"device": "gpu-0", "adminAccess": True}, config=[mps_config()])
    bed.prepare(ref)
    assert bed.leftovers() == []
    assert "/tmp/nvidia-mps" not in json.dumps(bed.edits(ref))


def test_a_repeated_prepare_changes_nothing(bed: MpsNodeBed) -> None:
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    pid = bed.daemons()[0]["pid"]
    program = bed.attach(ref)
    bed.prepare(ref)
    assert bed.daemons()[0]["pid"] == pid
    program.gets("1Gi")


def test_time_slicing_and_mps_on_two_gpus_of_one_claim(bed: MpsNodeBed) -> None:
    slicing = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    }
    ref = bed.claim_of_requests("mixed", gpu_0=slicing, gpu_1=mps_config())
    bed.prepare(ref)
    assert [gpu["timeslice"] for gpu in bed.node.show()["gpus"]] == [3, 0]
    assert bed.modes() == ["DEFAULT", "EXCLUSIVE_PROCESS"]
    bed.unprepare(ref)
    assert bed.leftovers() == []


def test_without_an_agent_a_claim_is_told_what_to_do(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False)
    bed.serve("--prepare-retry=10ms")
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    with pytest.raises(CallFailed, match=r"agent is not there .*start `dra-driver mps-agent`"):
        bed.prepare(ref)
    assert bed.claim_files() == set()
    plain = bed.claim("plain", "gpu-0")
    bed.prepare(plain)
    bed.start_agent()
    bed.unprepare(plain)
    bed.prepare(ref)
    eventually(lambda: bed.metric('gpu_dra_driver_mps_sets{state="ready"}') == 1, "it is counted")
