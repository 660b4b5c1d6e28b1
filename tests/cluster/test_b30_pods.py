"""Registration with a real kubelet when the driver's Pods come and go (field report B30).

A kubelet root elsewhere is only rendered: `test_chart_values.py` for the chart,
`tests/node/test_b30.py` for a plugin that serves there.
"""

import os
import signal
import socket

from tests.cluster.claims import claim, use
from tests.cluster.driver import DRIVER, eventually
from tests.cluster.release import PLUGIN, Release
from tests.cluster.workload import pod

_OF_A_DEAD_POD = "00000000-1b2c-4d5e-8f90-a1b2c3d4e5f6"


def sockets(release: Release) -> set[str]:
    """Names of the sockets by which the kubelet finds and calls this driver."""
    root = release.cluster.kubelet_root
    folders = (root / "plugins_registry", root / "plugins" / DRIVER)
    return {path.name for folder in folders for path in folder.iterdir() if path.is_socket()}


def of(uid: str) -> set[str]:
    return {f"{DRIVER}-{uid}-reg.sock", f"dra-{uid}.sock"}


def uid_of(release: Release) -> str:
    (found,) = release.pods(PLUGIN)
    return str(found["metadata"]["uid"])


def leave_sockets_of_a_dead_pod(release: Release) -> None:
    """Leave what a Pod leaves that was killed and never came back: its node lost power."""
    root = release.cluster.kubelet_root
    for folder in (root / "plugins_registry", root / "plugins" / DRIVER):
        for path in (folder / name for name in of(_OF_A_DEAD_POD)):
            if ("reg" in path.name) == (folder.name == "plugins_registry"):
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(str(path))
                os.utime(path, (0, 0))


def is_served_by_one(release: Release) -> None:
    """Wait until one instance is registered, and let the kubelet prepare a claim by it."""
    release.wait_settled()
    eventually(release.is_ready, "the plugin is registered")
    eventually(lambda: sockets(release) == of(uid_of(release)), "no other sockets are left")
    with release.namespace() as namespace:
        namespace.apply(claim("one"))
        namespace.run(pod("one", claims=use("one")))


def test_b30_the_plugin_is_killed(release: Release) -> None:
    uid, before, slices = uid_of(release), release.restarts(PLUGIN), release.published()
    leave_sockets_of_a_dead_pod(release)
    assert sockets(release) == of(uid) | of(_OF_A_DEAD_POD)
    os.kill(release.pid(PLUGIN), signal.SIGKILL)
    eventually(lambda: release.restarts(PLUGIN) == before + 1, "the kubelet starts it again")
    is_served_by_one(release)
    assert uid_of(release) == uid
    assert release.published() == slices


def test_b30_the_kubelet_restarts(release: Release) -> None:
    before = release.restarts(PLUGIN)
    release.cluster.restart_kubelet()
    is_served_by_one(release)
    assert release.restarts(PLUGIN) == before


def test_b30_the_pod_is_made_anew(release: Release) -> None:
    uid, slices = uid_of(release), release.published()
    release.namespace_of_driver.delete_pod(release.pod_name(PLUGIN))
    eventually(lambda: not sockets(release) & of(uid), "the old Pod's sockets are gone")
    is_served_by_one(release)
    assert uid_of(release) != uid
    assert release.published() == slices


def test_b30_an_update_has_two_instances_for_a_while(release: Release) -> None:
    uid, slices = uid_of(release), release.published()
    release.helm("upgrade", "--set", "kubeletPlugin.podAnnotations.turn=another")
    found: set[str] = set()

    def new_one_serves() -> bool:
        found.clear()
        found.update(sockets(release))
        return len(found - of(uid)) == len(of(uid))

    eventually(new_one_serves, "the new Pod serves")
    assert found > of(uid), "the old one serves until the new one is ready"
    is_served_by_one(release)
    assert uid_of(release) != uid
    assert release.published() == slices
