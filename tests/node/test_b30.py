"""Registration: whoever starts first, restarts, hangs up, or lives elsewhere (field report B30).

Further tests of this report, by what they are about: killed and hanging plugins in
`test_plugin_faults.py`, sockets in `tests/unit/plugin/test_sockets.py`, updates in `test_surge.py`.
"""

import tempfile
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest

from dra_driver.model import ClaimRef
from dra_driver.rpc import dra_v1_pb2
from dra_driver.rpc.dra_v1_pb2_grpc import DRAPluginStub
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.kubelet_plugin import unwatch
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

UIDS = ("8f3a9d4e-1b2c-4d5e-8f90-a1b2c3d4e5f6", "00000000-1b2c-4d5e-8f90-a1b2c3d4e5f6")


def comes_and_goes(bed: NodeBed, kubelet: Kubelet, claim: ClaimRef) -> None:
    """Let a claim be prepared and unprepared by a plugin that is registered by now."""
    kubelet.wait_registered(DRIVER, 60)
    (device,) = kubelet.prepare(DRIVER, [claim])[claim.uid]
    assert device.name == "gpu-0"
    kubelet.unprepare(DRIVER, [claim])
    assert bed.claim_files() == set()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_b30_a_kubelet_may_restart_at_any_moment(make_bed: MakeBed, moment: str) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    if moment == "before":
        bed.serve().kill()  # leaves its sockets, which the next kubelet finds
        bed.kubelet.restart()
    process = bed.serve(wait=moment != "during")
    if moment == "during":
        registrar = bed.registrar_folder / f"{DRIVER}-reg.sock"
        eventually(registrar.exists, "the plugin offers itself")
        for _ in range(3):
            bed.kubelet.restart()
    if moment == "after":
        bed.kubelet.stop()
        eventually(lambda: process.lines("health stream ends"), "the kubelet is gone")
        bed.kubelet.start()
    seconds = eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "slices are there")
    print(f"slices {seconds:.2f} s after the kubelet's start")
    bed.wait_ready(process)
    comes_and_goes(bed, bed.kubelet, bed.claim("mine", "gpu-0"))


def test_b30_instances_that_start_at_once_do_not_hinder_each_other(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    for uid in UIDS:
        bed.serve(environment={"POD_UID": uid}, wait=False)
    names = {f"{DRIVER}-{uid}-reg.sock" for uid in UIDS}
    eventually(
        lambda: {each.path.name for each in bed.kubelet.history} == names, "both are registered"
    )
    eventually(lambda: bed.device_names() == {"gpu-0", "gpu-1"}, "one of them publishes")
    assert bed.sockets() == names | {f"dra-{uid}.sock" for uid in UIDS}
    comes_and_goes(bed, bed.kubelet, bed.claim("mine", "gpu-0"))
    for process in bed.processes:
        assert process.stop() == 0
        assert process.lines("ERROR") == []
    assert bed.sockets() == set()
    accepted = [entry.status for entry in bed.api.requests.writes() if entry.status < 300]
    assert accepted == [201], "the slices were written once"


def test_b30_a_link_that_went_idle_is_taken_up_again(make_bed: MakeBed) -> None:
    """Early kubelets hang up after 30 idle minutes, then wipe the slices (k8s #133920)."""
    bed = make_bed()
    bed.kubelet.start()
    bed.serve()
    ref = bed.claim("mine", "gpu-0")
    claims = [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)]
    states: list[grpc.ChannelConnectivity] = []
    options = (("grpc.client_idle_timeout_ms", 1000), ("grpc.use_local_subchannel_pool", 1))
    address = f"unix:{quote(str(bed.data_folder / 'dra.sock'))}"
    with grpc.insecure_channel(address, options) as channel:
        listener = states.append
        channel.subscribe(listener)
        plugin = DRAPluginStub(channel)
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=claims)
        assert plugin.NodePrepareResources(request, timeout=45).claims[ref.uid].devices
        eventually(
            lambda: (
                grpc.ChannelConnectivity.READY in states
                and states[-1] is grpc.ChannelConnectivity.IDLE
            ),
            "the link is idle",
        )
        bed._wipe_slices()
        seconds = eventually(lambda: bed.device_names() == {"gpu-0"}, "slices are back")
        print(f"slices are back after {seconds:.2f} s")
        undo = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=claims)
        answer = plugin.NodeUnprepareResources(undo, timeout=45)
        unwatch(channel, listener)
        assert answer.claims[ref.uid].error == ""
    assert bed.claim_files() == set()


def test_b30_a_kubelet_root_elsewhere_is_used_as_it_is_named(make_bed: MakeBed) -> None:
    """Through a link, and too long for the readable name of the socket."""
    bed = make_bed()
    usual = Path("/var/lib/kubelet/plugins", DRIVER)
    was_there = usual.exists()
    with tempfile.TemporaryDirectory(prefix="root-of-a-kubelet-") as true:
        root = bed.folder / "kubelet"
        root.symlink_to(true)
        registry = root / "plugins_registry_of_this_kubelet"
        registry.mkdir()
        process = bed.serve(
            f"--kubelet-plugins-directory-path={root / 'plugins'}",
            f"--kubelet-registrar-directory-path={registry}",
            environment={"POD_UID": UIDS[0]},
            wait=False,
        )
        kubelet = Kubelet(registry)
        kubelet.start()
        try:
            found = kubelet.wait_registered(DRIVER, 60).introduction
            assert found.endpoint == root / "plugins" / DRIVER / f"dra-{UIDS[0]}.sock"
            (happening,) = kubelet.history
            assert happening.path.name == f"{DRIVER}-YS-AI5zk5QM-reg.sock"
            bed.wait_ready(process)
            comes_and_goes(bed, kubelet, bed.claim("mine", "gpu-0"))
        finally:
            kubelet.stop()
        assert process.stop() == 0
        assert not [path for path in Path(true).rglob("*") if path.is_socket()]
        assert (Path(true) / "plugins" / DRIVER / "claims").is_dir()
    assert bed.sockets() == set()
    assert usual.exists() == was_there
