"""Reports from the field, with the driver as Pods: what only a real kubelet and runtime show."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from dra_driver.rpc import podresources_v1_pb2 as messages
from dra_driver.rpc import podresources_v1_pb2_grpc as services
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import alike
from tests.chart.helm import setting
from tests.cluster import examples, linux, view
from tests.cluster.access import API_ADDRESS
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.cache import HarnessError
from tests.cluster.claims import MIG_CLASS, claim, of_parent, use
from tests.cluster.driver import DRIVER, eventually
from tests.cluster.release import PLUGIN, Release
from tests.cluster.workload import Namespace, pod
from tests.support.node import SimulatedNode

_GROUP: Final = "/apis/resource.k8s.io"
_OPERATORS_ROOT: Final = Path("/run/nvidia/driver")
_READ_ONLY: Final = Path("/run/read-only-cdi")
_SMALL: Final = f"device.attributes['{DRIVER}'].?profile.orValue('') == '1g.10gb'"
_TOKEN: Final = "var/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.fixture
def changed(release: Release) -> Iterator[Release]:
    """Give the release to change values of; in the end it has its own again."""
    yield release
    release.helm("upgrade")
    release.wait_settled()


def test_b03_b09_the_gpu_operators_driver_comes_after_the_plugin(
    changed: Release, release_namespace: Namespace
) -> None:
    """The driver's root is a mount that appears when the plugin runs already."""
    node = SimulatedNode.create(
        changed.cluster.folder("operator") / "root",
        alike("h100-80gb", 2),
        device_nodes=NodeKind.REAL,
        seed="operator",
    )
    changed.helm("upgrade", *setting(f"nvidiaDriverRoot={_OPERATORS_ROOT}"))
    name = _newest(changed)
    _wait_for_words(changed, name, f"was not found below {_OPERATORS_ROOT} (here /driver-root)")
    try:
        linux.mount(os.fspath(node.root), _OPERATORS_ROOT, flags=linux.MS_BIND | linux.MS_REC)
        changed.wait_started()
        assert changed.pod_name(PLUGIN) == name
        assert _restarts(changed) == 0
        eventually(lambda: changed.device_names() == {"gpu-0", "gpu-1"}, "its GPUs are published")
        release_namespace.apply(claim("one"))
        release_namespace.run(pod("one", claims=use("one")))
        names = view.devices_of(release_namespace, "one")
        assert view.seen(release_namespace, "one") == view.expected(node, names)
        changed.cluster.validate_cdi(*changed.cdi_files())
        release_namespace.delete_pod("one")
        changed.helm("upgrade")
        changed.wait_started()
    finally:
        linux.unmount(_OPERATORS_ROOT)
        node.close()


def test_b13_a_cdi_folder_that_cant_be_written_is_named(
    changed: Release, release_namespace: Namespace
) -> None:
    with _read_only(_READ_ONLY):
        changed.helm("upgrade", *setting(f"cdiRoot={_READ_ONLY}"))
        changed.wait_started()
        release_namespace.apply(claim("one"), pod("one", claims=use("one")))
        event = release_namespace.wait_event("one", "FailedPrepareDynamicResources")
        assert f"{_READ_ONLY}" in event["message"]
        assert "Read-only file system" in event["message"]
        elsewhere = changed.cluster.cdi_folders[0]
        changed.helm("upgrade", *setting(f"cdiRoot={elsewhere}"))
        changed.wait_started()
        release_namespace.wait_pod("one", "Running")
        assert {path.parent for path in changed.cdi_files()} == {elsewhere}
        release_namespace.delete_pod("one")


@pytest.mark.every_release
def test_b30_one_registration_however_the_plugin_ends(
    release: Release, release_namespace: Namespace
) -> None:
    release_namespace.apply(claim("kept"))
    release_namespace.run(pod("keeper", claims=use("kept")))
    os.kill(_process(release), signal.SIGKILL)
    eventually(lambda: _restarts(release) == 1, "the killed container is started again")
    release.wait_started()
    assert len(_sockets(release)) == 2
    release.cluster.restart_kubelet()
    release.wait_started()
    before = release.pod_name(PLUGIN)
    release.namespace_of_driver.delete_pod(before)
    release.wait_started()
    assert release.pod_name(PLUGIN) != before
    sockets = _sockets(release)
    assert len(sockets) == 2, sockets
    release_namespace.delete_pod("keeper")
    release_namespace.apply(claim("next"))
    release_namespace.run(pod("next", claims=use("next")))
    assert not [line for line in release_namespace.warnings() if "DynamicResources" in line]


@pytest.mark.every_cluster
def test_b31_the_token_in_the_pod_writes_no_slice_of_another_node(release: Release) -> None:
    token = Path(f"/proc/{_process(release)}/root/{_TOKEN}").read_text()
    plugin = Api(API_ADDRESS, release.cluster.authority, token)
    served = [each["version"] for each in release.cluster.api.get(_GROUP)["versions"]]
    versions = [version for version in served if _has_slices(release, version)]
    print("versions:", *versions)
    assert "v1" in versions
    for version in versions:
        path = f"{_GROUP}/{version}/resourceslices?dryRun=All"
        with pytest.raises(ApiError, match="slices-of-the-own-node") as caught:
            plugin.create(path, _slice("another-node"))
        assert caught.value.status == 403
        plugin.create(path, _slice(release.cluster.node_name))


