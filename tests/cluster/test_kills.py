"""The driver is killed at any step of Prepare and Unprepare; what the kubelet asks again works."""

import signal

import pytest

from tests.cluster import view
from tests.cluster.claims import MIG_CLASS, claim, use
from tests.cluster.driver import LONGEST_WAIT, Driver
from tests.cluster.workload import Namespace, pod

_REMOVAL_SECONDS = 180.0  # the kubelet calls a driver again after 10 to 60 seconds
_EVERYWHERE = pytest.mark.every_release


@pytest.mark.parametrize(
    "place",
    [
        "before-prepare:reserve",
        "prepare:reserve/before-rename",
        pytest.param("after-prepare:reserve", marks=_EVERYWHERE),
        "after-prepare:cdi",
        # The second claim of the Pod: the first is prepared.
        "after-prepare:reserve#2",
        pytest.param("after-prepare:cdi#2", marks=_EVERYWHERE),
        "after-prepare:commit#2",
    ],
)
def test_killed_in_prepare(driver: Driver, gpu_namespace: Namespace, place: str) -> None:
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS))
    driver.arm(place)
    gpu_namespace.apply(pod("user", claims=use("whole", "part")))
    driver.restart_when_killed()
    gpu_namespace.wait_pod("user", "Running")
    names = view.devices_of(gpu_namespace, "user")
    assert len(names) == 2
    assert view.seen(gpu_namespace, "user") == view.expected(driver.node, names)
    gpu_namespace.delete_pod("user")
    assert driver.leftovers() == set()


@pytest.mark.parametrize(
    "place",
    [
        "before-unprepare:cdi",
        pytest.param("after-unprepare:cdi", marks=_EVERYWHERE),
        "after-unprepare:forget",
    ],
)
def test_killed_in_unprepare(driver: Driver, gpu_namespace: Namespace, place: str) -> None:
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS))
    gpu_namespace.run(pod("user", claims=use("whole", "part")))
    driver.arm(place)
    path = f"/api/v1/namespaces/{gpu_namespace.name}/pods/user"
    driver.cluster.api.delete(path)
    driver.restart_when_killed()
    driver.cluster.api.wait_gone(path, _REMOVAL_SECONDS)
    assert driver.leftovers() == set()


@_EVERYWHERE
def test_a_pod_that_goes_while_the_driver_is_dead(driver: Driver, gpu_namespace: Namespace) -> None:
    """Deleted between a kill in Prepare and the driver's return: Unprepare undoes the half."""
    gpu_namespace.apply(claim("half"))
    driver.arm("after-prepare:cdi")
    gpu_namespace.apply(pod("user", claims=use("half")))
    assert driver.main.process.wait(LONGEST_WAIT) == -signal.SIGKILL
    assert driver.leftovers() != set()
    path = f"/api/v1/namespaces/{gpu_namespace.name}/pods/user"
    driver.cluster.api.delete(path)
    driver.main.start()
    driver.cluster.api.wait_gone(path, _REMOVAL_SECONDS)
    assert driver.leftovers() == set()
