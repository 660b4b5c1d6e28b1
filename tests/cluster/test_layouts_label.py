"""A layout that a label of the Node names, with the rights and the policy that the chart gives."""

from collections.abc import Iterator
from typing import Final

import pytest

from dra_driver.claims.layout_label import CONFIG, STATE
from dra_driver.simulator.node_file import alike
from tests.chart.helm import Helm, one, setting
from tests.cluster.driver import CHECKOUT, Driver, Instance

_NODES: Final = "/api/v1/nodes"
_POLICY: Final = "labels-of-the-own-node.gpu-dra-driver.dev"
_MANIFEST: Final = CHECKOUT / "deploy/manifests/policies-nodes.yaml"


class Labelled(Driver):
    """A driver that looks at the label."""

    def instance(self, *arguments: str) -> Instance:
        return super().instance("--mig-config-label", *arguments)


@pytest.fixture
def labelled(installed: Driver, helm: Helm) -> Iterator[Driver]:
    """Let a label name the layout of another GPU, by the chart's switch."""
    cluster = installed.cluster
    path = f"{_NODES}/{cluster.node_name}"
    objects = helm.objects(*setting("kubeletPlugin.migConfigLabel=true"))
    policy = [each for each in objects if each["metadata"]["name"] == _POLICY]
    cluster.apply(one(objects, "ClusterRole", "kubelet-plugin"), *policy)
    cluster.api.patch(path, {"metadata": {"labels": {CONFIG: "all-3g.40gb"}}})
    try:
        with Labelled(cluster, alike("h100-80gb", 1)).in_place_of(installed) as made:
            yield made
    finally:
        cluster.api.patch(path, {"metadata": {"labels": {CONFIG: None, STATE: None}}})
        cluster.apply(CHECKOUT / "deploy/manifests/rbac.yaml")
        cluster.kubectl("delete", f"--filename={_MANIFEST}")


def test_the_plugin_tells_how_far_the_layout_is_that_a_label_names(labelled: Driver) -> None:
    path = f"{_NODES}/{labelled.cluster.node_name}"
    labelled.cluster.api.wait(
        path, lambda node: node["metadata"]["labels"].get(STATE) == "success", "told"
    )
    made = [each["profile"] for each in labelled.node.gpu(0)["instances"]]
    assert made == ["3g.40gb"] * 2
