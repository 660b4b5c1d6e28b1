"""The manifests give the webhook what it uses and no more, and agree with each other."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_driver.admission.webhook import PATH, WebhookSettings
from dra_driver.cli.webhook import webhook
from dra_driver.config import DEFAULT_DRIVER_NAME
from dra_driver.kube.webhook import WebhookClient, with_ca_bundle, with_secret_data
from dra_driver.simulator.api_server import ApiServer

FOLDER = Path(__file__).parents[3] / "deploy/manifests"
SETTINGS = WebhookSettings(self_signed=True)


def objects(name: str) -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    return {each["kind"]: each for each in documents}


OURS, MANAGED = objects("webhook.yaml"), objects("webhook-cert-manager.yaml")
BOTH = pytest.mark.parametrize("found", [OURS, MANAGED], ids=["self-made", "cert-manager"])


def test_the_rights_are_exactly_those_that_are_used(tmp_path: Path) -> None:
    with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        settings = WebhookSettings(self_signed=True, kubeconfig=kubeconfig)
        metadata = {"name": SETTINGS.name, "namespace": SETTINGS.namespace}
        server.objects.create("secrets", {"metadata": metadata})
        hooks = OURS["ValidatingWebhookConfiguration"]
        server.objects.create("validatingwebhookconfigurations", hooks)
        client = WebhookClient(settings, settings.namespace, settings.name)
        client.replace_secret(with_secret_data(client.read_secret(), {"a": b"b"}))
        client.replace_webhooks(with_ca_bundle(client.read_webhooks(), b"c"))
        client.close()
        used = {(entry.verb, entry.resource) for entry in server.requests.all()}
    methods = {name for name in vars(WebhookClient) if not name.startswith("_")}
    reads, writes = {"read_secret", "read_webhooks"}, {"replace_secret", "replace_webhooks"}
    assert methods == {"close"} | reads | writes
    granted = set()
    for kind in ("Role", "ClusterRole"):
        (rule,) = OURS[kind]["rules"]
        assert rule["resourceNames"] == [SETTINGS.name]
        granted |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    assert granted == used


def test_with_cert_manager_it_has_no_rights_and_no_token() -> None:
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & MANAGED.keys()
    for kind in ("ServiceAccount", "Deployment"):
        spec = MANAGED[kind]
        pod = spec["spec"]["template"]["spec"] if kind == "Deployment" else spec
        assert pod["automountServiceAccountToken"] is False


@BOTH
def test_names_are_those_that_the_program_expects(found: dict[str, dict[str, Any]]) -> None:
    namespaced = set(found) - {
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingWebhookConfiguration",
    }
    for kind, each in found.items():
        assert each["metadata"]["name"] == SETTINGS.name
        if kind in namespaced:
            assert each["metadata"]["namespace"] == SETTINGS.namespace
    (hook,) = found["ValidatingWebhookConfiguration"]["webhooks"]
    service = {"name": SETTINGS.name, "namespace": SETTINGS.namespace, "path": PATH}
    assert hook["clientConfig"] == {"service": service}
    (condition,) = hook["matchConditions"]
    assert f"== '{DEFAULT_DRIVER_NAME}'" in condition["expression"]


def test_cert_manager_makes_what_the_program_reads() -> None:
    certificate = MANAGED["Certificate"]["spec"]
    assert tuple(certificate["dnsNames"]) == SETTINGS.dns_names
    pod = MANAGED["Deployment"]["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == certificate["secretName"]
    annotations = MANAGED["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    name = f"{SETTINGS.namespace}/{SETTINGS.name}"
    assert annotations == {"cert-manager.io/inject-ca-from": name}


@BOTH
def test_the_flags_exist_and_the_ports_agree(found: dict[str, dict[str, Any]]) -> None:
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    command, *flags = container["args"]
    assert command == "webhook"
    known = CliRunner().invoke(webhook, ["--help"]).output
    assert all(flag.partition("=")[0] in known for flag in flags)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f":{ports['https']}" == SETTINGS.https_endpoint
    assert f"--http-endpoint=:{ports['http']}" in flags
    assert found["Service"]["spec"]["ports"] == [
        {"name": "https", "port": 443, "targetPort": "https"}
    ]


@BOTH
def test_labels_select_the_pods(found: dict[str, dict[str, Any]]) -> None:
    deployment = found["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_the_two_differ_in_the_certificate_only() -> None:
    ours, managed = deepcopy(OURS), deepcopy(MANAGED)
    for kind in ("Secret", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        del ours[kind]
    for kind in ("Issuer", "Certificate"):
        del managed[kind]
    del managed["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    pods = [each["Deployment"]["spec"]["template"]["spec"] for each in (ours, managed)]
    for pod in pods:
        (container,) = pod["containers"]
        for key in ("args", "volumeMounts"):
            container.pop(key, None)
        pod.pop("volumes", None)
        pod["securityContext"].pop("fsGroup", None)
        del pod["automountServiceAccountToken"]
    assert ours == managed
