"""The main job on a simulated node: register, publish, prepare, unprepare, stop."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed

DYNAMIC = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic}
"""


def test_gpus_are_published_and_claims_prepared(make_bed: MakeBed) -> None:
    bed = make_bed(model="h100-80gb", gpus=2)
    bed.kubelet.start()
    bed.serve()
    assert bed.device_names() == {"gpu-0", "gpu-1"}
    claim = bed.claim("mine", "gpu-1")
    (device,) = bed.kubelet.prepare(DRIVER, [claim])[claim.uid]
    assert (device.requests, device.pool, device.name) == (("request-0",), "node-a", "gpu-1")
    assert device.cdi_ids == (
        f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-1",
        "k8s.gpu.nvidia.com/driver=common",
    )
    assert len(bed.claim_files()) == 2  # CDI file and record
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


@pytest.mark.parametrize(
    ("minor", "version"),
    [(34, "v1alpha1.DRAResourceHealth"), (37, "v1.DRAResourceHealth")],
)
def test_kubelets_of_all_releases_get_a_first_health_report(
    make_bed: MakeBed, minor: int, version: str
) -> None:
    bed = make_bed(gpus=2, minor=minor)
    bed.kubelet.start()
    bed.serve()
    health = bed.kubelet.wait_registered(DRIVER, 60).health
    assert health.version == version
    seconds = eventually(lambda: len(health.reports) == 2, "both devices are reported")
    print(f"first report after {seconds:.2f} s")
    assert {key: report.state for key, report in health.reports.items()} == {
        ("node-a", "gpu-0"): "HEALTHY",
        ("node-a", "gpu-1"): "HEALTHY",
    }


def test_a_node_without_gpus_is_ready_and_gets_one_later(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=0)
    bed.kubelet.start()
    bed.serve("--poll-interval=200ms")
    (empty,) = bed.slices()
    assert empty["spec"].get("devices", []) == []
    bed.node.add_gpu("h100-80gb")
    seconds = eventually(lambda: bed.device_names() == {"gpu-0"}, "the new GPU is published")
    print(f"published after {seconds:.2f} s")


def test_a_kubelet_that_starts_later_finds_the_plugin(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.serve(wait=False)
    eventually(lambda: len(bed.slices()) == 1, "published without a kubelet")
    status, text = bed.get("/readyz")
    assert (status, text) == (503, "the kubelet has not asked for this plugin yet\n")
    assert bed.get("/healthz") == (200, "ok\n")
    bed.kubelet.start()
    bed.wait_ready(bed.processes[0])


def test_a_restarted_kubelet_gets_its_slices_back_and_prepares(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve()
    before = bed.claim("before", "gpu-0")
    bed.kubelet.prepare(DRIVER, [before])
    bed.kubelet.restart()
    seconds = eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "slices are back")
    print(f"slices are back after {seconds:.2f} s")
    bed.kubelet.wait_registered(DRIVER, 60)
    again = bed.kubelet.prepare(DRIVER, [before])[before.uid]
    assert [device.name for device in again] == ["gpu-0"]
    bed.kubelet.unprepare(DRIVER, [before])
    assert bed.claim_files() == set()


def test_many_pods_are_served_at_once(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=8)
    bed.kubelet.start()
    bed.serve()
    claims = [bed.claim(f"claim-{number}", f"gpu-{number}") for number in range(8)]
    shared = claims[0]  # two Pods that share a claim may ask for it at the same time
    with ThreadPoolExecutor(16) as pods:
        calls = [
            pods.submit(bed.kubelet.prepare, DRIVER, [claim]) for claim in [*claims, *[shared] * 8]
        ]
        answers = [call.result(60) for call in calls]
    assert [next(iter(answer.values()))[0].name for answer in answers[:8]] == [
        f"gpu-{number}" for number in range(8)
    ]
    assert all(answer == answers[0] for answer in answers[8:])
    with ThreadPoolExecutor(8) as pods:
        for call in [pods.submit(bed.kubelet.unprepare, DRIVER, [claim]) for claim in claims]:
            call.result(60)
    assert bed.claim_files() == set()


def test_a_stopped_plugin_leaves_the_kubelet_but_not_its_slices(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    process = bed.serve()
    slices = bed.slices()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert bed.sockets() == set()
    bed.kubelet.wait_gone(DRIVER, 60)
    assert bed.slices() == slices
    assert process.lines("ERROR") == []
    assert process.lines("left behind") == []


def test_a_stop_does_not_wait_for_a_prepare_that_hangs(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    process = bed.serve()
    claim = bed.claim("slow", "gpu-0")
    bed.api.faults.fail("get", "resourceclaims", status=503, times=1000)
    with ThreadPoolExecutor(1) as pod:
        call = pod.submit(bed.kubelet.prepare, DRIVER, [claim])
        eventually(lambda: process.lines("prepare is tried again"), "the call waits")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert call.exception(60) is not None


def test_a_stop_lets_a_call_take_back_what_it_has_begun(make_bed: MakeBed, tmp_path: Path) -> None:
    """The kubelet cuts it when the plugin unregisters; the GPU stays open until it has ended."""
    bed = make_bed()
    bed.kubelet.start()
    config = tmp_path / "node.yaml"
    config.write_text(DYNAMIC)
    process = bed.serve(f"--config={config}")
    claim = bed.claim("slow", "gpu-0-mig-1g10gb-19-0")
    bed.node.state.fault(0, "nvmlDeviceCreateGpuInstance*", 0, times=1, hang=5.0)
    with ThreadPoolExecutor(1) as pod:
        call = pod.submit(bed.kubelet.prepare, DRIVER, [claim])
        eventually(lambda: not bed.node.show()["faults"], "it makes a partition")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Channel closed" in str(call.exception(60))
    assert bed.node.gpu(0)["instances"] == []
    assert bed.claim_files() == set()
    assert process.lines("left behind") == []


def test_sigusr2_shows_the_stacks_of_all_threads(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    process = bed.serve()
    process.signal(signal.SIGUSR2)
    eventually(lambda: len(process.lines("Thread 0x")) > 3, "stacks of several threads")
    assert process.lines("File ", "discovery.py")
    assert bed.get("/healthz") == (200, "ok\n")
