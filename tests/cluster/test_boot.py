"""The cluster itself: it boots, runs Pods, and its scheduler allocates claims without a driver."""

import json
import time
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.api import Object
from tests.cluster.cache import HarnessError
from tests.cluster.cluster import Cluster
from tests.cluster.workload import RESOURCE_API, Namespace, pod


@pytest.mark.every_cluster
def test_the_server_is_of_the_wanted_version(cluster: Cluster) -> None:
    assert cluster.api.get("/version")["gitVersion"] == f"v{cluster.settings.version}"
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{cluster.settings.version}"


@pytest.mark.parametrize("image", [images.BUSYBOX, images.DEBIAN, images.LIB64])
def test_a_pod_runs_and_its_log_is_read(namespace: Namespace, image: str) -> None:
    namespace.run(pod("hello", "sh", "-c", "echo $((6 * 7))", image=image), "Succeeded")
    assert namespace.logs("hello") == "42\n"


@pytest.mark.parametrize("image", [images.DEBIAN, images.LIB64])
def test_glibc_images_hold_no_gpu_library(namespace: Namespace, image: str) -> None:
    namespace.run(pod("libraries", image=image))
    check = 'dlopen-check "$@" || echo failed'
    shown = namespace.exec(
        "libraries", ["sh", "-c", check, "sh", "libm.so.6", "libcuda.so.1", "libnvidia-ml.so.1"]
    ).splitlines()
    assert shown[0].startswith("libm.so.6 /")
    assert [line.split(":")[0] for line in shown[1:3]] == [
        "libcuda.so.1 error",
        "libnvidia-ml.so.1 error",
    ]
    assert shown[3:] == ["failed"]


def test_kubectl_and_exec_reach_a_running_pod(namespace: Namespace) -> None:
    namespace.run(pod("sleeper"))
    assert namespace.exec("sleeper", ["hostname"]) == "sleeper\n"
    listed = namespace.cluster.kubectl("get", "pods", "-n", namespace.name, "-o", "name")
    assert listed == "pod/sleeper\n"


def test_a_pod_reaches_the_api_server_at_its_service_address(namespace: Namespace) -> None:
    command = "nc -w 20 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null"
    namespace.run(pod("client", "sh", "-c", command), "Succeeded")


def test_a_slice_posted_by_hand_is_allocated_by_the_scheduler(
    cluster: Cluster, namespace: Namespace
) -> None:
    driver = "hand.example.com"
    cluster.api.create(f"{RESOURCE_API}/deviceclasses", _device_class(driver))
    cluster.api.create(f"{RESOURCE_API}/resourceslices", _slice(driver, cluster.node_name))
    try:
        selector = f"device.attributes['{driver}'].model == 'b'"
        namespace.apply(
            _claim("wants-b", selector), _claim("wants-c", selector.replace("b'", "c'"))
        )
        started = time.monotonic()
        claims = {"device": {"resourceClaimName": "wants-b"}}
        cluster.api.create(
            f"/api/v1/namespaces/{namespace.name}/pods", pod("takes-b", claims=claims)
        )
        allocated = namespace.wait_allocated("wants-b")
        print(f"allocated after {time.monotonic() - started:.2f} s")
        (result,) = allocated["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == (driver, "hand", "device-1")

        claims = {"device": {"resourceClaimName": "wants-c"}}
        cluster.api.create(
            f"/api/v1/namespaces/{namespace.name}/pods", pod("takes-c", claims=claims)
        )
        assert "cannot allocate all claims" in namespace.wait_unschedulable("takes-c")
    finally:
        cluster.api.delete(f"{RESOURCE_API}/resourceslices/hand")
        cluster.api.delete(f"{RESOURCE_API}/deviceclasses/hand")


@pytest.mark.every_release
def test_the_kubelet_restarts_and_pods_live_on(cluster: Cluster, namespace: Namespace) -> None:
    namespace.run(pod("survivor"))
    before = namespace.container_id("survivor")
    cluster.restart_kubelet()
    namespace.wait_pod("survivor", "Running")
    assert namespace.container_id("survivor") == before


def test_containers_run_while_the_api_server_is_down(
    cluster: Cluster, namespace: Namespace
) -> None:
    namespace.run(pod("survivor"))
    container = namespace.container_id("survivor")
    cluster.stop_api_server()
    try:
        with pytest.raises(OSError, match="refused"):
            cluster.api.get("/version")
        assert namespace.exec_in(container, ["hostname"]) == "survivor\n"
    finally:
        cluster.start_api_server()
    cluster.wait_node_ready()


def test_a_service_account_acts_from_its_node_with_its_rights_only(
    cluster: Cluster, namespace: Namespace
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "plugin"}}
    namespace.apply(account)
    kubeconfig = cluster.service_account(namespace.name, "plugin")
    flag = f"--kubeconfig={kubeconfig}"
    shown = cluster.kubectl(flag, "auth", "whoami", "-o", "json")
    assert f'"system:serviceaccount:{namespace.name}:plugin"' in shown
    assert f'"{cluster.node_name}"' in shown
    with pytest.raises(HarnessError, match="Forbidden"):
        cluster.kubectl(flag, "get", "pods")


def test_the_audit_log_names_who_wrote_what(cluster: Cluster, namespace: Namespace) -> None:
    namespace.run(pod("audited"))
    writes = [
        (event["user"]["username"], event["verb"])
        for event in cluster.audit_events()
        if event["objectRef"].get("namespace") == namespace.name
        and event["objectRef"].get("subresource") == "binding"
    ]
    assert writes == [("system:kube-scheduler", "create")]


def test_cdi_specs_are_checked_by_the_projects_own_library(
    cluster: Cluster, tmp_path: Path
) -> None:
    device = {"name": "one", "containerEdits": {"env": ["A=b"]}}
    spec = {"cdiVersion": "0.5.0", "kind": "example.com/thing", "devices": [device]}
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(spec))
    cluster.validate_cdi(good)
    bad.write_text(json.dumps({**spec, "devices": []}))
    with pytest.raises(HarnessError, match=r"bad\.json: invalid CDI Spec: .*no devices"):
        cluster.validate_cdi(good, bad)


def _device_class(driver: str) -> Object:
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    return {"metadata": {"name": "hand"}, "spec": {"selectors": selectors}}


def _slice(driver: str, node: str) -> Object:
    devices = [
        {"name": f"device-{number}", "attributes": {"model": {"string": model}}}
        for number, model in enumerate("ab")
    ]
    pool = {"name": "hand", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": "hand"}, "spec": spec}


def _claim(name: str, selector: str) -> Object:
    exactly = {"deviceClassName": "hand", "selectors": [{"cel": {"expression": selector}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}},
    }
