"""Plugins and agents that are killed, stopped and replaced, and what becomes of MPS meanwhile."""

import pytest

from dra_driver.host import is_mounted
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import eventually
from tests.support.mps_agent import QUICK, MakeMpsBed, MpsNodeBed, mps_config

OLD, NEW = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


@pytest.fixture
def bed(make_mps_bed: MakeMpsBed) -> MpsNodeBed:
    return make_mps_bed(gpus=2)


@pytest.mark.parametrize("how", ["killed", "restarted", "replaced"])
def test_programs_outlive_the_plugin(make_mps_bed: MakeMpsBed, how: str) -> None:
    bed = make_mps_bed(start=False)
    bed.start_agent()
    old = bed.serve(QUICK, f"--pod-uid={OLD}")
    refs = [bed.share("first", "gpu-0"), bed.share("second", "gpu-0")]
    for ref in refs:
        bed.prepare(ref)
    programs = [bed.attach(ref) for ref in refs]
    pid = bed.daemons()[0]["pid"]
    if how == "replaced":  # by an update with surge: both run for a moment
        bed.serve(QUICK, f"--pod-uid={NEW}")
    if how == "killed":
        old.kill()
    else:
        assert old.stop() == 0
    if how != "replaced":
        bed.serve(QUICK, f"--pod-uid={OLD}")
    eventually(
        lambda: bed.metric('gpu_dra_driver_mps_sets{state="ready"}') == 1, "the new one watches"
    )
    for program in programs:
        program.gets("1Gi")
    third = bed.share("third", "gpu-0")
    bed.prepare(third)
    bed.attach(third).gets("1Gi")
    assert [daemon["pid"] for daemon in bed.daemons()] == [pid]
    assert bed.events("MpsInterrupted") == []
    for program in bed.programs:
        program.kill()
    for ref in (*refs, third):
        bed.unprepare(ref)
    assert bed.leftovers() == []


def test_claims_say_that_their_agent_was_killed_and_new_ones_work(bed: MpsNodeBed) -> None:
    ref = bed.claim("old", "gpu-0", config=[mps_config(defaultPinnedDeviceMemoryLimit="4Gi")])
    plain = bed.claim("plain", "gpu-1")
    bed.prepare(ref)
    bed.prepare(plain)
    program = bed.attach(ref)
    folders = bed.folders(ref)
    bed.agents[0].kill()
    eventually(lambda: bed.events("MpsInterrupted"), "the claim says so")
    (event,) = bed.events("MpsInterrupted")
    assert event["involvedObject"]["uid"] == ref.uid
    assert "lost gpu-0" in event["message"]
    assert "start `dra-driver mps-agent`" in event["message"]
    eventually(lambda: bed.health("gpu-0")[0] == "UNHEALTHY", "the kubelet knows")
    assert "MPS agent" in bed.health("gpu-0")[1]
    assert bed.health("gpu-1")[0] == "HEALTHY"
    assert bed.metric('gpu_dra_driver_mps_sets{state="down"}') == 1
    bed.start_agent()
    assert program.event("lost")
    eventually(lambda: bed.events("MpsRestored"), "there is a daemon again")
    eventually(lambda: bed.health("gpu-0")[0] == "HEALTHY", "the kubelet knows that, too")
    assert bed.metric('gpu_dra_driver_mps_sets{state="ready"}') == 1
    assert bed.metric("gpu_dra_driver_mps_interruptions_total") == 1
    assert bed.folders(ref) == folders
    again = bed.attach(ref)
    again.gets("4Gi")
    assert again.refused_by("1Mi") == "mps"
    bed.unprepare(plain)
    new = bed.claim("new", "gpu-1", config=[mps_config()])
    bed.prepare(new)
    bed.attach(new).gets("1Gi")
    for each in bed.programs:
        each.kill()
    bed.unprepare(ref)
    bed.unprepare(new)
    assert bed.leftovers() == []


def test_a_container_that_lives_on_reaches_the_daemon_after_the_agents_end(
    bed: MpsNodeBed,
) -> None:
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    before = [folder.stat().st_ino for folder in bed.folders(ref).values()]
    assert bed.agents[0].stop() == 0
    assert bed.daemons() == []
    assert bed.modes()[0] == "EXCLUSIVE_PROCESS"  # nobody slips in without limits meanwhile
    bed.start_agent()
    eventually(lambda: bed.daemons() != [], "another daemon starts")
    assert [folder.stat().st_ino for folder in bed.folders(ref).values()] == before
    eventually(lambda: bed.events("MpsRestored"), "the claim is told")
    bed.attach(ref)


