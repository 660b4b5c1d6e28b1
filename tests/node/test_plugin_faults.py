"""The plugin while NVML hangs, the API server is away, and processes are killed."""

import socket
import subprocess

import grpc
import pytest

from dra_driver.model import ClaimRef
from dra_driver.rpc import health_check_pb2
from dra_driver.rpc.health_check_pb2_grpc import HealthStub
from dra_driver.simulator.kubelet_plugin import CallFailed, introduce
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import PROGRAM, MakeBed, NodeBed

UIDS = ("8f3a9d4e-1b2c-4d5e-8f90-a1b2c3d4e5f6", "00000000-1b2c-4d5e-8f90-a1b2c3d4e5f6")


def test_b30_registration_answers_while_nvml_hangs(make_bed: MakeBed) -> None:
    """The kubelet gives GetInfo one second (its stand-in too), then backs off up to 2 minutes."""
    bed = make_bed(gpus=2)
    bed.fault("nvmlInit*", hang=5)
    bed.kubelet.start()
    process = bed.serve(wait=False)
    bed.kubelet.wait_registered(DRIVER, 60)
    bed.kubelet.unprepare(DRIVER, [bed.claim("never-seen", "gpu-0")])
    assert bed.get("/healthz") == (200, "ok\n")
    assert bed.get("/readyz")[0] == 503
    bed.wait_ready(process)
    (happening,) = bed.kubelet.history
    print(f"GetInfo took {happening.seconds:.3f} s")
    assert happening.what == "registered"
    told = [line for line in process.lines() if "registered" in line or "driver answers" in line]
    assert "registered" in told[0], "NVML was still hanging"


