"""`resource.k8s.io/v1` everywhere, and a node's token for its own slices (field report B31)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.chart.helm import NAME
from tests.cluster.access import API_ADDRESS
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.driver import DRIVER
from tests.cluster.release import PLUGIN, Release

pytestmark = pytest.mark.every_cluster

_GROUP: Final = "/apis/resource.k8s.io"
_TOKEN: Final = "var/run/secrets/kubernetes.io/serviceaccount/token"
_ELSEWHERE: Final = "another-node"


def slice_for(node: str) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    return {"metadata": {"name": f"b31-{node}"}, "spec": spec}


def paths(api: Api) -> list[str]:
    """Where slices can be written, in each version that is served."""
    served = (f"{_GROUP}/{each['version']}" for each in api.get(_GROUP)["versions"])
    return [
        f"{path}/resourceslices"
        for path in served
        if any(each["name"] == "resourceslices" for each in api.get(path)["resources"])
    ]


def refused(call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    assert caught.value.status == 403
    assert f"writes slices with spec.nodeName {_own(caught.value)} only" in caught.value.body


def _own(error: ApiError) -> str:
    return error.body.partition("the node plugin on ")[2].partition(" ")[0]


def test_b31_all_that_the_chart_makes_is_of_a_stable_version(release: Release) -> None:
    documents = yaml.safe_load_all(release.run_helm("get", "manifest", NAME))
    found = {each["apiVersion"] for each in documents if each}
    assert found == {
        "v1",
        "apps/v1",
        "admissionregistration.k8s.io/v1",
        "rbac.authorization.k8s.io/v1",
        "resource.k8s.io/v1",
    }


def test_b31_the_token_in_the_pod_writes_no_slice_of_another_node(release: Release) -> None:
    admin, node = release.cluster.api, release.cluster.node_name
    token = Path(f"/proc/{release.pid(PLUGIN)}/root/{_TOKEN}").read_text()
    plugin = Api(API_ADDRESS, release.cluster.authority, token)
    for path in paths(admin):
        print(path)
        plugin.create(f"{path}?dryRun=All", slice_for(node))  # the token is good for that
        refused(plugin.create, path, slice_for(_ELSEWHERE))
        made = admin.create(path, slice_for(_ELSEWHERE))
        one = f"{path}/{made['metadata']['name']}"
        try:
            refused(plugin.update, one, made)
            refused(plugin.delete, one)
        finally:
            admin.delete(one)
