"""The log of a real run: every line of a call carries its id, and every beginning has its end."""

import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import MakeBed, NodeBed, PluginProcess

Line = Mapping[str, Any]
# Packages that are at work for somebody: a call of the kubelet, or a sweep that has its own id.
OF_CALLS = ("dra_driver.claims", "dra_driver.cdi", "dra_driver.state", "dra_driver.plugin.dra")
SAYS = ("claim", "claims", "claimUID")  # fields of lines that are about claims
AT_ONCE = 16


def read(process: PluginProcess) -> list[Line]:
    """All lines; each must be JSON."""
    return [json.loads(line) for line in process.log.read_text(encoding="utf-8").splitlines()]


def by_operation(lines: list[Line]) -> Mapping[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if "op" in line:
            found[line["op"]].append(line)
    return found


def calls(lines: list[Line]) -> Mapping[str, list[Line]]:
    """Operations that the kubelet asked for."""
    return {
        op: of_one
        for op, of_one in by_operation(lines).items()
        if of_one[0]["msg"] in ("prepare begins", "unprepare begins")
    }


def act(bed: NodeBed) -> int:
    """Let the kubelet make calls of every kind; gives their number."""
    one, two = bed.claim("one", "gpu-0"), bed.claim("two", "gpu-1")
    bed.kubelet.prepare(DRIVER, [one, two])
    bed.kubelet.prepare(DRIVER, [one, two])
    with pytest.raises(CallFailed, match="DeviceInUse"):
        bed.kubelet.prepare(DRIVER, [bed.claim("late", "gpu-0")])
    with pytest.raises(CallFailed, match="DeviceNotFound"):
        bed.kubelet.prepare(DRIVER, [bed.claim("lost", "gpu-9")])
    with pytest.raises(CallFailed, match="ClaimNotFound"):
        bed.kubelet.prepare(DRIVER, [ClaimRef("default", "none", "no-uid")])
    bed.kubelet.unprepare(DRIVER, [one, two])
    bed.kubelet.unprepare(DRIVER, [one])
    return 7


def act_at_once(bed: NodeBed) -> int:
    """Prepare and unprepare many claims at the same time; gives the number of calls."""
    refs = [bed.claim(f"c{number}", f"gpu-{number % 2}") for number in range(AT_ONCE)]

    def one(ref: ClaimRef) -> None:
        with suppress(CallFailed):  # all but two are refused
            bed.kubelet.prepare(DRIVER, [ref])
        bed.kubelet.unprepare(DRIVER, [ref])

    threads = [threading.Thread(target=one, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 2 * AT_ONCE


@pytest.fixture
def lines(make_bed: MakeBed) -> list[Line]:
    """Lines of a run with calls of every kind, from the first to the last."""
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    process = bed.serve("--log-format=json", "--log-level=debug", "--prepare-retry=200ms")
    made = act(bed) + act_at_once(bed)
    assert process.stop() == 0
    lines = read(process)
    assert len(calls(lines)) == made
    return lines


def test_every_line_of_a_call_carries_its_id(lines: list[Line]) -> None:
    for line in lines:
        about_claims = any(field in line for field in SAYS)
        if about_claims or line["logger"].startswith(OF_CALLS):
            assert "op" in line, line
        if "op" in line:
            assert len(line["op"]) == 8, line


def test_every_call_begins_and_ends_once(lines: list[Line]) -> None:
    for op, of_one in calls(lines).items():
        word = of_one[0]["msg"].removesuffix(" begins")
        marks = [line["msg"] for line in of_one if line["msg"].endswith((" begins", " ends"))]
        assert marks == [f"{word} begins", f"{word} ends"], op
        assert of_one[-1]["msg"] == f"{word} ends", op
        assert of_one[-1]["seconds"] >= 0


def test_calls_at_once_are_not_mixed_up(lines: list[Line]) -> None:
    """A line under the id of a call is about the claims of that call."""
    for of_one in calls(lines).values():
        asked = set(of_one[0]["claims"].split(", "))
        for line in of_one:
            if "claim" in line:
                assert line["claim"] in asked, line


def test_every_call_says_how_it_ended(lines: list[Line]) -> None:
    """Success or failure of each claim, the latter with its reason word and the error last."""
    for of_one in calls(lines).values():
        told = [line for line in of_one if "claim" in line]
        assert told, of_one
        for line in told:
            if line["msg"] == "call failed":
                assert line["level"] == "WARNING"
                assert line["reason"]
                assert list(line)[-1] == "err"
    failed = [line["reason"] for line in lines if line["msg"] == "call failed"]
    assert {"DeviceInUse", "DeviceNotFound", "ClaimNotFound"} <= set(failed)


def test_nothing_is_an_error_that_passes_by_itself(lines: list[Line]) -> None:
    assert [line for line in lines if line["level"] == "ERROR"] == []
    assert all("stack" not in line for line in lines)
