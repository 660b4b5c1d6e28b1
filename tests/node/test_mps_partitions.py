"""MPS on partitions, those that stand and those that are made; and how many claims share one."""

import threading
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec
from tests.support.kubelet import eventually
from tests.support.mps_agent import QUICK, MakeMpsBed, MpsNodeBed, mps_config
from tests.support.plugin_process import NODE

ON_REQUEST = "gpu-0-mig-1g10gb-19-6"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- %s
"""


def config(**settings: Any) -> dict[str, Any]:
    return mps_config("MigDeviceConfig", **settings)


def partitions(bed: MpsNodeBed) -> list[dict[str, Any]]:
    """Compute instances of GPU 0, by the node."""
    return [
        compute
        for instance in bed.node.gpu(0)["instances"]
        for compute in instance["computeInstances"]
    ]


def configured(make_mps_bed: MakeMpsBed, rule: str) -> MpsNodeBed:
    """Make a bed with that rule in the node configuration."""
    bed = make_mps_bed(start=False)
    (bed.folder / "node.yaml").write_text(CONFIG % rule)
    bed.start_agent()
    bed.serve(QUICK, f"--config={bed.folder / 'node.yaml'}")
    return bed


def test_b36_partitions_have_a_daemon_each(make_mps_bed: MakeMpsBed) -> None:
    halves = tuple(PartitionSpec(profile="1g.10gb", start=start) for start in (0, 1))
    bed = make_mps_bed(spec=NodeSpec(gpus=(GpuSpec(model="h100-80gb", partitions=halves),)))
    names = sorted(bed.device_names())
    refs = [bed.claim(f"c{n}", name, config=[config()]) for n, name in enumerate(names)]
    for ref in refs:
        bed.prepare(ref)
    uuids = {part["uuid"] for part in partitions(bed)}
    assert {daemon["visibleDevices"] for daemon in bed.daemons()} == uuids
    assert {part["computeMode"] for part in partitions(bed)} == {"EXCLUSIVE_PROCESS"}
    for ref in refs:
        bed.attach(ref).gets("1Gi")
    bed.unprepare(refs[0])
    assert len(bed.daemons()) == 1
    bed.unprepare(refs[1])
    assert bed.daemons() == []
    assert {part["computeMode"] for part in partitions(bed)} == {"DEFAULT"}


def test_b36_a_partition_that_is_made_for_a_claim(make_mps_bed: MakeMpsBed) -> None:
    bed = configured(make_mps_bed, "partitioning: {mode: Dynamic}")
    ref = bed.claim("one", ON_REQUEST, config=[config(defaultPinnedDeviceMemoryLimit="2Gi")])
    bed.prepare(ref)
    (part,) = partitions(bed)
    assert bed.daemons()[0]["visibleDevices"] == part["uuid"]
    program = bed.attach(ref)
    program.gets("2Gi")
    assert program.refused_by("1Mi") == "mps"
    program.kill()
    bed.unprepare(ref)
    assert partitions(bed) == []
    assert bed.leftovers() == []


def test_a_partition_made_anew_after_a_reboot_has_a_daemon_again(make_mps_bed: MakeMpsBed) -> None:
    bed = configured(make_mps_bed, "partitioning: {mode: Dynamic}")
    ref = bed.claim("one", ON_REQUEST, config=[config()])
    bed.prepare(ref)
    (before,) = partitions(bed)
    bed.agents[0].kill()
    bed.processes[-1].kill()
    bed.node.reboot()
    bed.clear()
    bed.start_agent()
    bed.serve(QUICK, f"--config={bed.folder / 'node.yaml'}")
    eventually(lambda: partitions(bed) != [], "the partition is made again")
    uuid = partitions(bed)[0]["uuid"]
    assert uuid != before["uuid"]
    eventually(
        lambda: [each["visibleDevices"] for each in bed.daemons()] == [uuid], "it has a daemon"
    )
    bed.prepare(ref)
    bed.attach(ref)
    assert partitions(bed)[0]["computeMode"] == "EXCLUSIVE_PROCESS"


def extended(bed: MpsNodeBed, name: str, *devices: str) -> ClaimRef:
    """Make a claim as the scheduler does for a Pod with extended resources."""
    results = [
        {
            "request": f"container-{number}-request-0",
            "driver": "gpu.nvidia.com",
            "pool": NODE,
            "device": device,
            "shareID": str(uuid4()),
        }
        for number, device in enumerate(devices)
    ]
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    claim = bed.api.objects.create(
        "resourceclaims",
        {
            "metadata": {"namespace": "default", "name": name, "annotations": annotations},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": results}}},
        },
    )
    return ClaimRef("default", name, claim["metadata"]["uid"])


def test_unchanged_pods_with_several_containers_have_a_daemon_for_each_gpu(
    make_mps_bed: MakeMpsBed,
) -> None:
    bed = make_mps_bed(start=False, gpus=2)
    rule = "{shares: {count: 4, rename: true}, sharing: {strategy: MPS}}"
    (bed.folder / "node.yaml").write_text(CONFIG % rule)
    bed.start_agent()
    bed.serve(QUICK, f"--config={bed.folder / 'node.yaml'}")
    both, one = extended(bed, "both", "gpu-0", "gpu-1"), extended(bed, "one", "gpu-1")
    bed.prepare(both)
    bed.prepare(one)
    assert len(bed.daemons()) == 2
    pipes = {mount["hostPath"] for edits in bed.edits(both) for mount in edits["mounts"]}
    assert len(pipes) == 4  # each container has its own two
    bed.unprepare(both)
    assert [each["visibleDevices"] for each in bed.daemons()] == [bed.node.gpu(1)["uuid"]]
    bed.unprepare(one)
    assert bed.leftovers() == []


def test_b36_no_more_claims_than_a_daemon_has_clients(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()  # CUDA 13.0: 48
    refs = [bed.share(f"c{number}", "gpu-0") for number in range(49)]
    for ref in refs[:48]:
        bed.prepare(ref)
    with pytest.raises(CallFailed, match=r"MPS serves 48 clients .*claim default/c48 waits"):
        bed.prepare(refs[48])
    bed.unprepare(refs[0])
    bed.prepare(refs[48])
    assert len(bed.daemons()) == 1


def test_b36_claims_that_come_and_go_at_once(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed()
    refs = [bed.share(f"c{number}", "gpu-0") for number in range(4)]
    failures: list[Exception] = []

    def come_and_go(ref: ClaimRef) -> None:
        try:
            for _ in range(5):
                bed.prepare(ref)
                bed.attach(ref).kill()
                bed.unprepare(ref)
        except (CallFailed, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert bed.leftovers() == []
