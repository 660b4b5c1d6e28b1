"""The node loses power: whole GPUs come back by themselves, partitions when somebody makes them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import power, view
from tests.cluster.claims import MIG_CLASS, claim, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import Namespace, pod

pytestmark = pytest.mark.every_release


def test_claims_live_through_a_reboot(driver: Driver, gpu_namespace: Namespace) -> None:
    names = ("whole", "part", "leaves")
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS), claim("leaves", MIG_CLASS))
    for name in names:
        gpu_namespace.run(pod(name, claims=use(name), restartPolicy="Always"))
    seen = {name: view.seen(gpu_namespace, name) for name in names}
    devices = {name: view.devices_of(gpu_namespace, name) for name in names}
    with _rebooted(driver):
        eventually(lambda: not _partitions(driver), "no partition is published")
        gpu_namespace.wait_restarted("whole")
        assert view.seen(gpu_namespace, "whole") == seen["whole"]

        for name in ("part", "leaves"):
            told = gpu_namespace.wait_event(name, "FailedPrepareDynamicResources", "DeviceNotFound")
            assert f"partition {devices[name][0]} " in told["message"]
            assert "make it again at the same placement" in told["message"]
        gpu_namespace.delete_pod("leaves")
        uid = gpu_namespace.claim("leaves")["metadata"]["uid"]
        assert not [name for name in driver.leftovers() if uid in name]

        gpu_namespace.apply(claim("next"))
        gpu_namespace.run(pod("next", claims=use("next")))
        taken = view.devices_of(gpu_namespace, "next")
        assert view.seen(gpu_namespace, "next") == view.expected(driver.node, taken)
        assert {name.partition("-mig-")[0] for name in devices["part"]}.isdisjoint(taken)

    gpu_namespace.wait_restarted("part")
    assert view.seen(gpu_namespace, "part") == view.expected(driver.node, devices["part"])
    for name in ("whole", "part", "next"):
        gpu_namespace.delete_pod(name)
    assert driver.leftovers() == set()


@contextmanager
def _rebooted(driver: Driver) -> Iterator[None]:
    """Reboot the node and start the driver; in the end somebody makes the same partitions."""
    before = driver.node.show()["gpus"]
    published = driver.device_names()
    power.cut(driver.cluster)
    driver.main.process.kill()
    driver.node.reboot()
    try:
        assert driver.cdi_files() == []
        power.restore(driver.cluster)
        whole = {name for name in published if "mig" not in name}
        driver.main.start(ready=False)
        eventually(lambda: driver.device_names() >= whole, "slices are back after the reboot")
        driver.main.wait_ready()
        yield
    finally:
        for gpu in before:
            for number, instance in enumerate(gpu["instances"]):
                if not number:
                    driver.node.state.set_mig_mode(gpu["index"], on=True)
                driver.node.state.partition(gpu["index"], instance["profile"], instance["start"])
    eventually(lambda: driver.device_names() == published, "the partitions are published again")


def _partitions(driver: Driver) -> set[str]:
    return {name for name in driver.device_names() if "-mig-" in name}
