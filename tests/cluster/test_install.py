"""Helm installs the driver with default values, and it runs as Pods."""

import pytest

from tests.cluster import view
from tests.cluster.claims import claim, use
from tests.cluster.release import AGENT, PLUGIN, Release
from tests.cluster.workload import pod

pytestmark = pytest.mark.every_cluster


def test_both_daemonsets_run_and_a_pod_has_its_gpu(release: Release) -> None:
    with release.namespace() as namespace:
        namespace.apply(claim("one"))
        namespace.run(pod("one", claims=use("one")))
        names = view.devices_of(namespace, "one")
        assert view.seen(namespace, "one") == view.expected(release.node, names)
    # Not now: other tests may have had them killed.
    assert release.restarts_at_first == {PLUGIN: 0, AGENT: 0}
    for part in (PLUGIN, AGENT):
        (status,) = release.pods(part)[0]["status"]["containerStatuses"]
        assert status["image"].endswith("gpu-dra-driver:0.1.0")
