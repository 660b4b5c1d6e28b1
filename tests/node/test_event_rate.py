"""What fails for ever fills neither the API server nor a person's screen with Events."""

from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

FAILURES = 1000


def unallocated(bed: NodeBed, name: str) -> ClaimRef:
    claim = bed.api.objects.create(
        "resourceclaims", {"metadata": {"namespace": "default", "name": name}, "spec": {}}
    )
    return ClaimRef("default", name, claim["metadata"]["uid"])


def events(bed: NodeBed, name: str) -> list[dict[str, Any]]:
    found = bed.api.objects.select("events")
    return [each for each in found if each["involvedObject"]["name"] == name]


def fail(bed: NodeBed, ref: ClaimRef) -> None:
    with pytest.raises(CallFailed, match="ClaimNotAllocated"):
        bed.kubelet.prepare(DRIVER, [ref])


def test_a_claim_that_fails_a_thousand_times_has_one_event_a_minute_at_most(
    make_bed: MakeBed,
) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    stuck, marker = unallocated(bed, "stuck"), unallocated(bed, "marker")
    for _ in range(FAILURES):
        fail(bed, stuck)
    fail(bed, marker)
    eventually(lambda: events(bed, "marker"), "what is said of another claim comes after all that")
    told = events(bed, "stuck")
    print(f"{len(told)} Events of {FAILURES} failures")
    assert 1 <= len(told) <= 3, "one at once, then after one minute, then after two more"
    assert [each["count"] for each in told][:1] == [1]
    assert all(each["reason"] == "ClaimNotAllocated" for each in told)
    counted = 'gpu_dra_driver_claim_errors_total{operation="prepare",reason="ClaimNotAllocated"}'
    assert f"{counted} {FAILURES + 1}.0" in bed.get("/metrics")[1], "metrics count every one"
