"""A node whose claims NVIDIA's driver in Go has prepared, and then the real plugin."""

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import NodeSpec
from tests.support.cdi_rules import edits, read_document
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed
from tests.support.pod_resources import pod_resources
from tests.support.predecessor import PriorDriver, cdi_id, gpu, mig

QUICK = "--prepare-retry=10ms"
STATIC, MADE, NEXT = "gpu-1-mig-1g10gb-19-0", "gpu-2-mig-2g20gb-14-2", "gpu-2-mig-3g40gb-9-0"
LONG = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
MPS = LONG | {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}}
SPEC = NodeSpec.model_validate(
    {
        "gpus": [
            {"model": "h100-80gb"},
            {"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]},
            {"model": "h100-80gb", "migMode": True},
            {"model": "h100-80gb", "count": 2, "persistenceMode": True},
        ]
    }
)
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {index: [2]}
  partitioning: {mode: Dynamic}
"""
SET_EXCLUSIVE = """
handle = pynvml.nvmlDeviceGetHandleByIndex(4)
pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
"""
COMPUTE_MODE = """
handle = pynvml.nvmlDeviceGetHandleByIndex(4)
print(json.dumps(pynvml.nvmlDeviceGetComputeMode(handle)))
"""


class Before:
    """A node on which the other driver has prepared a claim of each kind, and has ended."""

    def __init__(self, bed: NodeBed, config: Path) -> None:
        self.bed = bed
        self.config = config
        self.prior = PriorDriver(bed.data_folder, bed.cdi_folder)
        bed.node.state.partition(2, "2g.20gb", 2)
        uuids = [each["uuid"] for each in bed.node.show()["gpus"]]
        assert bed.node.smi("compute-policy", "--set-timeslice=3", "-i", "3").returncode == 0
        bed.node.nvml(SET_EXCLUSIVE)
        self.whole = self.claim("whole", "gpu-0", gpu("gpu-0", uuids[0]))
        self.static = self.claim("static", STATIC, self.partition(STATIC, 1))
        self.made = self.claim("made", MADE, self.partition(MADE, 2))
        self.sliced = self.claim("sliced", "gpu-3", gpu("gpu-3", uuids[3]), config=[LONG])
        self.mps = self.claim("mps", "gpu-4", gpu("gpu-4", uuids[4]), config=[MPS], mps=True)
        bed.kubelet.start()

    @property
    def all(self) -> list[tuple[ClaimRef, str]]:
        """Each claim with the name of its device."""
        names = ("gpu-0", STATIC, MADE, "gpu-3", "gpu-4")
        claims = (self.whole, self.static, self.made, self.sliced, self.mps)
        return list(zip(claims, names, strict=True))

    def claim(
        self, name: str, device: str, prepared: dict[str, Any], *, mps: bool = False, **config: Any
    ) -> ClaimRef:
        ref = self.bed.claim(name, device, **config)
        daemon = f"{ref.uid}-1a2b3" if mps else ""
        return self.prior.complete(ref, prepared, daemon=daemon, **config)

    def partition(self, name: str, position: int) -> dict[str, Any]:
        """Give the one partition of a GPU, as the other driver notes it."""
        found = self.bed.node.gpu(position)
        (instance,) = found["instances"]
        uuid = instance["computeInstances"][0]["uuid"]
        return mig(name, uuid, found["uuid"], instance["id"], found["minor"])

    def serve(self, *more: str, **options: Any) -> None:
        self.bed.serve(QUICK, f"--config={self.config}", *more, **options)

    def prepare(self, ref: ClaimRef) -> list[Any]:
        return list(self.bed.kubelet.prepare(DRIVER, [ref])[ref.uid])

    def unprepare(self, *refs: ClaimRef) -> None:
        self.bed.kubelet.unprepare(DRIVER, list(refs))

    def refused(self, name: str, device: str, why: str) -> None:
        """See that no new claim gets a device."""
        with pytest.raises(CallFailed, match=why):
            self.prepare(self.bed.claim(name, device))

    def profiles(self, position: int) -> list[str]:
        return [each["profile"] for each in self.bed.node.gpu(position)["instances"]]

    def reasons(self) -> set[str]:
        return {each["reason"] for each in self.bed.api.objects.select("events")}

    def is_left(self, words: str) -> bool:
        """Whether an Event tells that something of the other driver is left."""
        events = self.bed.api.objects.select("events")
        return any(words in e["message"] for e in events if e["reason"] == "LeftBehind")

    def own_files(self) -> None:
        """Wait until each claim has a CDI file of this driver, and none of the other's."""
        wanted = {f"k8s.gpu.nvidia.com-claim_{ref.uid}.json" for ref, _ in self.all}

        def there() -> bool:
            return {path.name for path in self.bed.cdi_folder.glob("*-claim_*")} == wanted

        eventually(there, "each claim has one CDI file")


@pytest.fixture
def before(make_bed: MakeBed, tmp_path: Path) -> Before:
    config = tmp_path / "node.yaml"
    config.write_text(CONFIG)
    return Before(make_bed(spec=SPEC), config)


def test_running_claims_of_each_kind_stay_and_end_well(before: Before) -> None:
    bed = before.bed
    before.prior.write()
    before.serve()
    assert not before.prior.checkpoint.exists()
    assert json.loads((bed.data_folder / "checkpoint.json.taken-over").read_text())["v2"]
    before.refused("late", "gpu-0", r"DeviceInUse.*still held by claim")
    before.refused("beside", NEXT, r"DeviceInUse.*still held by claim")
    before.own_files()
    for ref, name in before.all:
        (device,) = before.prepare(ref)
        assert (device.name, list(device.cdi_ids)) == (name, [cdi_id(ref.uid, name)])
        path = bed.cdi_folder / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json"
        shared = read_document(path)["containerEdits"]  # the runtime is told of no other id
        assert shared == edits(bed.cdi_folder / "k8s.gpu.nvidia.com-driver.json", "common")
        assert edits(path, f"{ref.uid}-{name}")["deviceNodes"]
    pipes = edits(path, f"{before.mps.uid}-gpu-4")
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in pipes["env"]
    folder = bed.data_folder / "mps" / f"{before.mps.uid}-1a2b3"
    assert [mount["hostPath"] for mount in pipes["mounts"]] == [f"{folder}/pipe", f"{folder}/shm"]
    before.unprepare(*[ref for ref, _ in before.all])
    assert bed.claim_files() == set()
    assert before.profiles(1) == ["1g.10gb"]
    assert before.profiles(2) == []
    assert [each["timeslice"] for each in bed.node.show()["gpus"]] == [0] * 5
    assert bed.node.nvml(COMPUTE_MODE) == 0
    eventually(lambda: "TakenOver" in before.reasons(), "an Event tells of it")
    left = (f"partition {STATIC} stays", f"mps-control-daemon-{before.mps.uid}-1a2b3")
    eventually(lambda: all(map(before.is_left, left)), "Events tell what is left")
    assert not before.is_left(MADE)
    assert len(before.prepare(bed.claim("late-again", "gpu-0"))) == 1


@pytest.mark.parametrize(
    "place",
    [
        "take-over/before-write",
        "take-over/after-rename#2",
        "take-over/after-rename#5",
        "take-over/before-remove",
        "take-over/after-remove",
    ],
)
def test_a_plugin_that_is_killed_meanwhile_goes_on_at_its_next_start(
    before: Before, place: str
) -> None:
    bed = before.bed
    before.prior.write()
    before.serve(environment={"DRA_DRIVER_FAILPOINT": place}, wait=False)
    assert bed.processes[0].wait() == -signal.SIGKILL
    before.serve()
    before.refused("late", "gpu-0", "DeviceInUse")
    before.own_files()
    assert len(list((bed.data_folder / "claims").glob("*.json"))) == len(before.all)
    before.unprepare(*[ref for ref, _ in before.all])
    assert bed.claim_files() == set()
    assert (before.profiles(1), before.profiles(2)) == (["1g.10gb"], [])


def cut(prior: PriorDriver) -> str:
    return json.dumps(prior.document())[:700]


def newer(prior: PriorDriver) -> str:
    return json.dumps({"version": "v3", "v3": prior.document()["v2"]})


@pytest.mark.parametrize("content", [cut, newer])
def test_a_checkpoint_that_cannot_be_read_makes_no_device_free(
    before: Before, content: Callable[[PriorDriver], str]
) -> None:
    bed = before.bed
    before.prior.write(content(before.prior))
    before.serve()
    assert (bed.data_folder / "checkpoint.json.damaged").exists()
    before.refused("late", "gpu-0", "RecordDamaged.*may be in use by the claim of UID")
    eventually(lambda: "RecordDamaged" in before.reasons(), "an Event tells of it")
    with pytest.raises(CallFailed, match="RecordDamaged"):
        before.prepare(before.whole)  # the others may have its GPU, too
    before.unprepare(*[ref for ref, _ in before.all[1:]])
    (device,) = before.prepare(before.whole)
    assert device.name == "gpu-0"
    assert {path.suffix for path in bed.cdi_folder.glob("*-claim_*")} == {".json"}
    before.unprepare(before.whole)
    assert bed.claim_files() == set()
    assert before.profiles(2) == ["2g.20gb"]  # nobody has said whose it is


def test_a_claim_on_which_this_driver_fails_keeps_no_other(before: Before) -> None:
    """JSON can hold half of a character, and no record of ours: that is not looked for."""
    bed = before.bed
    before.prior.claims[before.whole.uid]["status"]["allocation"]["devices"]["results"][0] |= {
        "request": "\ud800"
    }
    before.prior.write()
    before.serve()
    before.refused("late", "gpu-0", f"RecordDamaged.*{before.whole.uid}")
    eventually(
        lambda: any("please report it" in e["message"] for e in bed.api.objects.select("events")),
        "an Event tells of it",
    )
    assert len(before.prepare(before.static)) == 1
    before.unprepare(*[ref for ref, _ in before.all])
    assert bed.claim_files() == set()
    assert before.profiles(2) == []
    assert len(before.prepare(bed.claim("late-again", "gpu-0"))) == 1


def test_the_kubelet_knows_the_names_of_claims(before: Before) -> None:
    """Most releases note no names; without one nobody can find out that a claim is gone."""
    before.prior.write()
    ref = before.whole
    socket = before.bed.folder / "pod-resources" / "kubelet.sock"
    with pod_resources(socket) as kubelet:
        kubelet.claims = {(ref.namespace, ref.name): [cdi_id(ref.uid, "gpu-0")]}
        before.serve()
    folder = before.bed.data_folder / "claims"
    names = {
        path.stem: json.loads(path.read_text().splitlines()[0])["name"]
        for path in folder.glob("*.json")
    }
    assert names[ref.uid] == ref.name
    assert names[before.made.uid] == ""
    before.prepare(before.made)
    record = (folder / f"{before.made.uid}.json").read_text().splitlines()[0]
    assert json.loads(record)["name"] == "made"


def test_unprepare_waits_for_the_first_look_at_the_hardware(before: Before) -> None:
    """Without it nobody would remove the partition that was made for the claim."""
    before.prior.write()
    before.bed.fault("nvmlInit*", "UNKNOWN")
    before.serve(wait=False)
    eventually(lambda: before.bed.get("/readyz")[0], "the plugin answers")
    before.bed.kubelet.wait_registered(DRIVER, 60)
    with pytest.raises(CallFailed, match=r"DriverNotReady.*not taken over yet"):
        before.unprepare(before.made)
    with pytest.raises(CallFailed, match=r"DriverNotReady"):
        before.prepare(before.bed.claim("late", "gpu-0"))
    before.bed.node.state.clear()
    before.bed.wait_ready(before.bed.processes[0])
    before.unprepare(before.made)
    assert before.profiles(2) == []


def test_nothing_is_taken_over_while_the_other_driver_serves(before: Before) -> None:
    """It would go on with a checkpoint of its own."""
    bed = before.bed
    before.prior.write()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(served := bed.data_folder / "dra.sock"))
        other.listen()
        before.serve("--pod-uid=5f4c", "--poll-interval=500ms", wait=False)
        eventually(lambda: "still serves" in bed.get("/readyz")[1], "/readyz tells of it")
        bed.kubelet.wait_registered(DRIVER, 60)
        with pytest.raises(CallFailed, match=r"DriverNotReady.*end its Pod"):
            before.prepare(bed.claim("late", "gpu-0"))
        assert before.prior.checkpoint.exists()
    served.unlink()
    bed.wait_ready(bed.processes[0])
    before.refused("late-again", "gpu-0", "DeviceInUse")


def test_what_the_other_driver_leaves_of_ours_is_swept_when_we_return(make_bed: MakeBed) -> None:
    """Ours, then the other driver, then ours: it leaves our records and CDI files alone."""
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    ref = bed.claim("ours", "gpu-0")
    bed.kubelet.prepare(DRIVER, [ref])
    assert bed.processes[0].stop() == 0
    file = f"k8s.gpu.nvidia.com-claim_{ref.uid}.json"
    assert bed.claim_files() == {file, f"{ref.uid}.json"}
    # A container that starts again finds what it needs.
    assert edits(bed.cdi_folder / file, f"{ref.uid}-gpu-0")
    assert edits(bed.cdi_folder / "k8s.gpu.nvidia.com-driver.json", "common")["mounts"]
    bed.api.objects.delete("resourceclaims", ref.name, namespace=ref.namespace)
    prior = PriorDriver(bed.data_folder, bed.cdi_folder)
    prior.write()  # its claims have ended
    with pod_resources(bed.folder / "pod-resources" / "kubelet.sock"):
        bed.serve("--sweep-interval=100ms")
        eventually(lambda: bed.claim_files() == set(), "what was left is swept")
    assert not prior.checkpoint.exists()
