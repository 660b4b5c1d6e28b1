"""The webhook on a real API server: what it refuses, whom it lets alone, and its certificate."""

import itertools
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cluster import linux
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.driver import CHECKOUT, DRIVER, eventually
from tests.cluster.process import HostProcess
from tests.cluster.workload import Namespace

pytestmark = pytest.mark.every_cluster

_MANIFEST: Final = CHECKOUT / "deploy/manifests/webhook.yaml"
_PROGRAM: Final = Path(sys.executable).with_name("dra-driver")
_NAMESPACE: Final = "gpu-dra-driver"
_NAME: Final = "gpu-dra-driver-webhook"
_ADDRESS: Final = "10.96.77.1"  # of the Service; the node has it itself, as there is no proxy
_HTTPS_PORT: Final = 8443  # the API server has 443 on every address here
_PORT: Final = 18079
_SECRET: Final = f"/api/v1/namespaces/{_NAMESPACE}/secrets/{_NAME}"
_WEBHOOKS: Final = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{_NAME}"
_DRA: Final = "/apis/resource.k8s.io"
_DENIED: Final = 'admission webhook \\"configs.gpu-dra-driver.dev\\" denied the request: '
_names = itertools.count()


class Installed:
    """The webhook beside the node, called by the API server through its Service."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        documents = yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))
        self.objects = {each["kind"]: each for each in documents}
        self.objects["Service"]["spec"]["clusterIP"] = _ADDRESS
        (https,) = self.objects["Service"]["spec"]["ports"]
        https["port"] = _HTTPS_PORT
        (hook,) = self.objects["ValidatingWebhookConfiguration"]["webhooks"]
        hook["clientConfig"]["service"]["port"] = _HTTPS_PORT
        self._kubeconfig = Path()
        self._process: HostProcess | None = None

    def install(self) -> None:
        """Apply the manifest but for its Deployment, whose program runs here."""
        linux.add_loopback_address(_ADDRESS, "hook")
        self.cluster.apply(CHECKOUT / "deploy/manifests/rbac.yaml")
        self.cluster.apply(*(each for kind, each in self.objects.items() if kind != "Deployment"))
        self._kubeconfig = self.cluster.service_account(_NAMESPACE, _NAME)

    def start(self, *flags: str) -> HostProcess:
        """Start an instance; returns when it is ready."""
        process = self.cluster.host_process(
            f"webhook-{next(_names)}",
            [
                _PROGRAM,
                *("webhook", "--self-signed", f"--kubeconfig={self._kubeconfig}"),
                *(
                    f"--https-endpoint={_ADDRESS}:{_HTTPS_PORT}",
                    f"--http-endpoint=127.0.0.1:{_PORT}",
                ),
                *flags,
            ],
        )
        process.start()

        def ready() -> bool:
            process.check()
            return self.page("/readyz") == "ok\n"

        eventually(ready, "the webhook is ready")
        self._process = process
        return process

    def stop(self) -> None:
        """Stop the instance that was started last."""
        if self._process is not None and self._process.running:
            assert self._process.stop() == 0

    def remove(self) -> None:
        """Let the API server ask nobody any more."""
        self.api.delete(_WEBHOOKS)
        self.stop()

    def page(self, path: str) -> str:
        """Ask it over HTTP; empty when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}{path}", timeout=30) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            return ""

    @contextmanager
    def without_configuration(self) -> Iterator[None]:
        """Let the API server not know of the webhook for a while."""
        self.api.delete(_WEBHOOKS)
        try:
            yield
        finally:
            self.cluster.apply(self.objects["ValidatingWebhookConfiguration"])


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Installed]:
    made = Installed(cluster)
    made.install()
    made.start()
    yield made
    made.remove()


class Paths:
    """Collections in a version of the API."""

    def __init__(self, namespace: Namespace, version: str = "v1") -> None:
        here = f"{_DRA}/{version}/namespaces/{namespace.name}"
        self.claims = f"{here}/resourceclaims"
        self.templates = f"{here}/resourceclaimtemplates"
        self.classes = f"{_DRA}/{version}/deviceclasses"


