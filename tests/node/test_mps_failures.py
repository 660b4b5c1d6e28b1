"""Control daemons that do not come up, go silent, or die: field report B34, and its kin."""

import os
import signal
import sys
import threading

import pytest

from dra_driver.host import is_mounted
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import eventually
from tests.support.mps import MpsDaemon, needs_root
from tests.support.mps_agent import MakeMpsBed, MpsNodeBed, mps_config

FOR_EVER = 4_000_000.0
# Becomes a program that may mount nothing: CAP_SYS_ADMIN is taken from all that root can have.
_WITHOUT_MOUNTS = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(24, 21) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def fails(bed: MpsNodeBed, words: str) -> None:
    """Expect that a claim is not prepared, for that reason, and that nothing is left of it."""
    ref = bed.claim("fails", "gpu-0", config=[mps_config()])
    with pytest.raises(CallFailed, match=words):
        bed.prepare(ref)
    assert bed.claim_files() == set()
    assert bed.leftovers() == []
    bed.unprepare(ref)


def test_b34_a_daemon_that_never_gets_ready_is_waited_for_in_bounds(
    make_mps_bed: MakeMpsBed,
) -> None:
    bed = make_mps_bed(agent=("--ready-timeout=500ms",))
    bed.fault("mps.start", hang=FOR_EVER)
    fails(bed, r"control daemon was not ready within 0\.5 s: it said nothing")
    bed.node.state.clear()
    bed.agents[0].stop()
    bed.start_agent()  # which has more time for one that is well
    bed.prepare(bed.claim("works", "gpu-0", config=[mps_config()]))


