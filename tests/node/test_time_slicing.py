"""Time-slices that claims ask for, by the real plugin on a simulated node."""

from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

QUICK = "--prepare-retry=10ms"


def config(interval: str | None) -> dict[str, Any]:
    sharing: dict[str, Any] = {"strategy": "TimeSlicing"}
    if interval:
        sharing["timeSlicingConfig"] = {"interval": interval}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def share(bed: NodeBed, name: str, device: str, interval: str) -> ClaimRef:
    return bed.claim(name, {"device": device, "shareID": str(uuid4())}, config=[config(interval)])


def slices_of(bed: NodeBed) -> list[int]:
    return [gpu["timeslice"] for gpu in bed.node.show()["gpus"]]


def prepare(bed: NodeBed, ref: ClaimRef) -> None:
    bed.kubelet.prepare(DRIVER, [ref])


def unprepare(bed: NodeBed, ref: ClaimRef) -> None:
    bed.kubelet.unprepare(DRIVER, [ref])


@pytest.fixture
def bed(make_bed: MakeBed) -> NodeBed:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve(QUICK)
    return bed


@pytest.mark.parametrize(
    ("interval", "value"), [("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)]
)
def test_a_claim_sets_the_time_slice_and_gives_it_back(
    bed: NodeBed, interval: str, value: int
) -> None:
    ref = bed.claim("one", "gpu-0", config=[config(interval)])
    prepare(bed, ref)
    assert slices_of(bed) == [value, 0]
    prepare(bed, ref)
    unprepare(bed, ref)
    assert slices_of(bed) == [0, 0]


def test_the_last_of_several_claims_puts_it_back(bed: NodeBed) -> None:
    first, second = share(bed, "first", "gpu-0", "Long"), share(bed, "second", "gpu-0", "Long")
    prepare(bed, first)
    prepare(bed, second)
    unprepare(bed, first)
    assert slices_of(bed) == [3, 0]
    unprepare(bed, second)
    assert slices_of(bed) == [0, 0]


def test_claims_that_disagree_are_refused_by_name(bed: NodeBed) -> None:
    prepare(bed, share(bed, "first", "gpu-0", "Long"))
    other = share(bed, "other", "gpu-0", "Short")
    with pytest.raises(CallFailed, match=r"default/first.*interval: Short against Long"):
        prepare(bed, other)
    assert slices_of(bed) == [3, 0]


def test_b33_a_gpu_without_time_slices_fails_only_an_explicit_wish(make_bed: MakeBed) -> None:
    bed = make_bed(model="p4", gpus=2)
    bed.kubelet.start()
    bed.serve(QUICK)
    for name, interval in (("none", None), ("default", "Default")):
        ref = bed.claim(name, "gpu-0", config=[config(interval)])
        prepare(bed, ref)
        unprepare(bed, ref)
    plain = bed.claim("plain", "gpu-0")
    prepare(bed, plain)
    unprepare(bed, plain)
    both = bed.claim("both", "gpu-0", "gpu-1", config=[config("Long")])
    with pytest.raises(CallFailed, match=r"time-slice Long of GPU .* Not Supported"):
        prepare(bed, both)
    assert bed.claim_files() == set()


def test_a_restart_of_the_plugin_sets_it_again(bed: NodeBed) -> None:
    ref = bed.claim("one", "gpu-0", config=[config("Medium")])
    prepare(bed, ref)
    bed.processes[-1].kill()
    eventually(lambda: slices_of(bed) == [0, 0], "it is lost with the last who holds the GPU")
    bed.serve(QUICK)
    eventually(lambda: slices_of(bed) == [2, 0], "it is set again")
    unprepare(bed, ref)
    assert slices_of(bed) == [0, 0]


def test_b15_a_reboot_sets_it_again(bed: NodeBed) -> None:
    ref = bed.claim("one", "gpu-1", config=[config("Long")])
    prepare(bed, ref)
    bed.processes[-1].kill()
    bed.node.reboot()
    assert slices_of(bed) == [0, 0]
    bed.serve(QUICK)
    eventually(lambda: slices_of(bed) == [0, 3], "it is set again")


def test_admin_access_changes_nothing(bed: NodeBed) -> None:
    ref = bed.claim("admin", {"device": "gpu-0", "adminAccess": True}, config=[config("Long")])
    prepare(bed, ref)
    assert slices_of(bed) == [0, 0]
    unprepare(bed, ref)


def test_a_wrong_config_is_refused_with_its_field(bed: NodeBed) -> None:
    ref = bed.claim("wrong", "gpu-0", config=[config("Longest")])
    with pytest.raises(CallFailed, match=r"sharing\.timeSlicingConfig\.interval"):
        prepare(bed, ref)
    assert bed.claim_files() == set()
