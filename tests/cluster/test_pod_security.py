"""The chart's Pods where the API server enforces Pod Security, and whose token each is given."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.chart.helm import Helm, setting
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.workload import Namespace

_WEBHOOK: Final = "webhook"
_PARTS: Final = {"kubelet-plugin", "mps-agent", _WEBHOOK}
_MODES: Final = {
    "self-signed": (),
    "cert-manager": (),
    "secret": ("webhook.tls.secretName=own", "webhook.tls.caBundle=YQ=="),
}


class Rendered:
    """A namespace in which Pods of a rendered chart could be made."""

    def __init__(self, namespace: Namespace, helm: Helm, mode: str) -> None:
        values = ("webhook.enabled=true", f"webhook.tls.mode={mode}", *_MODES[mode])
        objects = helm.objects(*setting(*values), "--namespace", namespace.name)
        self._api = namespace.cluster.api
        self._path = f"/api/v1/namespaces/{namespace.name}/pods?dryRun=All"
        self.pods: dict[str, Object] = {
            each["metadata"]["labels"]["app.kubernetes.io/component"]: _pod(each)
            for each in objects
            if each["kind"] in ("DaemonSet", "Deployment")
        }
        namespace.cluster.apply(*(each for each in objects if each["kind"] == "ServiceAccount"))

    def create(self, part: str, **changed: Any) -> Object:
        """Ask the API server for a dry run; gives the Pod as it would be stored."""
        pod = self.pods[part]
        return self._api.create(self._path, {**pod, "spec": {**pod["spec"], **changed}})


def _pod(workload: Object) -> Object:
    spec = workload["spec"]["template"]["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}, "spec": spec}


@contextmanager
def enforced(cluster: Cluster, level: str) -> Iterator[Namespace]:
    """Make a namespace in which this level of Pod Security is enforced."""
    made = Namespace(cluster, f"{level}-{secrets.token_hex(4)}")
    made.create({"pod-security.kubernetes.io/enforce": level})
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("mode", _MODES)
def test_all_but_the_webhook_needs_a_privileged_namespace(
    cluster: Cluster, helm: Helm, mode: str
) -> None:
    with enforced(cluster, "restricted") as namespace:
        rendered = Rendered(namespace, helm, mode)
        assert rendered.pods.keys() == _PARTS
        rendered.create(_WEBHOOK)
        with pytest.raises(ApiError, match="violates PodSecurity"):
            rendered.create(_WEBHOOK, securityContext={})
        for part in _PARTS - {_WEBHOOK}:
            with pytest.raises(ApiError, match="violates PodSecurity") as refused:
                rendered.create(part)
            assert "privileged (container" in refused.value.body, part


@pytest.mark.parametrize("mode", _MODES)
def test_only_who_asks_the_api_server_is_given_a_token(
    cluster: Cluster, helm: Helm, mode: str
) -> None:
    with enforced(cluster, "privileged") as namespace:
        rendered = Rendered(namespace, helm, mode)
        pods = {part: rendered.create(part)["spec"] for part in _PARTS}
    accounts = {part: pod["serviceAccountName"] for part, pod in pods.items()}
    assert accounts == {part: f"gpu-dra-driver-{part}" for part in _PARTS}
    with_token = {part for part, pod in pods.items() if _tokens(pod)}
    assert with_token == {"kubelet-plugin"} | ({_WEBHOOK} if mode == "self-signed" else set())


def _tokens(pod: Object) -> list[str]:
    """Names of the volumes through which a Pod gets a token of its account."""
    return [
        volume["name"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