def test_b34_a_daemon_that_exits_at_once_has_the_last_word(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("mps.start", "UNKNOWN")
    fails(bed, r"control daemon ended with status 1: .*Failed to start: Unknown Error")


def test_b34_a_daemon_that_refuses_is_told_of(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("mps.command.*", "UNKNOWN")
    fails(bed, r"get_server_list failed: Unknown Error")


def test_b34_a_limit_that_does_not_stay_is_told_of(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("mps.command.set_default_active_thread_percentage", "UNKNOWN")
    config = mps_config(defaultActiveThreadPercentage=50)
    with pytest.raises(CallFailed, match=r"set_default_active_thread_percentage failed"):
        bed.prepare(bed.claim("one", "gpu-0", config=[config]))
    assert bed.leftovers() == []


def test_b34_a_slow_daemon_is_started_once_for_all_who_wait(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("mps.start", hang=3)
    refs = [bed.share(name, "gpu-0") for name in ("first", "second", "third")]
    failures: list[Exception] = []

    def prepare(number: int) -> None:
        try:
            bed.prepare(refs[number])
        except CallFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(bed.daemons()) == 1
    assert len(bed.agents[0].lines("a control daemon is ready")) == 1


def test_b34_without_the_program_the_claim_says_so(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    (bed.node.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    fails(bed, r"no nvidia-cuda-mps-control below .*install the GPU driver's compute utilities")


def test_b34_no_shell_is_needed_in_the_driver_root(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    assert not list(bed.node.root.rglob("sh"))
    bed.prepare(bed.claim("one", "gpu-0", config=[mps_config()]))
    assert len(bed.daemons()) == 1


@needs_root
def test_b34_a_mount_that_is_refused_leaves_nothing(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False)
    bed.start_agent(wrapper=(sys.executable, "-c", _WITHOUT_MOUNTS))
    bed.serve("--prepare-retry=10ms")
    fails(bed, r"no tmpfs can be mounted at .*/shm: Operation not permitted; run this as root")
    bed.agents[0].stop()
    bed.start_agent("--shm=folder")
    bed.prepare(bed.claim("works", "gpu-0", config=[mps_config()]))


def test_b34_compute_mode_that_is_refused_leaves_nothing(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("nvmlDeviceSetComputeMode", "NO_PERMISSION")
    fails(bed, r"compute mode of GPU-.* NO_PERMISSION; run the plugin as root and privileged")


def test_gpus_without_compute_modes_have_mps_all_the_same(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.fault("nvmlDeviceGetComputeMode", "NOT_SUPPORTED")
    bed.fault("nvmlDeviceSetComputeMode", "NOT_SUPPORTED")
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    bed.attach(ref).gets("1Gi")
    bed.unprepare(ref)
    assert bed.leftovers() == []


def test_b34_a_daemon_that_dies_in_use_is_told_of_and_followed_by_another(
    make_mps_bed: MakeMpsBed,
) -> None:
    bed = make_mps_bed()
    ref = bed.claim("one", "gpu-0", config=[mps_config(defaultPinnedDeviceMemoryLimit="4Gi")])
    bed.prepare(ref)
    program = bed.attach(ref)
    folders, pid = bed.folders(ref), bed.daemons()[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: bed.events("MpsInterrupted"), "the claim says so")
    (event,) = bed.events("MpsInterrupted")
    assert event["involvedObject"]["uid"] == ref.uid
    assert "lost gpu-0" in event["message"]
    assert f"(PID {pid}) ended with status -9" in event["message"]
    eventually(lambda: bed.events("MpsRestored"), "there is another")
    assert program.event("lost")
    assert bed.folders(ref) == folders
    again = bed.attach(ref)
    again.gets("4Gi")
    assert again.refused_by("1Mi") == "mps"
    assert bed.metric("gpu_dra_driver_mps_interruptions_total") == 1
    again.kill()
    bed.unprepare(ref)
    assert bed.leftovers() == []


def test_b34_while_there_is_no_daemon_the_pod_is_told(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    bed.prepare(ref := bed.claim("one", "gpu-0", config=[mps_config()]))
    bed.fault("mps.start", "UNKNOWN")
    os.kill(bed.daemons()[0]["pid"], signal.SIGKILL)
    eventually(lambda: bed.health()[0] == "UNHEALTHY", "the kubelet knows")
    eventually(lambda: "Failed to start" in bed.health()[1], "and why")
    assert bed.metric('gpu_dra_driver_mps_sets{state="down"}') == 1
    bed.node.state.clear()
    eventually(lambda: bed.health()[0] == "HEALTHY", "the kubelet knows that it is over")
    bed.attach(ref)


def test_b34_a_silent_daemon_serves_who_it_has_and_goes_with_its_claims(
    make_mps_bed: MakeMpsBed,
) -> None:
    bed = make_mps_bed()
    first, second = bed.share("first", "gpu-0"), bed.share("second", "gpu-0")
    bed.prepare(first)
    program = bed.attach(first)
    bed.fault("mps.command.*", hang=FOR_EVER)
    eventually(lambda: bed.health()[0] == "UNHEALTHY", "it is noticed")
    with pytest.raises(CallFailed, match=r"control daemon \(PID \d+\) does not answer"):
        bed.prepare(second)
    program.gets("1Gi")
    assert bed.events("MpsInterrupted") == []
    program.kill()
    bed.unprepare(first)
    assert bed.leftovers() == []


def test_b34_limits_that_somebody_changed_are_set_again(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed("--sweep-interval=500ms")
    ref = bed.claim("one", "gpu-0", config=[mps_config(defaultPinnedDeviceMemoryLimit="4Gi")])
    bed.prepare(ref)
    daemon = MpsDaemon(bed.node, bed.folders(ref)["/tmp/nvidia-mps"].parent, None)
    daemon.ask("set_default_device_pinned_mem_limit 0 60G")
    limits = {"0": 4 * 2**30}
    eventually(lambda: bed.daemons()[0]["pinnedMemoryLimits"] == limits, "they are set again")
    bed.node.smi("-i", "0", "-c", "DEFAULT")
    eventually(lambda: bed.modes() == ["EXCLUSIVE_PROCESS"], "so is the compute mode")


@pytest.mark.parametrize("place", ["before-daemon", "after-daemon", "after-ready"])
def test_b34_an_agent_killed_while_it_starts_a_daemon_leaves_nothing(
    make_mps_bed: MakeMpsBed, place: str
) -> None:
    bed = make_mps_bed(start=False)
    agent = bed.start_agent(environment={"DRA_DRIVER_FAILPOINT": place})
    bed.serve("--prepare-retry=10ms")
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    with pytest.raises(CallFailed, match=r"MPS agent|another call"):
        bed.prepare(ref)
    eventually(lambda: not agent.running, "it died")
    bed.unprepare(ref)
    bed.start_agent()
    eventually(lambda: bed.leftovers() == [], "the next agent clears up")
    bed.prepare(ref)
    bed.attach(ref)


@pytest.mark.parametrize("place", ["before-release", "after-unmount"])
def test_b34_an_agent_killed_while_it_releases_a_set_leaves_nothing(
    make_mps_bed: MakeMpsBed, place: str
) -> None:
    bed = make_mps_bed(start=False)
    agent = bed.start_agent(environment={"DRA_DRIVER_FAILPOINT": place})
    bed.serve("--prepare-retry=10ms")
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    shm = bed.folders(ref)["/dev/shm"]
    bed.unprepare(ref)
    eventually(lambda: not agent.running, "it died")
    assert bed.modes() == ["DEFAULT"]
    bed.start_agent()
    eventually(lambda: bed.leftovers() == [], "the next agent clears up")
    assert not is_mounted(shm)


@pytest.mark.parametrize("place", ["after-compute-mode", "before-mps", "after-mps"])
def test_b34_a_plugin_killed_around_the_start_of_a_daemon_finds_it_again(
    make_mps_bed: MakeMpsBed, place: str
) -> None:
    bed = make_mps_bed(start=False)
    bed.start_agent()
    order = f"prepare:sharing/{place}"
    plugin = bed.serve("--prepare-retry=10ms", environment={"DRA_DRIVER_FAILPOINT": order})
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    with pytest.raises(CallFailed):
        bed.prepare(ref)
    eventually(lambda: not plugin.running, "it died")
    bed.serve("--prepare-retry=10ms")
    bed.prepare(ref)
    assert len(bed.daemons()) == 1
    bed.unprepare(ref)
    assert bed.leftovers() == []
