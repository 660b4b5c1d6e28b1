"""`failRequestsGreaterThanOne` on a real API server: Pods, workloads, claims that want too much."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import CHECKOUT, eventually
from tests.cluster.workload import Namespace, deployment, pod

pytestmark = pytest.mark.every_cluster

_MANIFEST: Final = CHECKOUT / "deploy/manifests/policies-one-share.yaml"
_API: Final = "/apis/admissionregistration.k8s.io/v1"
_SHARED: Final = "nvidia.com/gpu.shared"
_SHARED_CLASS: Final = "gpu.shared.gpu.nvidia.com"
_names = itertools.count()


def asking(limits: Mapping[str, str], init: Mapping[str, str] | None = None) -> Object:
    """A Pod whose container, and init container if it has one, ask for extended resources."""
    made = pod(f"pod-{next(_names)}", limits=limits)
    (main,) = made["spec"]["containers"]
    if init is not None:
        first = {**main, "name": "first", "resources": {"limits": dict(init)}}
        made["spec"]["initContainers"] = [first]
    return made


def claim(*requests: Object, **annotations: str) -> Object:
    metadata = {"name": f"claim-{next(_names)}", "annotations": annotations}
    named = [{"name": f"r{number}", **each} for number, each in enumerate(requests)]
    spec = {"devices": {"requests": named}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": spec,
    }


def wish(device_class: str = _SHARED_CLASS, **fields: Any) -> Object:
    return {"deviceClassName": device_class, **fields}


class Space:
    """A namespace in which nothing is stored."""

    def __init__(self, namespace: Namespace) -> None:
        self.api = namespace.cluster.api
        self._name = namespace.name

    def post(self, made: Object) -> list[str]:
        """Ask the API server to store an object; gives its warnings."""
        group, plural = {
            "Pod": ("/api/v1", "pods"),
            "ReplicationController": ("/api/v1", "replicationcontrollers"),
            "Job": ("/apis/batch/v1", "jobs"),
            "CronJob": ("/apis/batch/v1", "cronjobs"),
            "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims"),
            "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
        }.get(made["kind"], ("/apis/apps/v1", f"{made['kind'].lower()}s"))
        path = f"{group}/namespaces/{self._name}/{plural}?dryRun=All"
        return self.api.warned(path, made)

    def refusal(self, made: Object) -> str:
        with pytest.raises(ApiError) as caught:
            self.post(made)
        assert caught.value.status == 422
        return caught.value.body

    def refuses(self, made: Object) -> Callable[[], bool]:
        def refused() -> bool:
            try:
                self.post(made)
            except ApiError:
                return True
            return False

        return refused


@pytest.fixture(scope="module")
def policies(cluster: Cluster) -> Iterator[None]:
    cluster.apply(_MANIFEST)
    yield
    cluster.kubectl("delete", f"--filename={_MANIFEST}")


@pytest.fixture
def space(policies: None, namespace: Namespace) -> Space:
    """Give a namespace in which both policies count already."""
    made = Space(namespace)
    eventually(made.refuses(asking({_SHARED: "2"})), "Pods are judged")
    eventually(made.refuses(claim({"exactly": wish(count=2)})), "claims are judged")
    return made


def test_a_container_gets_one_share_of_each_kind(space: Space) -> None:
    assert space.post(asking({_SHARED: "1"})) == []
    assert space.post(asking({_SHARED: "1", "nvidia.com/mig-1g.5gb.shared": "1"})) == []
    assert space.post(asking({_SHARED: "1"}, init={_SHARED: "1"})) == []
    assert space.post(asking({"nvidia.com/gpu": "2", "example.com/x.shared": "2"})) == []
    assert space.post(asking({})) == []
    said = "more than one share of a GPU is asked for by container "
    for resource in (
        _SHARED,
        "nvidia.com/mig-1g.10gb.me.shared",
        f"deviceclass.resource.kubernetes.io/{_SHARED_CLASS}",
    ):
        assert said + "main; allowed: 1 of each" in space.refusal(asking({resource: "2"}))
    assert said + "first;" in space.refusal(asking({}, init={_SHARED: "3"}))
    both = asking({_SHARED: "1k"}, init={_SHARED: "2"})
    assert said + "main, first;" in space.refusal(both)


def test_authors_of_workloads_are_warned(space: Space) -> None:
    greedy, modest = asking({_SHARED: "2"}), asking({_SHARED: "1"})
    for made in (greedy, modest):
        for workload in workloads(made):
            warnings = space.post(workload)
            if made is modest:
                assert warnings == [], workload["kind"]
            else:
                (warning,) = warnings
                assert "is asked for by container main; allowed: 1" in warning, workload["kind"]


def workloads(made: Object) -> Iterator[Object]:
    replicated = deployment(made, 1)
    spec = {key: replicated["spec"][key] for key in ("selector", "template")}
    yield replicated
    for kind in ("DaemonSet", "ReplicaSet"):
        yield {**replicated, "kind": kind, "spec": spec}
    yield {**replicated, "kind": "StatefulSet", "spec": {**spec, "serviceName": "x"}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": made["spec"]}
    always = {**template, "spec": {**made["spec"], "restartPolicy": "Always"}}
    named = {"metadata": {"name": f"w-{next(_names)}"}}
    yield {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        **named,
        "spec": {"selector": {"app": "x"}, "template": always},
    }
    job = {"template": template}
    yield {"apiVersion": "batch/v1", "kind": "Job", **named, "spec": job}
    cron = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}
    yield {"apiVersion": "batch/v1", "kind": "CronJob", **named, "spec": cron}


def test_a_request_of_a_claim_gets_one_share(space: Space) -> None:
    one, two = {"exactly": wish()}, {"exactly": wish(count=2)}
    plain = {"exactly": wish("gpu.nvidia.com", count=2)}
    every = {"exactly": wish(allocationMode="All")}
    assert space.post(claim(one, one, plain, every)) == []
    said = "more than one share of a GPU is asked for by request "
    assert said + "r1;" in space.refusal(claim(one, two))
    template = {
        **claim(two),
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": claim(two)["spec"]},
    }
    assert said + "r0;" in space.refusal(template)
    first = {"firstAvailable": [wish("gpu.nvidia.com", name="a"), wish(name="b", count=2)]}
    assert said + "r1;" in space.refusal(claim(plain, first))
    profile = {"exactly": wish("mig-1g.10gb.shared.gpu.nvidia.com", count=2)}
    assert said + "r0, r1;" in space.refusal(claim(profile, two))


@pytest.mark.gate("DRAConsumableCapacity")
def test_more_of_the_capacity_of_shares_is_more_than_one_share(space: Space) -> None:
    for name in ("shares", "gpu.nvidia.com/shares"):
        for amount in ("1", "2"):
            made = claim({"exactly": wish(capacity={"requests": {name: amount}})})
            if amount == "1":
                assert space.post(made) == []
            else:
                assert "asked for by request r0;" in space.refusal(made)
    memory = {"exactly": wish(capacity={"requests": {"memory": "10Gi"}})}
    assert space.post(claim(memory)) == []


def test_claims_of_the_scheduler_are_left_alone(space: Space) -> None:
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert space.post(claim({"exactly": wish(count=2)}, **mark)) == []


def test_the_api_server_finds_nothing_wrong_in_the_expressions(
    policies: None, cluster: Cluster
) -> None:
    path = f"{_API}/validatingadmissionpolicies"
    ours = [
        item["metadata"]["name"]
        for item in cluster.api.get(path)["items"]
        if item["metadata"]["name"].startswith("one-share-")
    ]
    assert len(ours) == 2
    for name in ours:
        checked = cluster.api.wait(
            f"{path}/{name}", lambda found: "typeChecking" in found.get("status", {}), "checked"
        )
        assert checked["status"]["typeChecking"] == {}
