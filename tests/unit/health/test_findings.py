"""Whom an event concerns and when that is over, one look after the other."""

from dataclasses import replace

import pytest

from dra_driver.health.findings import (
    Findings,
    applied,
    located,
    settled,
    since,
    with_event,
)
from dra_driver.model import Gpu, Health, HealthState, Inventory, Problem
from dra_driver.nvml import EventKind, HardwareEvent, Look
from tests.support.inventories import gpu, inventory, partitioned

QUIET = 300.0
WHOLE, SPLIT = gpu(0), partitioned(1, 0, 1, 4)
ILL = Health(HealthState.UNHEALTHY, "recovery-action", "the GPU driver asks for a reset")
SILENT = Health(HealthState.UNKNOWN, "not-answering", "does not answer")


def xid(of: Gpu, number: int, gi: int | None = None, ci: int | None = None) -> HardwareEvent:
    return HardwareEvent(of.uuid, EventKind.XID, number, gi, ci)


def after(*events: HardwareEvent, at: float = 0.0) -> Findings:
    found: Findings = {}
    for event in events:
        found = with_event(found, event, 1000.0 + at, at)
    return found


def look(*gpus: Gpu, at: float, problems: tuple[Problem, ...] = ()) -> Look:
    return Look(inventory(*gpus, problems=problems), at, 0)


def sick(findings: Findings, *gpus: Gpu) -> dict[str, str]:
    found = applied(findings, inventory(*gpus))
    return {
        device.name.removesuffix("0gb"): device.health.value
        for device in found.devices()
        if not device.health.usable
    }


# ---- whom it concerns


def test_the_gpu_or_all_its_partitions() -> None:
    assert sick(after(xid(WHOLE, 79)), WHOLE, SPLIT) == {"gpu-0": "79"}
    assert sick(after(xid(SPLIT, 79)), WHOLE, SPLIT) == {
        "gpu-1-mig-1g10gb-19-0": "79",
        "gpu-1-mig-1g10gb-19-1": "79",
        "gpu-1-mig-1g10gb-19-4": "79",
    }


@pytest.mark.parametrize("ci", [None, 0, 3], ids=["gi only", "its ci", "another ci"])
def test_one_gpu_instance(ci: int | None) -> None:
    assert sick(after(xid(SPLIT, 94, 8, ci)), WHOLE, SPLIT) == {"gpu-1-mig-1g10gb-19-1": "94"}


def test_an_instance_nobody_has_seen_is_the_whole_gpu_until_it_is_seen() -> None:
    found = after(xid(SPLIT, 94, 99, 0))
    assert len(sick(found, WHOLE, SPLIT)) == 3
    late = replace(SPLIT.partitions[0], gi_id=99)
    grown = replace(SPLIT, partitions=(*SPLIT.partitions[1:], late))
    assert sick(found, grown) == {"gpu-1-mig-1g10gb-19-0": "94"}


def test_an_instance_that_is_gone_concerns_nobody() -> None:
    found = located(after(xid(SPLIT, 94, 8, 0)), inventory(SPLIT))
    less = replace(SPLIT, partitions=(SPLIT.partitions[0], SPLIT.partitions[2]))
    assert sick(found, less) == {}


def test_a_gpu_that_is_not_there_is_nobody_s() -> None:
    assert sick(after(xid(gpu(7), 79)), WHOLE, SPLIT) == {}


# ---- what is said


def test_the_first_xid_is_the_cause_and_later_ones_are_told() -> None:
    found = after(*(xid(WHOLE, number) for number in (48, 95, 48, 63, 140, 154)))
    (only,) = found.values()
    assert only.health.value == "48"
    assert only.health.message == "XID 48 (double-bit memory error), then 95, then 63, then 140"


def test_it_lasts_since_the_first_event() -> None:
    found = with_event(after(xid(WHOLE, 48)), xid(WHOLE, 48), 5000.0, 4000.0)
    (only,) = found.values()
    assert (only.health.since, only.last) == (1000.0, 4000.0)


def test_xid_and_ecc_stand_side_by_side() -> None:
    found = after(HardwareEvent(WHOLE.uuid, EventKind.ECC), xid(WHOLE, 48))
    health = applied(found, inventory(WHOLE)).gpus[0].health
    assert [entry.reason for entry in health.entries()] == ["ecc", "xid"]


def test_what_the_gpu_says_itself_comes_first() -> None:
    ill = replace(WHOLE, health=ILL)
    health = applied(after(xid(WHOLE, 48)), inventory(ill)).gpus[0].health
    assert [entry.reason for entry in health.entries()] == ["recovery-action", "xid"]


# ---- when it is over


def ends(findings: Findings, *looks: Look) -> bool:
    for each in looks:
        findings = settled(findings, each, QUIET)
    return not findings


def test_not_with_a_look_that_began_before_the_event() -> None:
    assert not ends(after(xid(WHOLE, 48), at=10.0), look(WHOLE, at=9.0))
    gone = after(xid(WHOLE, 48), at=10.0)
    assert not ends(gone, look(SPLIT, at=9.0))
    assert ends(gone, look(SPLIT, at=11.0))


def test_after_a_quiet_time() -> None:
    found = after(xid(WHOLE, 48))
    assert not ends(found, look(WHOLE, at=QUIET - 1))
    assert ends(found, look(WHOLE, at=QUIET))
    again = with_event(found, xid(WHOLE, 48), 0.0, 200.0)
    assert not ends(again, look(WHOLE, at=QUIET))
    assert ends(again, look(WHOLE, at=QUIET + 200))


def test_at_once_when_the_gpu_was_ill_and_is_well() -> None:
    found = after(xid(WHOLE, 48), xid(SPLIT, 94, 8, 0))
    ill = (replace(WHOLE, health=ILL), replace(SPLIT, health=ILL))
    assert not ends(found, look(*ill, at=1.0))
    assert ends(found, look(*ill, at=1.0), look(WHOLE, SPLIT, at=2.0))


def test_never_while_the_gpu_is_ill_or_silent() -> None:
    found = after(xid(WHOLE, 48))
    assert not ends(found, look(replace(WHOLE, health=ILL), at=QUIET * 9))
    silent = look(replace(WHOLE, health=SILENT), at=QUIET * 9)
    assert not ends(found, silent)
    assert not ends(found, look(replace(WHOLE, health=ILL), at=1.0), silent)


def test_with_the_partition_unless_it_only_could_not_be_read() -> None:
    found = after(xid(SPLIT, 94, 8, 0))
    less = replace(SPLIT, partitions=(SPLIT.partitions[0], SPLIT.partitions[2]))
    unread = (Problem(SPLIT.uuid, "one partition is left out"),)
    seen = look(SPLIT, at=1.0)
    assert ends(found, seen, look(less, at=2.0))
    assert not ends(found, seen, look(less, at=2.0, problems=unread))
    assert not ends(found, look(less, at=1.0)), "never seen: it may be the whole GPU"


def test_a_new_driver_knows_of_nothing_before_it() -> None:
    found = with_event(after(xid(WHOLE, 48), at=1.0), xid(SPLIT, 79), 0.0, 5.0)
    assert [key[0] for key in since(found, 3.0)] == [SPLIT.uuid]


def test_an_empty_node_has_no_findings() -> None:
    assert settled(after(xid(WHOLE, 48)), Look(Inventory(), 1.0, 0), QUIET) == {}
