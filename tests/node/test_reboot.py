"""The real plugin after a reboot took partitions away that live claims hold."""

from typing import Any

import pytest

from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

MIXED = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 2}]},
        ]
    }
)
PART = "gpu-1-mig-1g10gb-19-2"


def events(bed: NodeBed) -> list[dict[str, Any]]:
    found = bed.api.objects.select("events")
    return [event for event in found if event["reason"] == "DeviceNotPublished"]


@pytest.mark.parametrize("ends", ["made-again", "unprepared"])
def test_a_gpu_is_not_offered_whole_while_its_partition_is_claimed(
    make_bed: MakeBed, ends: str
) -> None:
    bed = make_bed(spec=MIXED)
    bed.kubelet.start()
    plugin = bed.serve("--poll-interval=300ms")
    part, whole = bed.claim("part", PART), bed.claim("whole", "gpu-1")
    bed.kubelet.prepare(DRIVER, [part])
    assert bed.device_names() == {"gpu-0", PART}
    plugin.kill()
    bed.node.reboot()
    bed.serve("--poll-interval=300ms")
    eventually(lambda: bed.device_names() == {"gpu-0"}, "neither partition nor GPU is offered")
    eventually(lambda: events(bed), "an Event tells why")
    (told,) = events(bed)
    assert "make it again at the same placement" in told["message"]
    assert str(part.name) in told["message"]
    with pytest.raises(CallFailed, match=PART):
        bed.kubelet.prepare(DRIVER, [part])
    with pytest.raises(CallFailed, match="held by claim"):
        bed.kubelet.prepare(DRIVER, [whole])
    if ends == "made-again":
        bed.node.state.set_mig_mode(1, on=True)
        bed.node.state.partition(1, "1g.10gb", 2)
        eventually(lambda: bed.device_names() == {"gpu-0", PART}, "the partition is offered")
        bed.kubelet.prepare(DRIVER, [part])
        bed.kubelet.unprepare(DRIVER, [part])
    else:
        bed.kubelet.unprepare(DRIVER, [part])
        eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "the whole GPU is offered")
        bed.kubelet.prepare(DRIVER, [whole])
        bed.kubelet.unprepare(DRIVER, [whole])
    assert bed.claim_files() == set()