def test_gpus_that_begin_to_hang_do_not_hold_up_the_kubelet(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    bed.serve("--poll-interval=200ms")
    claim = bed.claim("held", "gpu-0")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.fault("nvmlDeviceGetUUID", hang=3600)
    bed.fault("nvmlDeviceGetMemoryInfo_v2", hang=3600)
    health = bed.kubelet.wait_registered(DRIVER, 60).health
    eventually(
        lambda: {report.state for report in health.reports.values()} == {"UNKNOWN"},
        "GPUs that do not answer are not called healthy",
    )
    bed.kubelet.restart()
    bed.kubelet.wait_registered(DRIVER, 60)
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


def test_b30_a_killed_plugin_comes_back_on_its_old_sockets(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    process = bed.serve()
    claim = bed.claim("held", "gpu-0")
    prepared = bed.kubelet.prepare(DRIVER, [claim])
    files = bed.claim_files()
    process.kill()
    assert bed.sockets() == {"dra.sock", f"{DRIVER}-reg.sock"}, "SIGKILL leaves them"
    assert bed.claim_files() == files
    bed.serve()
    assert bed.kubelet.prepare(DRIVER, [claim]) == prepared
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


def test_unprepare_needs_neither_nvml_nor_api_server(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    process = bed.serve()
    claims = [bed.claim("one", "gpu-0"), bed.claim("two", "gpu-1")]
    bed.kubelet.prepare(DRIVER, claims)
    process.kill()
    bed.node.library.rename(bed.node.library.with_name("gone"))
    bed.api.stop()
    bed.serve(wait=False)
    bed.kubelet.wait_registered(DRIVER, 60)
    eventually(lambda: _unprepared(bed, claims), "unprepared without NVML and API server")
    assert bed.claim_files() == set()
    status, text = bed.get("/readyz")
    assert status == 503
    assert "libnvidia-ml.so.1" in text


def _unprepared(bed: NodeBed, claims: list[ClaimRef]) -> bool:
    """Tell whether a call went through; the kubelet may just be dropping the old plugin."""
    try:
        bed.kubelet.unprepare(DRIVER, claims)
    except CallFailed as error:
        if "UNAVAILABLE" in str(error) or "not registered" in str(error):
            return False
        raise
    return True


def test_slices_that_the_kubelet_wiped_come_back_with_the_plugin(make_bed: MakeBed) -> None:
    bed = make_bed(wipe_seconds=0.5)
    bed.kubelet.start()
    process = bed.serve()
    process.kill()
    eventually(lambda: bed.slices() == [], "the kubelet misses the plugin and wipes its slices")
    bed.serve()
    assert bed.device_names() == {"gpu-0"}


def test_a_second_plugin_on_the_same_sockets_is_refused(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    second = bed.serve(wait=False)
    assert second.wait() == 3
    (line,) = second.lines("Error:")
    assert "another process serves" in line
    assert "--pod-uid" in line
    claim = bed.claim("mine", "gpu-0")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.kubelet.unprepare(DRIVER, [claim])


def test_a_rolling_update_hands_over(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.kubelet.start()
    old = bed.serve(environment={"POD_UID": UIDS[0]})
    claim = bed.claim("mine", "gpu-0")
    bed.kubelet.prepare(DRIVER, [claim])
    bed.serve(environment={"POD_UID": UIDS[1]})
    newest = bed.data_folder / f"dra-{UIDS[1]}.sock"
    eventually(
        lambda: bed.kubelet.wait_registered(DRIVER, 60).introduction.endpoint == newest,
        "the kubelet calls the newest",
    )
    assert old.stop() == 0
    bed.kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (f"--kubelet-registrar-directory-path=/tmp/{'x' * 90}", "unix sockets take 107"),
        ("--kubelet-plugins-directory-path=relative", "is not an absolute path"),
        ("--http-endpoint=nowhere", "is not an address"),
        ("--poll-interval=soon", "is not a duration"),
        ("--node-name=Not_A_Name", "--node-name: 'Not_A_Name' is not a name"),
        ("--driver-name=../../etc", "--driver-name"),
        ("--no-such-flag", "No such option"),
    ],
)
def test_bad_flags_are_named_in_one_line(make_bed: MakeBed, flag: str, words: str) -> None:
    process = make_bed().serve(flag, wait=False)
    assert process.wait() == 2
    (line,) = process.lines("Error:")
    assert words in line


def test_a_folder_that_cannot_be_made_is_named(make_bed: MakeBed) -> None:
    bed = make_bed()
    (bed.folder / "file").touch()
    process = bed.serve(f"--kubelet-plugins-directory-path={bed.folder / 'file'}", wait=False)
    assert process.wait() == 3
    (line,) = process.lines("Error:")
    assert f"{bed.folder / 'file'}" in line


def test_probes_give_reasons_until_all_is_well(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.fault("nvmlInit*", "DRIVER_NOT_LOADED")
    bed.api.stop()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bed.kubelet.start()
    process = bed.serve(f"--healthcheck-port={port}", wait=False)
    bed.kubelet.wait_registered(DRIVER, 60)
    eventually(lambda: "DRIVER_NOT_LOADED" in bed.get("/readyz")[1], "NVML is the reason")
    request = health_check_pb2.HealthCheckRequest(service="liveness")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = HealthStub(channel).Check(request, timeout=30)
    assert answer.status == health_check_pb2.HealthCheckResponse.SERVING
    bed.node.state.clear()
    eventually(lambda: "DRIVER_NOT_LOADED" not in bed.get("/readyz")[1], "NVML answers")
    assert bed.get("/readyz")[0] == 503, "the API server is still away"
    bed.api.start()
    bed.wait_ready(process)
    assert "gpu_dra_driver_registered 1.0" in bed.get("/metrics")[1]


def test_the_endpoint_in_get_info_is_the_service_socket(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.serve(wait=False)
    socket_path = bed.registrar_folder / f"{DRIVER}-reg.sock"
    eventually(socket_path.exists, "registration socket")
    assert introduce(socket_path).endpoint == bed.data_folder / "dra.sock"


def test_the_version_is_printed() -> None:
    done = subprocess.run([PROGRAM, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gpu-dra-driver ")