def test_b43_a_device_plugin_beside_the_driver_is_reported(release: Release) -> None:
    with _allocatable(release, "nvidia.com/gpu"):
        release.wait_node_event("OtherAllocator", "nvidia.com/gpu=2")
        assert release.metrics("gpu_dra_driver_other_allocator") == [1]
        status, text = release.page("/readyz")
        assert (status, text.splitlines()[0]) == (200, "ok")
        assert "nvidia.com/gpu=2" in text
    release.wait_node_event("OtherAllocatorGone", "")


def test_b43_who_has_which_partition_by_public_objects_alone(
    release: Release, release_namespace: Namespace
) -> None:
    """As an exporter of metrics joins: kubelet, then the slice or the claim's status."""
    with release.configured(examples.node_config("dynamic.yaml")):
        made = "gpu-0-mig-1g10gb-19-6"
        eventually(lambda: made in release.device_names(), "what can be made is published")
        for name, position in (("cut", 0), ("found", 9)):
            gpu = of_parent(release.node.gpu(position)["uuid"])
            release_namespace.apply(claim(name, MIG_CLASS, f"{gpu} && {_SMALL}"))
            release_namespace.run(pod(name, claims=use(name)))
        uuids = {name: _joined(release, release_namespace, name) for name in ("cut", "found")}
        for name, uuid in uuids.items():
            (device,) = view.devices_of(release_namespace, name)
            assert uuid == view.uuid(release.node, device)
        for name in uuids:
            release_namespace.delete_pod(name)


def _newest(release: Release) -> str:
    """Wait for the Pod that takes the other's place; gives its name."""

    def both() -> list[Object]:
        pods = sorted(release.pods(PLUGIN), key=lambda item: item["metadata"]["creationTimestamp"])
        return pods if len(pods) == 2 and pods[1]["status"].get("podIP") else []

    eventually(both, "a second Pod of the plugin runs")
    return str(both()[1]["metadata"]["name"])


def _wait_for_words(release: Release, name: str, words: str) -> None:
    """Wait until a Pod of the plugin is not ready and says this."""
    pages: list[tuple[int, str]] = []

    def says() -> bool:
        pages[:] = [release.page("/readyz", name)]
        return pages[0][0] == HTTPStatus.SERVICE_UNAVAILABLE and words in pages[0][1]

    try:
        eventually(says, "it says what it waits for")
    except HarnessError as error:
        raise HarnessError(f"{error}: {pages}\n{release.story()}") from None


def _restarts(release: Release) -> int:
    (status,) = release.pods(PLUGIN)[0]["status"]["containerStatuses"]
    return int(status["restartCount"])


def _process(release: Release) -> int:
    """Process of the plugin in its container."""
    command = b"dra-driver\0serve\0--config=/node-configs"
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if command in _read(path)]
    (path,) = found
    return int(path.parent.name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def _sockets(release: Release) -> list[str]:
    """Sockets of the plugin, and those by which the kubelet finds it."""
    root = release.cluster.kubelet_root
    own, registry = root / "plugins" / DRIVER, root / "plugins_registry"
    found = [*own.glob("dra*.sock"), *registry.glob(f"{DRIVER}*.sock")]
    return sorted(path.name for path in found)


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    folder.mkdir()
    linux.mount("tmpfs", folder, "tmpfs", flags=linux.MS_RDONLY)
    try:
        yield
    finally:
        linux.unmount(folder)


@contextmanager
def _allocatable(release: Release, resource: str) -> Iterator[None]:
    """Let the Node have what a device plugin gives out."""
    path = f"/api/v1/nodes/{release.cluster.node_name}/status"
    for count in ("2", None):
        amounts = {resource: count}
        patch = {"status": {"capacity": amounts, "allocatable": amounts}}
        release.cluster.api.patch(path, patch)
        if count is not None:
            yield


def _has_slices(release: Release, version: str) -> bool:
    found = release.cluster.api.get(f"{_GROUP}/{version}")["resources"]
    return any(each["name"] == "resourceslices" for each in found)


def _slice(node: str) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    return {"metadata": {"generateName": "report-"}, "spec": spec}


def _joined(release: Release, namespace: Namespace, pod_name: str) -> str:
    """UUID of a Pod's one device, without asking the driver or the node's hardware."""
    socket = release.cluster.kubelet_root / "pod-resources" / "kubelet.sock"
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        answer = services.PodResourcesListerStub(channel).List(messages.ListPodResourcesRequest())
    (told,) = (each for each in answer.pod_resources if each.name == pod_name)
    ((used,),) = ([*container.dynamic_resources] for container in told.containers)
    (resource,) = used.claim_resources
    attributes = release.attributes()[resource.device_name]
    if "uuid" in attributes:
        return str(attributes["uuid"]["string"])
    devices: list[Any] = namespace.claim(used.claim_name)["status"]["devices"]
    (device,) = (
        each
        for each in devices
        if (each["driver"], each["pool"], each["device"])
        == (resource.driver_name, resource.pool_name, resource.device_name)
    )
    return str(device["data"]["uuid"])
