"""The main job on a simulated node: publish, register, prepare, unprepare."""

from tests.support.kubelet import DRIVER
from tests.support.plugin_process import MakeBed


def test_gpus_are_published_and_claims_prepared(make_bed: MakeBed) -> None:
    bed = make_bed(model="h100-80gb", gpus=2)
    bed.kubelet.start()
    bed.serve()
    assert bed.device_names() == {"gpu-0", "gpu-1"}
    claim = bed.claim("mine", "gpu-1")
    (device,) = bed.kubelet.prepare(DRIVER, [claim])[claim.uid]
    assert (device.requests, device.pool, device.name) == (("request-0",), "node-a", "gpu-1")
    print(device, bed.claim_files())
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()
