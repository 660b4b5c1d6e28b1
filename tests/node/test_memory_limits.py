"""GPU memory that shares are limited to, on the cgroups of the Pods that use them."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

GIB = 1 << 30
QUICK = "--prepare-retry=10ms"
SPEC = NodeSpec.model_validate({"driverVersion": "615.10.05", "gpus": [{"model": "h100-80gb"}]})
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- shares: {by: memory, reserve: 1Gi}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    return f"--config={path}"


@pytest.fixture
def bed(make_bed: MakeBed, config: str) -> NodeBed:
    bed = make_bed(spec=SPEC)
    folder = bed.node.root / "sys/fs/cgroup"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text("memory\n")
    bed.kubelet.start()
    bed.serve(QUICK, config)
    return bed


def pod(bed: NodeBed, *, systemd: bool = False) -> str:
    """Start a Pod: the kubelet makes its cgroup before it prepares its claims."""
    uid = str(uuid4())
    path = cgroup(bed, uid, systemd=systemd)
    path.mkdir(parents=True)
    return uid


def cgroup(bed: NodeBed, uid: str, *, systemd: bool = False) -> Path:
    root = bed.node.root / "sys/fs/cgroup"
    if systemd:
        slices = "kubepods.slice/kubepods-burstable.slice"
        return root / slices / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return root / "kubepods/besteffort" / f"pod{uid}"


def share(bed: NodeBed, name: str, memory: str, *pods: str) -> ClaimRef:
    result = {"device": "gpu-0", "shareID": str(uuid4()), "consumedCapacity": {"memory": memory}}
    ref = bed.claim(name, result)
    reserve(bed, ref, *pods)
    return ref


def reserve(bed: NodeBed, ref: ClaimRef, *pods: str) -> None:
    claim: dict[str, Any] = bed.api.objects.get("resourceclaims", ref.name, ref.namespace)
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": f"pod-{uid}", "uid": uid} for uid in pods
    ]
    bed.api.objects.replace("resourceclaims", claim, part="status")


def limits(bed: NodeBed) -> dict[str, int]:
    """Limits by the name of the cgroup, in GiB."""
    found = bed.node.gpu(0)["memoryLimits"]
    return {Path(each["cgroup"]).name: each["hardBytes"] // GIB for each in found}


def prepare(bed: NodeBed, ref: ClaimRef) -> None:
    bed.kubelet.prepare(DRIVER, [ref])


def unprepare(bed: NodeBed, ref: ClaimRef) -> None:
    bed.kubelet.unprepare(DRIVER, [ref])


def test_each_pod_is_limited_to_its_share_while_it_has_it(bed: NodeBed) -> None:
    one, two = pod(bed), pod(bed, systemd=True)
    first, second = share(bed, "first", "10Gi", one), share(bed, "second", "20Gi", two)
    prepare(bed, first)
    prepare(bed, second)
    slice_name = cgroup(bed, two, systemd=True).name
    assert limits(bed) == {f"pod{one}": 10, slice_name: 20}
    unprepare(bed, first)
    assert limits(bed) == {slice_name: 20}
    unprepare(bed, second)
    assert limits(bed) == {}


def test_a_pod_with_two_shares_of_a_gpu_has_their_sum(bed: NodeBed) -> None:
    uid = pod(bed)
    first, second = share(bed, "first", "10Gi", uid), share(bed, "second", "5Gi", uid)
    prepare(bed, first)
    prepare(bed, second)
    assert limits(bed) == {f"pod{uid}": 15}
    unprepare(bed, first)
    assert limits(bed) == {f"pod{uid}": 5}
    unprepare(bed, second)
    assert limits(bed) == {}


def test_later_pods_of_a_shared_claim_are_limited_as_they_come(bed: NodeBed) -> None:
    one = pod(bed)
    ref = share(bed, "shared", "10Gi", one)
    prepare(bed, ref)
    two = pod(bed)
    reserve(bed, ref, one, two)
    prepare(bed, ref)
    assert limits(bed) == {f"pod{one}": 10, f"pod{two}": 10}
    cgroup(bed, one).rmdir()
    unprepare(bed, ref)
    assert limits(bed) == {}


def test_a_limit_that_somebody_took_away_is_set_again(bed: NodeBed, config: str) -> None:
    uid = pod(bed)
    prepare(bed, share(bed, "one", "10Gi", uid))
    bed.processes[-1].kill()
    bed.node.reboot()
    cgroup(bed, uid).mkdir(parents=True, exist_ok=True)
    assert limits(bed) == {}
    bed.serve(QUICK, config)
    eventually(lambda: limits(bed) == {f"pod{uid}": 10}, "it is set again")


def test_a_pod_whose_cgroup_cannot_be_found_is_not_started(bed: NodeBed) -> None:
    ref = share(bed, "lost", "10Gi", str(uuid4()))
    with pytest.raises(CallFailed, match="no cgroup of the Pods of claim default/lost"):
        prepare(bed, ref)
    assert bed.claim_files() == set()


def test_an_older_gpu_driver_limits_nothing(make_bed: MakeBed, config: str) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve(QUICK, config)
    ref = share(bed, "one", "10Gi", str(uuid4()))
    prepare(bed, ref)
    assert limits(bed) == {}
    unprepare(bed, ref)