def test_nobody_slips_in_without_limits_while_the_agent_is_away(make_mps_bed: MakeMpsBed) -> None:
    """A plugin that ends lets go of the GPU, and with it of the compute mode."""
    bed = make_mps_bed(start=False)
    bed.start_agent()
    plugin = bed.serve(QUICK)
    bed.prepare(bed.claim("one", "gpu-0", config=[mps_config()]))
    bed.agents[0].kill()
    assert plugin.stop() == 0
    assert bed.modes()[0] == "DEFAULT"
    bed.serve(QUICK)
    eventually(lambda: bed.modes()[0] == "EXCLUSIVE_PROCESS", "it is set again")


def test_a_claim_ends_while_the_agent_is_away(bed: MpsNodeBed) -> None:
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    shm = bed.folders(ref)["/dev/shm"]
    bed.agents[0].kill()
    eventually(lambda: bed.daemons() == [], "its daemon ends with it")
    bed.unprepare(ref)
    assert bed.claim_files() == set()
    assert bed.modes()[0] == "DEFAULT"
    plain = bed.claim("plain", "gpu-0")
    bed.prepare(plain)
    bed.start_agent()
    eventually(lambda: bed.leftovers() == [], "what it had mounted is cleared up")
    assert bed.daemons() == []
    assert not is_mounted(shm)


def test_a_claim_waits_for_an_agent_that_comes_back(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False)
    bed.start_agent()
    bed.serve("--prepare-retry=30s")
    bed.agents[0].kill()
    bed.start_agent(wait=False)
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    bed.attach(ref)


def test_a_second_agent_does_not_start(bed: MpsNodeBed) -> None:
    second = bed.start_agent(wait=False)
    assert second.wait(60) == 3
    assert second.lines("another MPS agent serves")
    assert bed.agents[0].running


def test_a_socket_that_was_taken_away_comes_back(bed: MpsNodeBed) -> None:
    (bed.data_folder / "mps/agent.sock").unlink()
    eventually((bed.data_folder / "mps/agent.sock").exists, "it is offered anew")
    bed.prepare(bed.claim("one", "gpu-0", config=[mps_config()]))


def test_a_reboot_makes_all_anew(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    ref = bed.claim("one", "gpu-0", config=[mps_config(defaultPinnedDeviceMemoryLimit="4Gi")])
    bed.prepare(ref)
    folders = bed.folders(ref)
    bed.agents[0].kill()
    bed.processes[-1].kill()
    bed.node.reboot()
    bed.clear()
    for file in bed.cdi_folder.iterdir():
        file.unlink()
    bed.start_agent()
    bed.serve(QUICK)
    eventually(lambda: bed.daemons() != [], "its daemon is back")
    eventually(lambda: bed.modes() == ["EXCLUSIVE_PROCESS"], "so is the compute mode")
    bed.prepare(ref)
    assert bed.folders(ref) == folders
    program = bed.attach(ref)
    program.gets("4Gi")
    assert program.refused_by("1Mi") == "mps"


def test_sets_that_no_claim_has_are_released(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False)
    bed.start_agent()
    order = "unprepare:sharing/before-release-mps"
    plugin = bed.serve(QUICK, environment={"DRA_DRIVER_FAILPOINT": order})
    ref = bed.claim("one", "gpu-0", config=[mps_config()])
    bed.prepare(ref)
    with pytest.raises(CallFailed):
        bed.unprepare(ref)
    eventually(lambda: not plugin.running, "it died")
    for file in (*bed.cdi_folder.glob("*claim*"), *(bed.data_folder / "claims").glob("*.json")):
        file.unlink()  # somebody has lost the records
    bed.serve(QUICK)
    eventually(lambda: bed.leftovers() == [], "the janitor releases the set")


def test_a_set_stays_while_a_record_can_not_be_read(make_mps_bed: MakeMpsBed) -> None:
    """It may be the set of the claim that the record was about, whose programs run on."""
    sweeps = "--sweep-interval=200ms"
    bed = make_mps_bed(sweeps, gpus=2)
    lost, known = bed.share("lost", "gpu-0"), bed.share("known", "gpu-1")
    bed.prepare(lost)
    bed.prepare(known)
    program = bed.attach(lost)
    bed.processes[-1].kill()
    for path in (
        bed.data_folder / f"claims/{lost.uid}.json",
        *bed.cdi_folder.glob(f"*{lost.uid}*"),
    ):
        path.write_text("{}")
    plugin = bed.serve(QUICK, sweeps)
    bed.wait_for(lambda: plugin.lines("look for claims that nobody needs"), plugin)  # a sweep's end
    bed.unprepare(known)
    program.gets("1Gi")
    assert len(bed.daemons()) == 2
    bed.unprepare(lost)
    eventually(lambda: bed.leftovers() == [], "both sets are taken back")
