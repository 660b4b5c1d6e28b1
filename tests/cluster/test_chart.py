"""The chart as Helm renders it, and the plain manifests that are made from it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Option
from click.testing import CliRunner

from dra_driver.cli.mps_agent import mps_agent
from dra_driver.cli.serve import serve
from dra_driver.cli.shipped import device_classes
from dra_driver.cli.webhook import webhook
from tests.chart.documents import CHART, MANIFESTS
from tests.chart.helm import (
    EVERYTHING,
    Helm,
    Manifest,
    containers,
    one,
    plain,
    setting,
)
from tests.cluster.cluster import Cluster

LABELS = {"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"}


def without_labels_of_helm(node: Any) -> Any:
    if isinstance(node, list):
        return [without_labels_of_helm(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: without_labels_of_helm(item) for key, item in node.items() if key not in LABELS}


def documents(name: str) -> dict[tuple[str, str], Manifest]:
    found = yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_helm_finds_nothing_to_complain_of(helm: Helm, values: tuple[str, ...]) -> None:
    told = helm.run("lint", str(CHART), "--strict", "--namespace", "n", *setting(*values))
    assert "0 chart(s) failed" in told


def test_the_plain_manifests_are_those_of_the_chart(helm: Helm) -> None:
    for path, text in plain(helm).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make chart`"


def test_the_plugin_is_rolled_over_without_a_gap_and_has_only_what_it_uses(helm: Helm) -> None:
    daemon_set = one(helm.objects(), "DaemonSet", "kubelet-plugin")["spec"]
    assert daemon_set["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    spec = daemon_set["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert spec["priorityClassName"] == "system-node-critical"
    (gpus,) = spec["containers"]
    assert not any("hostPort" in port for port in gpus["ports"])
    assert gpus["securityContext"]["readOnlyRootFilesystem"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= gpus.keys()
    assert {"POD_UID", "NODE_NAME"} == {each["name"] for each in gpus["env"] if "valueFrom" in each}
    assert {each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each} == {
        "/",
        "/dev",
        "/proc",
        "/sys",
        "/var/lib/gpu-dra-driver",
        "/var/lib/kubelet/plugins/gpu.nvidia.com",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/pod-resources",
        "/var/run/cdi",
    }


def test_the_agent_is_never_replaced_by_itself_and_has_no_token(helm: Helm) -> None:
    daemon_set = one(helm.objects(), "DaemonSet", "mps-agent")["spec"]
    assert daemon_set["updateStrategy"] == {"type": "OnDelete"}
    spec = daemon_set["template"]["spec"]
    assert spec["hostPID"] is True
    assert spec["automountServiceAccountToken"] is False
    (agent,) = spec["containers"]
    assert agent["securityContext"]["readOnlyRootFilesystem"]
    assert "limits" not in agent["resources"]
    propagation = {each["name"]: each.get("mountPropagation") for each in agent["volumeMounts"]}
    assert propagation == {"mps": "Bidirectional", "driver-root": "HostToContainer", "dev": None}


def test_each_part_has_an_account_of_its_own(helm: Helm) -> None:
    objects = helm.objects(*setting(*EVERYTHING))
    made = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert not any(each["automountServiceAccountToken"] for each in made), "Pods ask for it"
    accounts = {each["metadata"]["name"] for each in made}
    used = [
        each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in objects
        if each["kind"] in ("DaemonSet", "Deployment")
    ]
    assert len(used) == len(set(used)) == 3
    assert accounts == set(used)


def test_rights_are_those_of_the_plain_manifest(helm: Helm) -> None:
    rules = documents("rbac.yaml")["ClusterRole", "gpu-dra-driver-kubelet-plugin"]["rules"]
    assert one(helm.objects(), "ClusterRole", "kubelet-plugin")["rules"] == rules


def test_all_classes_are_made_and_as_they_are_shipped(helm: Helm) -> None:
    made = [each for each in helm.objects() if each["kind"] == "DeviceClass"]
    assert made == device_classes()
    without = helm.objects(*setting("deviceClasses.create=false"))
    assert not any(each["kind"] == "DeviceClass" for each in without)


@pytest.mark.parametrize("name", ["", "other"])
def test_the_policies_of_nodes_and_slices_are_about_the_account_of_the_plugin(
    helm: Helm, name: str
) -> None:
    values = (f"serviceAccount.name={name}", "kubeletPlugin.migConfigLabel=true")
    objects = helm.objects(*setting(*values), "--namespace", "elsewhere")
    binding = one(objects, "ClusterRoleBinding", "kubelet-plugin")
    spec = one(objects, "DaemonSet", "kubelet-plugin")["spec"]["template"]["spec"]
    account = spec["serviceAccountName"]
    assert account == f"{name or 'gpu-dra-driver'}-kubelet-plugin"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "elsewhere"}
    ]
    for policy in ("labels", "slices"):
        end = f"{policy}-of-the-own-node.gpu-dra-driver.dev"
        (condition,) = one(objects, "ValidatingAdmissionPolicy", end)["spec"]["matchConditions"]
        assert condition["expression"] == (
            f"request.userInfo.username == 'system:serviceaccount:elsewhere:{account}'"
        )


@pytest.mark.parametrize(
    ("mode", "manifest"),
    [("self-signed", "webhook.yaml"), ("cert-manager", "webhook-cert-manager.yaml")],
)
def test_the_webhook_is_that_of_the_plain_manifests(helm: Helm, mode: str, manifest: str) -> None:
    objects = helm.objects(*setting("webhook.enabled=true", f"webhook.tls.mode={mode}"))
    made = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    wanted = documents(manifest)
    for key, plain_one in wanted.items():
        found = without_labels_of_helm(made[key])
        found["metadata"].pop("labels")
        plain_one["metadata"].pop("labels", None)
        if key[0] == "Deployment":
            for deployment in (found, plain_one):
                (container,) = deployment["spec"]["template"]["spec"]["containers"]
                for part in ("image", "imagePullPolicy", "args"):
                    container.pop(part, None)
        assert found == plain_one, key
    assert {key for key in made if key[1].endswith("-webhook")} == set(wanted)


def test_every_flag_that_it_gives_is_one_of_the_program(helm: Helm) -> None:
    commands = {"gpus": serve, "mps-agent": mps_agent, "webhook": webhook}
    found = containers(helm.objects(*setting("webhook.enabled=true")))
    assert found.keys() == commands.keys()
    for name, container in found.items():
        program, *flags = container["args"]
        assert program == commands[name].name
        env = {"NODE_NAME": "n"} if name == "gpus" else {}
        assert CliRunner().invoke(commands[name], [*flags, "--help"], env=env).exit_code == 0
        options = (each for each in commands[name].params if isinstance(each, Option))
        known = {variable for each in options for variable in each.envvar or ()}
        assert {each["name"] for each in container.get("env", ())} <= known


def flags_of(objects: list[Manifest], container: str = "gpus") -> list[str]:
    found: list[str] = containers(objects)[container]["args"]
    return found


@pytest.fixture
def namespaced(cluster: Cluster) -> None:
    """Have the namespace of the plain manifests, which a dry run does not make."""
    cluster.kubectl("apply", f"--filename={MANIFESTS / 'rbac.yaml'}")


def would_take(cluster: Cluster, *paths: Path) -> list[str]:
    """Ask the API server for a dry run, in which it lets nothing pass that it does not know."""
    files = (f"--filename={path}" for path in paths)
    told = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", *files).splitlines()
    assert all(line.endswith("(server dry run)") for line in told)
    return told


def test_the_api_server_would_take_all_plain_manifests(cluster: Cluster, namespaced: None) -> None:
    managed = "webhook-cert-manager.yaml"  # needs the definitions of cert-manager
    paths = [path for path in sorted(MANIFESTS.glob("*.yaml")) if path.name != managed]
    told = would_take(cluster, *paths)
    assert any(line.startswith("daemonset.apps/gpu-dra-driver-mps-agent") for line in told)


def test_the_api_server_would_take_the_chart(
    cluster: Cluster, namespaced: None, helm: Helm, tmp_path: Path
) -> None:
    rendered = tmp_path / "rendered.yaml"
    known = [
        value for value in EVERYTHING if "Monitor" not in value
    ]  # else definitions are missing
    rendered.write_text(helm.template(*setting(*known)), encoding="utf-8")
    told = would_take(cluster, rendered)
    assert any(line.startswith("deployment.apps/gpu-dra-driver-webhook") for line in told)
