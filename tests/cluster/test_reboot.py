"""The node loses power: whole GPUs come back by themselves, partitions when somebody makes them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import power, view
from tests.cluster.claims import MIG_CLASS, by_uuid, claim, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import Namespace, pod

pytestmark = pytest.mark.every_release


def test_claims_live_through_a_reboot(driver: Driver, gpu_namespace: Namespace) -> None:
    names = ("whole", "part", "leaves")
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS), claim("leaves", MIG_CLASS))
    for name in names:
        gpu_namespace.run(pod(name, claims=use(name), restartPolicy="Always"))
    before = driver.device_names()
    seen = {name: view.seen(gpu_namespace, name) for name in names}
    devices = {name: view.devices_of(gpu_namespace, name) for name in names}
    with _rebooted(driver):
        offered = _whole(before) | (_parents(before) - _parents(set().union(*devices.values())))
        eventually(lambda: driver.device_names() == offered, "only what nobody holds is published")
        gpu_namespace.wait_restarted("whole")
        assert view.seen(gpu_namespace, "whole") == seen["whole"]

        for name in ("part", "leaves"):
            told = gpu_namespace.wait_event(name, "FailedPrepareDynamicResources", "DeviceNotFound")
            assert f"partition {devices[name][0]} " in told["message"]
            assert "make it again at the same placement" in told["message"]
        gpu_namespace.delete_pod("leaves")
        uid = gpu_namespace.claim("leaves")["metadata"]["uid"]
        assert not [name for name in driver.leftovers() if uid in name]

        offered = _whole(before) | (_parents(before) - _parents(devices["part"]))
        eventually(lambda: driver.device_names() == offered, "what was freed is published")

        free = driver.attributes()[min(_whole(before) - set(devices["whole"]))]
        gpu_namespace.apply(claim("next", selector=by_uuid(free["uuid"]["string"])))
        gpu_namespace.run(pod("next", claims=use("next")))
        assert view.seen(gpu_namespace, "next") == view.expected(
            driver.node, view.devices_of(gpu_namespace, "next")
        )

    gpu_namespace.wait_restarted("part")
    assert view.seen(gpu_namespace, "part") == view.expected(driver.node, devices["part"])
    for name in ("whole", "part", "next"):
        gpu_namespace.delete_pod(name)
    assert driver.leftovers() == set()


@contextmanager
def _rebooted(driver: Driver) -> Iterator[None]:
    """Reboot the node and start the driver; in the end somebody makes the same partitions."""
    before = driver.node.show()["gpus"]
    devices, slices = driver.device_names(), driver.published()
    power.cut(driver.cluster)
    driver.main.process.kill()
    driver.node.reboot()
    try:
        assert driver.cdi_files() == []
        power.restore(driver.cluster)
        driver.main.start(ready=False)
        driver.wait_published_anew(slices, _whole(devices), "slices are back after the reboot")
        driver.main.wait_ready()
        yield
    finally:
        for gpu in before:
            for number, instance in enumerate(gpu["instances"]):
                if not number:
                    driver.node.state.set_mig_mode(gpu["index"], on=True)
                driver.node.state.partition(gpu["index"], instance["profile"], instance["start"])
    eventually(lambda: driver.device_names() == devices, "the partitions are published again")


def _whole(names: Iterable[str]) -> set[str]:
    return {name for name in names if "-mig-" not in name}


def _parents(names: Iterable[str]) -> set[str]:
    """GPUs of the partitions among these devices."""
    return {name.partition("-mig-")[0] for name in names if "-mig-" in name}
