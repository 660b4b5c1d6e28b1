"""Layouts: applied while nobody uses a GPU, and a change waits for who does."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dra_driver.simulator.node_file import alike
from tests.cluster import view
from tests.cluster.claims import claim, of_parent, profile_class, use
from tests.cluster.driver import CHECKOUT, Driver, eventually
from tests.cluster.workload import pod

_CONFIG: Final = (CHECKOUT / "examples/nodeconfigs/layout.yaml").read_text()
_BALANCED: Final = _CONFIG.replace("layout: one-big-four-small", "layout: all-balanced")
# Partitions of an H100 80GB by the example, and by mig-parted's own file for this model.
_EXAMPLES: Final = {"3g.40gb": 1, "1g.10gb": 4}
_EVENLY: Final = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}


@pytest.fixture(scope="module")
def installed_layout(installed: Driver) -> Iterator[Driver]:
    """Give the node two other GPUs, and the example's layout."""
    with Driver(installed.cluster, alike("h100-80gb", 2), _CONFIG).in_place_of(installed) as made:
        yield made


@pytest.fixture
def static(installed_layout: Driver) -> Driver:
    """Give the driver, with the layout applied and published."""
    _wait_published(installed_layout, 0, _EXAMPLES)
    _wait_published(installed_layout, 1, _EXAMPLES)
    return installed_layout


@pytest.mark.every_release
def test_a_change_waits_for_a_running_pod(static: Driver) -> None:
    used, idle = static.node.gpu(0), static.node.gpu(1)
    process = static.main.process.pid
    with static.namespace() as namespace:
        namespace.apply(
            claim("first", profile_class("1g.10gb"), of_parent(used["uuid"])),
            claim("late", profile_class("1g.10gb"), of_parent(used["uuid"])),
            claim("next", profile_class("2g.20gb"), of_parent(used["uuid"])),
        )
        namespace.run(pod("first", claims=use("first")))
        seen = view.seen(namespace, "first")
        with static.configured(_BALANCED):
            static.wait_node_event("LayoutWaiting", f"claim {namespace.name}/first")
            _wait_published(static, idle["index"], _EVENLY)
            for name in ("late", "next"):
                namespace.apply(pod(name, claims=use(name)))
                assert "cannot allocate all claims" in namespace.wait_unschedulable(name)
            assert _layout(static, used["index"]) == _EXAMPLES
            assert _is_held_back(static, used)
            assert view.seen(namespace, "first") == seen

            namespace.delete_pod("first")
            _wait_published(static, used["index"], _EVENLY)
            for name in ("late", "next"):
                namespace.wait_pod(name, "Running")
                names = view.devices_of(namespace, name)
                assert view.seen(namespace, name) == view.expected(static.node, names)
                namespace.delete_pod(name)
            assert static.main.process.pid == process


def _layout(driver: Driver, position: int) -> Mapping[str, int]:
    return Counter(instance["profile"] for instance in driver.node.gpu(position)["instances"])


def _wait_published(driver: Driver, position: int, layout: Mapping[str, int]) -> None:
    """Wait until a GPU is cut like this, and given out again."""
    minor = driver.node.gpu(position)["minor"]
    own = f"gpu-{minor}-"

    def published() -> bool:
        made = {name for name in view.partitions(driver.node) if name.startswith(own)}
        offered = {name for name in _free(driver) if name.startswith(f"gpu-{minor}")}
        return _layout(driver, position) == layout and offered == made

    eventually(published, f"gpu-{minor} has its layout")


def _is_held_back(driver: Driver, gpu: Mapping[str, Any]) -> bool:
    """Whether nobody new gets it: it has a taint, or is not published where taints are dropped."""
    named = f"gpu-{gpu['minor']}"
    shown = any(name.partition("-mig-")[0] == named for name in driver.device_names())
    is_free = any(name.partition("-mig-")[0] == named for name in _free(driver))
    return not is_free and shown == driver.cluster.settings.has("DRADeviceTaints")


def _free(driver: Driver) -> set[str]:
    """Names of the devices without taints."""
    return {device["name"] for device in driver.devices() if not device.get("taints")}
