"""Where the API server keeps no counters no partitions are made for claims, and that is said."""

import pytest

from tests.cluster import view
from tests.cluster.claims import claim, profile_class, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import pod


@pytest.mark.no_gate("DRAPartitionableDevices")
def test_no_partition_is_given_twice_where_nobody_counts(partitioning: Driver) -> None:
    node, small = partitioning.node, profile_class("1g.10gb")
    whole = {f"gpu-{gpu['minor']}" for gpu in node.show()["gpus"]}
    assert partitioning.device_names() == whole
    partitioning.wait_node_event("DeviceNotPublished", "DRAPartitionableDevices")
    assert partitioning.main.metric("gpu_dra_driver_left_out", reason="no-counters") == len(whole)
    with partitioning.namespace() as namespace:
        namespace.apply(*(claim(name, small) for name in ("first", "second")), claim("whole"))
        namespace.apply(pod("first", claims=use("first")))
        assert "cannot allocate all claims" in namespace.wait_unschedulable("first")
        namespace.run(pod("whole", claims=use("whole")))
        (held,) = view.devices_of(namespace, "whole")
        (gpu,) = (gpu for gpu in node.show()["gpus"] if f"gpu-{gpu['minor']}" != held)
        node.state.set_mig_mode(gpu["index"], on=True)
        instance = node.state.partition(gpu["index"], "1g.10gb", 0)
        namespace.wait_pod("first", "Running")
        (part,) = view.devices_of(namespace, "first")
        assert view.seen(namespace, "first") == view.expected(node, [part])
        namespace.apply(pod("second", claims=use("second")))
        assert "cannot allocate all claims" in namespace.wait_unschedulable("second")
        namespace.delete_pod("first")
        namespace.wait_pod("second", "Running")
        assert view.devices_of(namespace, "second") == [part]
    assert view.partitions(node) == [part]  # it is not ours
    node.state.unpartition(gpu["index"], instance)
    node.state.set_mig_mode(gpu["index"], on=False)
    eventually(lambda: partitioning.device_names() == whole, "the GPU is whole again")
