"""Shares of a GPU: what several Pods have together, and what is never given beside them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from dra_driver.simulator.node_file import alike
from tests.cluster import view
from tests.cluster.binaries import DEFAULT_VERSION
from tests.cluster.claims import claim, from_template, profile_class, template, use
from tests.cluster.driver import DRIVER, Driver, eventually
from tests.cluster.workload import Namespace, pod

_shares_are_counted = pytest.mark.gate("DRAConsumableCapacity", "DRAExtendedResource")

_HEAD: Final = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\nrules:\n"
_RENAMED: Final = _HEAD + "- {match: {index: [0]}, shares: {count: 4, rename: true}}\n"
_NOT_RENAMED: Final = _HEAD + "- shares: {count: 2}\n"
_DYNAMIC: Final = _HEAD + (
    "- shares: {count: 4, rename: true}\n- {match: {index: [1]}, partitioning: {mode: Dynamic}}\n"
)
_SHARE: Final = {"nvidia.com/gpu.shared": "1"}
_ALONE: Final = {"nvidia.com/gpu": "1"}
_FULL: Final = "cannot allocate all claims"
_LONG: Final = 3  # as nvidia-smi counts time-slices


@contextmanager
def sharing_on(installed: Driver) -> Iterator[Driver]:
    """Let the node have two GPUs, of which the first is shared."""
    made = Driver(installed.cluster, alike("h100-80gb", 2), _RENAMED)
    with made.in_place_of(installed):
        yield made


@pytest.fixture(scope="module")
def installed_sharing(installed: Driver) -> Iterator[Driver]:
    """Give the node two GPUs, of which the first is shared."""
    with sharing_on(installed) as made:
        yield made


@pytest.fixture
def sharing(installed_sharing: Driver) -> Driver:
    """Give the driver with all published as it was at first."""
    installed_sharing.wait_settled()
    return installed_sharing


@_shares_are_counted
def test_four_unchanged_pods_share_a_gpu_and_who_wants_one_alone_gets_another(
    sharing: Driver,
) -> None:
    """Schedulers up to 1.34 give nothing more of a slice whose first device has no share left."""
    shares = [f"share-{number}" for number in range(4)]
    with sharing.namespace() as namespace:
        namespace.place(pod("alone", limits=_ALONE))
        namespace.place(*(pod(name, limits=_SHARE) for name in shares))
        namespace.apply(pod("fifth", limits=_SHARE), pod("waits", limits=_ALONE))
        for name in ("fifth", "waits"):
            assert _FULL in namespace.wait_unschedulable(name)
        for name in shares:
            assert _sees(sharing, namespace, name) == ["gpu-0"]
        assert _sees(sharing, namespace, "alone") == ["gpu-1"]

        namespace.delete_pod(shares[0])
        assert _sees(sharing, namespace, "fifth") == ["gpu-0"]
        namespace.delete_pod(shares[1])  # so there is room on the shared one
        namespace.place(pod("marker", limits=_SHARE))
        assert _FULL in namespace.wait_unschedulable("waits")
        namespace.delete_pod("marker")
        namespace.delete_pod("alone")
        assert _sees(sharing, namespace, "waits") == ["gpu-1"]


def test_without_rename_pods_that_ask_for_a_gpu_share_it(sharing: Driver) -> None:
    names = [f"pod-{number}" for number in range(4)]
    with sharing.configured(_NOT_RENAMED), sharing.namespace() as namespace:
        _wait_shared(sharing, {"gpu-0": "gpu", "gpu-1": "gpu"})
        namespace.place(*(pod(name, limits=_ALONE) for name in names))
        namespace.apply(pod("fifth", limits=_ALONE))
        assert _FULL in namespace.wait_unschedulable("fifth")
        found = Counter(gpu for name in names for gpu in _sees(sharing, namespace, name))
        assert found == {"gpu-0": 2, "gpu-1": 2}
    _wait_shared(sharing, {"gpu-0": "gpu.shared"})


@_shares_are_counted
def test_a_gpu_and_its_partitions_are_not_given_at_once_whether_shared_or_not(
    sharing: Driver,
) -> None:
    """The newest scheduler counts both. For an older one nothing of such a GPU is shared."""
    both = sharing.cluster.settings.version == DEFAULT_VERSION
    part_class = profile_class("1g.10gb.shared" if both else "1g.10gb")
    whole = _SHARE if both else _ALONE
    shares = [f"share-{number}" for number in range(4)]
    with sharing.configured(_DYNAMIC), sharing.namespace() as namespace:
        eventually(lambda: len(sharing.device_names()) > 2, "partitions can be made")
        whole_ones = {f"gpu-{number}" for number in range(2 if both else 1)}
        parts = {name for name in sharing.device_names() if "-mig-" in name} if both else set()
        assert _shared(sharing).keys() == whole_ones | parts
        if not both:
            sharing.wait_node_event("DeviceNotShared", "1.36.2")
            # Counted once as a whole and once for all of its partitions.
            assert sharing.main.metric("gpu_dra_driver_left_out", reason="not-shared") == 2
        namespace.apply(template("part", part_class))
        namespace.place(pod("part", claims=from_template("part")))
        namespace.place(*(pod(name, limits=_SHARE) for name in shares))
        namespace.apply(pod("whole", limits=whole))
        assert _FULL in namespace.wait_unschedulable("whole")
        (part,) = _sees(sharing, namespace, "part")
        assert view.partitions(sharing.node) == [part]
        for name in shares:
            assert _sees(sharing, namespace, name) == ["gpu-0"]

        if both:
            namespace.place(pod("beside", claims=from_template("part")))
            assert _sees(sharing, namespace, "beside") == [part]
            assert view.partitions(sharing.node) == [part]
            namespace.delete_pod("beside")
            assert _FULL in namespace.wait_unschedulable("whole")
        namespace.delete_pod("part")
        assert _sees(sharing, namespace, "whole") == ["gpu-1"]
        namespace.apply(pod("late", claims=from_template("part")))
        assert _FULL in namespace.wait_unschedulable("late")
        assert view.partitions(sharing.node) == []
        namespace.delete_pod("whole")
        assert _sees(sharing, namespace, "late") == view.partitions(sharing.node)
    assert view.partitions(sharing.node) == []
    _wait_shared(sharing, {"gpu-0": "gpu.shared"})


@pytest.mark.no_gate("DRAConsumableCapacity")
def test_where_nobody_counts_shares_a_gpu_has_one_claim_and_that_is_told(sharing: Driver) -> None:
    assert _shared(sharing) == {}
    sharing.wait_node_event("DeviceNotShared", "switch on DRAConsumableCapacity")
    assert sharing.main.metric("gpu_dra_driver_left_out", reason="not-shared") == 1
    names = ("first", "second", "third")
    with sharing.namespace() as namespace:
        namespace.apply(*map(claim, names))
        namespace.place(*(pod(name, claims=use(name)) for name in names[:2]))
        namespace.apply(pod("third", claims=use("third")))
        assert _FULL in namespace.wait_unschedulable("third")
        found = [gpu for name in names[:2] for gpu in _sees(sharing, namespace, name)]
        assert sorted(found) == ["gpu-0", "gpu-1"]


@pytest.mark.every_release
def test_pods_of_one_claim_have_its_gpu_together_with_its_time_slice(sharing: Driver) -> None:
    with sharing.namespace() as namespace:
        namespace.apply(_with_time_slice(claim("shared")))
        namespace.place(*(pod(name, claims=use("shared")) for name in ("one", "two")))
        (gpu,), also = (_sees(sharing, namespace, name) for name in ("one", "two"))
        assert also == [gpu]
        found, _ = view.device(sharing.node, gpu)
        assert found["timeslice"] == _LONG
        namespace.delete_pod("one")
        assert sharing.node.gpu(found["index"])["timeslice"] == _LONG
        namespace.delete_pod("two")
        assert sharing.node.gpu(found["index"])["timeslice"] == 0


def _with_time_slice(made: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    }
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    devices = made["spec"]["devices"] | {"config": config}
    return {**made, "spec": {"devices": devices}}


def _shared(driver: Driver) -> dict[str, str]:
    """Resource names of the devices that several claims may have."""
    return {
        device["name"]: device["attributes"]["resourceName"]["string"]
        for device in driver.devices()
        if device.get("allowMultipleAllocations")
    }


def _wait_shared(driver: Driver, wanted: dict[str, str]) -> None:
    eventually(lambda: _shared(driver) == wanted, "what is shared is published")


def _sees(driver: Driver, namespace: Namespace, name: str) -> list[str]:
    """Wait until a Pod runs and look into it; gives its devices, which are all that it sees."""
    namespace.wait_pod(name, "Running")
    names = view.devices_of(namespace, name)
    assert view.seen(namespace, name) == view.expected(driver.node, names)
    return names