@pytest.fixture
def paths(webhook: Installed, namespace: Namespace) -> Paths:
    """Give the collections of the newest version."""
    return Paths(namespace)


def config(strategy: str = "TimeSlicing", kind: str = "GpuConfig", **more: Any) -> Object:
    sharing = {"strategy": strategy, **more}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}


def entry(parameters: Object, *requests: str, driver: str = DRIVER) -> Object:
    opaque = {"driver": driver, "parameters": parameters}
    return {"opaque": opaque, "requests": list(requests)} if requests else {"opaque": opaque}


def claim(*entries: Object, version: str = "v1", device_class: str = "gpu.nvidia.com") -> Object:
    wish = {"deviceClassName": device_class}
    request = wish if version == "v1beta1" else {"exactly": wish}
    devices = {"requests": [{"name": "main", **request}], "config": list(entries)}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{next(_names)}"},
        "spec": {"devices": devices},
    }


def as_template(made: Object) -> Object:
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def device_class(*entries: Object, version: str = "v1") -> Object:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceClass",
        "metadata": {"name": f"class-{next(_names)}.example.com"},
        "spec": {"config": list(entries)},
    }


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    assert caught.value.status == 422
    return caught.value.body


WRONG: Final = config("Both")
SERVED: Final = ("v1", "v1beta2", "v1beta1")


def served(webhook: Installed) -> list[str]:
    group = webhook.api.get(_DRA)
    found = [version["version"] for version in group["versions"]]
    print(f"the API server serves {', '.join(found)}")
    return [version for version in SERVED if version in found]


def test_wrong_configs_are_refused_in_every_version(
    webhook: Installed, namespace: Namespace
) -> None:
    for version in served(webhook):
        paths = Paths(namespace, version)
        bad = claim(entry(WRONG, "main"), entry(config(interval="Long")), version=version)
        body = refusal(lambda: webhook.api.create(paths.claims, bad))  # noqa: B023
        place = "spec.devices.config"
        assert _DENIED + f"[{place}[0].opaque.parameters.sharing.strategy: unknown GPU" in body
        assert f'"field":"{place}[1].opaque.parameters.sharing.interval"' in body
        body = refusal(lambda: webhook.api.create(paths.templates, as_template(bad)))  # noqa: B023
        assert f"spec.{place}[0].opaque.parameters.sharing.strategy" in body
        bad_class = device_class(entry(WRONG), version=version)
        body = refusal(lambda: webhook.api.create(paths.classes, bad_class))  # noqa: B023
        assert _DENIED + "spec.config[0].opaque.parameters.sharing.strategy: unknown GPU" in body


def test_right_ones_and_those_of_others_are_stored(webhook: Installed, paths: Paths) -> None:
    for made in (
        claim(),
        claim(entry(config(), "main")),
        claim(entry(config("MPS", mpsConfig={"defaultActiveThreadPercentage": 50}))),
        claim(entry({"what": "ever"}, driver="other.example.com")),
        claim(entry(config("MPS", kind="MigDeviceConfig"), "main"), device_class="other"),
    ):
        assert webhook.api.warned(paths.claims, made) == []
        assert webhook.api.warned(paths.templates, as_template(made)) == []


def test_what_comes_to_nothing_is_warned_of(webhook: Installed, paths: Paths) -> None:
    made = claim(entry(config()), device_class="mig.nvidia.com")
    (warning,) = webhook.api.warned(paths.claims, made)
    assert "spec.devices.config[0]: GpuConfig has no effect on partitions" in warning
    named = claim(entry(config(), "main"), device_class="mig.nvidia.com")
    body = refusal(lambda: webhook.api.create(paths.claims, named))
    assert "opaque.parameters.kind: cannot apply GpuConfig to request main of class mig" in body


