"""Values of the chart: each does what it says, and what is wrong is refused by name."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import yaml

from tests.chart.helm import Helm, HelmRefused, Manifest, containers, one, setting


def flags_of(objects: list[Manifest], container: str = "gpus") -> list[str]:
    found: list[str] = containers(objects)[container]["args"]
    return found


def variables(objects: list[Manifest]) -> dict[str, str]:
    """Variables of the plugin that have a value."""
    found = containers(objects)["gpus"]["env"]
    return {each["name"]: each["value"] for each in found if "value" in each}


def verbs_of_nodes(objects: list[Manifest]) -> set[str]:
    rules = one(objects, "ClusterRole", "kubelet-plugin")["rules"]
    return {verb for rule in rules if rule["resources"] == ["nodes"] for verb in rule["verbs"]}


RENDERED: dict[str, Callable[[list[Manifest]], bool]] = {
    "kubeletRootDir=/data/kubelet": lambda it: (
        {
            "KUBELET_PLUGINS_DIRECTORY_PATH": "/data/kubelet/plugins",
            "KUBELET_REGISTRAR_DIRECTORY_PATH": "/data/kubelet/plugins_registry",
        }.items()
        <= variables(it).items()
    ),
    "nvidiaDriverRoot=/run/nvidia/driver": lambda it: (
        variables(it)["NVIDIA_DRIVER_ROOT"] == "/run/nvidia/driver"
        and "--nvidia-driver-root=/run/nvidia/driver" in flags_of(it, "mps-agent")
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
    "hostRoot=/simulated": lambda it: (
        not any(
            mount["readOnly"]
            for name in ("gpus", "mps-agent")
            for mount in containers(it)[name]["volumeMounts"]
            if mount["name"] == "driver-root" and "readOnly" in mount
        )
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
    "config.map.small.kind=NodeConfig,config.map.small.apiVersion="
    "config.gpu-dra-driver.dev/v1alpha1": lambda it: (
        set(one(it, "ConfigMap", "node-config")["data"]) == {"default.yaml", "small.yaml"}
    ),
    "config.default=default": lambda it: "--default-config=default" in flags_of(it),
    "config.fallbackStrategies={single,empty}": lambda it: (
        "--fallback-strategies=single,empty" in flags_of(it)
    ),
    "config.name=mine": lambda it: (
        not any(each["kind"] == "ConfigMap" for each in it)
        and {"name": "mine"}
        in [
            volume.get("configMap")
            for volume in one(it, "DaemonSet", "plugin")["spec"]["template"]["spec"]["volumes"]
        ]
    ),
    "config.map.default.health.ignoreXids[0]=63": lambda it: (
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
        {
            "slices-of-the-own-node.gpu-dra-driver.dev",
            "one-share-for-a-container.gpu-dra-driver.dev",
            "one-share-for-a-request.gpu-dra-driver.dev",
        }
        == {each["metadata"]["name"] for each in it if each["kind"] == "ValidatingAdmissionPolicy"}
    ),
    "kubeletPlugin.migConfigLabel=true": lambda it: (
        "--mig-config-label" in flags_of(it)
        and "patch" in verbs_of_nodes(it)
        and bool(one(it, "ValidatingAdmissionPolicy", "labels-of-the-own-node.gpu-dra-driver.dev"))
    ),
    "admissionPolicies.slices=false": lambda it: (
        not any(each["kind"] == "ValidatingAdmissionPolicy" for each in it)
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
    "config.map.default.rules[0].partitioning.mode=dynamic": (
        "/rules/0/partitioning/mode': value must be one of 'Existing', 'Dynamic', 'Static'"
    ),
    "config.map.default.colour=red": "default': additional properties 'colour' not allowed",
    "config.default=small": 'config.default: "small" is no entry of config.map; there are: default',
    "featureGates.DynamicMIG=true": "features are chosen for each GPU in config.map",
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
