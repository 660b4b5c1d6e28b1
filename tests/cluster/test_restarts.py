"""The kubelet is restarted and the driver killed while claims live."""

from datetime import datetime

import pytest

from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import claim, use
from tests.cluster.driver import USER, Driver
from tests.cluster.workload import Namespace, pod

pytestmark = pytest.mark.every_release

_REMOVAL_SECONDS = 180.0  # the kubelet calls a driver again after 10 to 60 seconds


def test_slices_return_after_the_kubelet_has_wiped_them(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("kept"))
    gpu_namespace.run(pod("user", claims=use("kept")))
    container = gpu_namespace.container_id("user")
    names, wiped = driver.device_names(), driver.published()
    known = len(list(driver.cluster.audit_events()))
    driver.cluster.restart_kubelet()
    driver.wait_published_anew(wiped, names, "slices are back after the kubelet's restart")
    driver.main.wait_ready()
    writes = [
        item
        for item in list(driver.cluster.audit_events())[known:]
        if item["objectRef"]["resource"] == "resourceslices"
    ]
    wipe = [item for item in writes if item["verb"] == "deletecollection"]
    own = [item for item in writes if _is_own_write(item)]
    away = _when(own[-1], "stageTimestamp") - _when(wipe[0], "requestReceivedTimestamp")
    print(f"slices were away for {away:.2f} s, {len(own)} writes")
    assert view.seen(gpu_namespace, "user") == view.expected(
        driver.node, view.devices_of(gpu_namespace, "user")
    )
    assert gpu_namespace.container_id("user") == container
    gpu_namespace.apply(claim("next"))
    gpu_namespace.run(pod("next", claims=use("next")))


def test_a_killed_driver_finishes_what_it_missed(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(claim("kept"), claim("dropped"))
    gpu_namespace.apply(pod("keeper", claims=use("kept")), pod("leaver", claims=use("dropped")))
    for name in ("keeper", "leaver"):
        gpu_namespace.wait_pod(name, "Running")
    wanted, container = view.seen(gpu_namespace, "keeper"), gpu_namespace.container_id("keeper")
    held = driver.leftovers()
    published = driver.published()
    driver.main.process.kill()
    path = f"/api/v1/namespaces/{gpu_namespace.name}/pods/leaver"
    driver.cluster.api.delete(path)
    assert driver.leftovers() == held
    driver.main.start()
    driver.cluster.api.wait_gone(path, _REMOVAL_SECONDS)
    uid = gpu_namespace.claim("dropped")["metadata"]["uid"]
    assert driver.leftovers() == {name for name in held if uid not in name}
    assert view.seen(gpu_namespace, "keeper") == wanted
    assert gpu_namespace.container_id("keeper") == container
    assert driver.published() == published


def _is_own_write(item: Object) -> bool:
    return bool(item["user"]["username"] == USER and item["verb"] in ("create", "update"))


def _when(item: Object, what: str) -> float:
    return datetime.fromisoformat(item[what]).timestamp()