def test_kubectl_shows_each_field_on_a_line(webhook: Installed, namespace: Namespace) -> None:
    bad = claim(entry(WRONG), entry(config(interval="Long")))
    with pytest.raises(Exception, match="is invalid") as caught:
        namespace.apply(bad)
    print(caught.value)
    lines = str(caught.value).splitlines()
    assert any("spec.devices.config[0].opaque.parameters.sharing.strategy: " in x for x in lines)
    assert any("spec.devices.config[1].opaque.parameters.sharing.interval: " in x for x in lines)


def test_while_it_is_away_only_objects_with_our_configs_wait(
    webhook: Installed, paths: Paths
) -> None:
    webhook.stop()
    path = paths.claims
    try:
        webhook.api.create(path, claim())
        webhook.api.create(path, claim(entry({"x": 1}, driver="other.example.com")))
        webhook.api.create(paths.classes, device_class())
        with pytest.raises(ApiError, match="failed calling webhook") as caught:
            webhook.api.create(path, claim(entry(config())))
        assert caught.value.status == 500
    finally:
        before = webhook.api.get(_SECRET)["data"]
        webhook.start()
    assert webhook.api.get(_SECRET)["data"] == before
    webhook.api.create(path, claim(entry(config())))


def test_what_was_stored_before_can_be_changed_and_deleted(
    webhook: Installed, namespace: Namespace, paths: Paths
) -> None:
    path, classes = paths.claims, paths.classes
    with webhook.without_configuration():
        old = claim(entry(WRONG))
        old["metadata"]["finalizers"] = ["example.com/wait"]
        old_class = device_class(entry(WRONG))

        def is_stored() -> bool:
            try:
                webhook.api.create(classes, old_class)
            except ApiError:
                return False
            return True

        eventually(is_stored, "the API server has forgotten the webhook")
        namespace.apply(old)

    def is_refused() -> bool:
        try:
            webhook.api.create(f"{path}?dryRun=All", claim(entry(WRONG)))
        except ApiError as error:
            return error.status == 422
        return False

    eventually(is_refused, "the webhook is asked again")
    one, its_class = (
        f"{path}/{old['metadata']['name']}",
        f"{classes}/{old_class['metadata']['name']}",
    )
    webhook.api.patch(one, {"metadata": {"labels": {"a": "b"}}})
    webhook.api.delete(one)
    webhook.api.patch(one, {"metadata": {"finalizers": None}})
    webhook.api.wait_gone(one)
    webhook.api.patch(its_class, {"metadata": {"labels": {"a": "b"}}})
    body = refusal(
        lambda: webhook.api.patch(its_class, {"spec": {"config": [entry(WRONG), entry(WRONG)]}})
    )
    assert "spec.config[1].opaque.parameters.sharing.strategy" in body
    webhook.api.patch(its_class, {"spec": {"config": [entry(config())]}})
    webhook.api.delete(its_class)


def test_no_answer_is_lost_while_certificates_change(webhook: Installed, paths: Paths) -> None:
    webhook.stop()
    secret = webhook.api.get(_SECRET)
    webhook.api.patch(_SECRET, {"data": dict.fromkeys(secret["data"], None)})
    seen: set[str] = set()
    path = f"{paths.claims}?dryRun=All"
    webhook.start("--self-signed-lifetime=20s")
    try:
        began, asked = time.monotonic(), 0
        while len(seen) < 3:
            assert time.monotonic() - began < 200, "two changes take less than half a minute"
            refusal(lambda: webhook.api.create(path, claim(entry(WRONG))))
            asked += 1
            seen.add(webhook.api.get(_SECRET)["data"]["tls.crt"])
        print(f"{asked} claims refused in {time.monotonic() - began:.0f} s, with 3 certificates")
    finally:
        webhook.stop()
        webhook.api.patch(_SECRET, {"data": dict.fromkeys(secret["data"], None)})
        webhook.start()
    refusal(lambda: webhook.api.create(path, claim(entry(WRONG))))
