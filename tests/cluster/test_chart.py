"""The chart as Helm renders it, and the plain manifests that are made from it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_driver.cli.mps_agent import mps_agent
from dra_driver.cli.serve import serve
from dra_driver.cli.shipped import device_classes
from dra_driver.cli.webhook import webhook
from tests.chart.documents import CHART, MANIFESTS
from tests.chart.helm import Helm, HelmRefused, Manifest, plain
from tests.cluster.cluster import Cluster
from tests.cluster.settings import inside

EVERYTHING = (
    "webhook.enabled=true",
    "networkPolicy.enabled=true",
    "podMonitor.enabled=true",
    "serviceMonitor.enabled=true",
    "admissionPolicies.oneShare=true",
)
LABELS = {"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    settings = inside()
    assert settings is not None
    return Helm(Path(settings.program("helm")), tmp_path_factory.mktemp("helm"))


def setting(*values: str) -> list[str]:
    return [part for each in values for part in ("--set", each)]


def one(objects: list[Manifest], kind: str, end: str) -> Manifest:
    (found,) = (
        each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(end)
    )
    return found


def containers(objects: list[Manifest]) -> dict[str, Any]:
    """All containers by name."""
    return {
        container["name"]: container
        for each in objects
        if each["kind"] in ("DaemonSet", "Deployment")
        for container in each["spec"]["template"]["spec"]["containers"]
    }


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
    assert {"POD_UID", "NODE_NAME"} == {each["name"] for each in gpus["env"]}
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
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
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


def flags_of(objects: list[Manifest], container: str = "gpus") -> list[str]:
    found: list[str] = containers(objects)[container]["args"]
    return found


RENDERED: dict[str, Callable[[list[Manifest]], bool]] = {
    "kubeletRootDir=/data/kubelet": lambda it: (
        {
            "--kubelet-plugins-directory-path=/data/kubelet/plugins",
            "--kubelet-registrar-directory-path=/data/kubelet/plugins_registry",
        }
        <= set(flags_of(it))
    ),
    "nvidiaDriverRoot=/run/nvidia/driver": lambda it: all(
        "--nvidia-driver-root=/run/nvidia/driver" in flags_of(it, name)
        for name in ("gpus", "mps-agent")
    ),
    "hostRoot=/sim": lambda it: (
        {"/sim/proc", "/sim/sys"}
        <= {
            volume.get("hostPath", {}).get("path")
            for volume in one(it, "DaemonSet", "kubelet-plugin")["spec"]["template"]["spec"][
                "volumes"
            ]
        }
    ),
    "image.tag=v9": lambda it: containers(it)["gpus"]["image"] == "gpu-dra-driver:v9",
    "imagePullSecrets[0].name=s": lambda it: all(
        each["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "s"}]
        for each in it
        if each["kind"] == "DaemonSet"
    ),
    "fullnameOverride=other": lambda it: (
        one(it, "DaemonSet", "plugin")["metadata"]["name"] == "other-kubelet-plugin"
    ),
    "namespaceOverride=other": lambda it: (
        {each["metadata"].get("namespace", "other") for each in it} == {"other"}
    ),
    "selectorLabelsOverride.app=x": lambda it: (
        one(it, "DaemonSet", "mps-agent")["spec"]["selector"]
        == {"matchLabels": {"app": "x", "app.kubernetes.io/component": "mps-agent"}}
    ),
    "mpsAgent.enabled=false": lambda it: containers(it).keys() == {"gpus"},
    "rbac.create=false": lambda it: not any("Role" in each["kind"] for each in it),
    "serviceAccount.create=false": lambda it: (
        not any(each["kind"] == "ServiceAccount" for each in it)
    ),
    "kubeletPlugin.containers.gpus.healthcheckPort=-1": lambda it: (
        containers(it)["gpus"]["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    ),
    "kubeletPlugin.metrics.gpuHttpEndpoint=:9400": lambda it: (
        containers(it)["gpus"]["ports"][0] == {"name": "http", "containerPort": 9400}
    ),
    "nodeConfigs.default.health.ignoreXids[0]=63": lambda it: (
        yaml.safe_load(one(it, "ConfigMap", "node-config")["data"]["default.yaml"])["health"]
        == {"ignoreXids": [63]}
    ),
    "networkPolicy.enabled=true": lambda it: (
        "egress" not in one(it, "NetworkPolicy", "mps-agent")["spec"]
    ),
    "podMonitor.enabled=true": lambda it: (
        one(it, "PodMonitor", "metrics")["spec"]["podMetricsEndpoints"]
        == [{"port": "http", "path": "/metrics", "interval": "30s"}]
    ),
    "serviceMonitor.enabled=true": lambda it: (
        one(it, "Service", "metrics")["metadata"]["labels"]["app.kubernetes.io/component"]
        == one(it, "ServiceMonitor", "metrics")["spec"]["selector"]["matchLabels"][
            "app.kubernetes.io/component"
        ]
    ),
    "admissionPolicies.oneShare=true": lambda it: (
        sum(each["kind"] == "ValidatingAdmissionPolicy" for each in it) == 2
    ),
}


@pytest.mark.parametrize("value", RENDERED)
def test_a_value_does_what_it_says(helm: Helm, value: str) -> None:
    with suppress(KeyError, ValueError):  # what is looked at may not be there without it
        assert not RENDERED[value](helm.objects())
    assert RENDERED[value](helm.objects(*setting(value)))


REFUSED = {
    "image.colour=red": "at '/image': additional properties 'colour' not allowed",
    "logFormat=xml": "at '/logFormat': value must be one of 'text', 'json'",
    "kubeletRootDir=var/kubelet": "at '/kubeletRootDir': 'var/kubelet' does not match",
    "kubeletPlugin.containers.gpus.healthcheckPort=x": "healthcheckPort': got string",
    "nodeConfigs.default.rules[0].partitioning.mode=dynamic": (
        "/rules/0/partitioning/mode': value must be one of 'Existing', 'Dynamic', 'Static'"
    ),
    "nodeConfigs.default.colour=red": "default': additional properties 'colour' not allowed",
    "featureGates.DynamicMIG=true": "features are chosen for each GPU in nodeConfigs",
    "kubeletPlugin.kubeletPluginsDirectoryPath=/x": "set kubeletRootDir",
    f"kubeletRootDir=/{'r' * 54}": "108 bytes long; unix sockets take 107: use a folder of at most",
    "webhook.enabled=true,webhook.tls.mode=secret": "webhook.tls.secretName is missing",
}


@pytest.mark.parametrize("value", REFUSED)
def test_a_wrong_value_is_refused_by_name(helm: Helm, value: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        helm.template(*setting(value))
    assert REFUSED[value] in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--namespace", "default"], "the namespace is `default`"),
        (["--kube-version", "1.33.9"], "requires kubeVersion: >=1.34.0-0"),
    ],
)
def test_a_wrong_place_is_refused(helm: Helm, options: list[str], words: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        helm.template(*options)
    assert words in str(refused.value)


def test_releases_of_vendors_are_taken_and_the_default_namespace_when_allowed(helm: Helm) -> None:
    assert helm.objects("--kube-version", "v1.34.0-gke.1")
    allowed = setting("allowDefaultNamespace=true")
    assert helm.objects("--namespace", "default", *allowed)


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
