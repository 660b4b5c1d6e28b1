"""The values of the Helm chart: names, types, defaults, and what they mean.

`values.yaml`, `values.schema.json` and the table in the chart's README are made from here.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from dra_driver.config import NodeConfig
from dra_driver.config.node import API_VERSION, KIND
from dra_driver.config.strict import StrictModel

Mapping = dict[str, Any]
Several = list[Mapping]
Texts = dict[str, str]
_Path = Annotated[str, Field(pattern=r"^/[^\s:,]*$")]
_EntryName = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=200)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_PRIVILEGED: Final = {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0}


def value(default: Any, description: str, **limits: Any) -> Any:
    """Make a field; models and lists are made anew for each use."""
    return Field(default_factory=lambda: default, description=description, **limits)


def _present(label: str, word: str = "true") -> Mapping:
    return {"matchExpressions": [{"key": label, "operator": "In", "values": [word]}]}


_GPU_NODES: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                _present("feature.node.kubernetes.io/pci-10de.present"),
                _present("feature.node.kubernetes.io/pci-0300_10de.present"),
                _present("feature.node.kubernetes.io/pci-0302_10de.present"),
                _present("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
                _present("nvidia.com/gpu.present"),
            ]
        }
    }
}


class Image(StrictModel):
    """Which image all parts run."""

    repository: str = value("gpu-dra-driver", "Name of the image, with its registry.", min_length=1)
    tag: str = value("", "Empty: the chart's `appVersion`.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = value("IfNotPresent", "")


class Account(StrictModel):
    """ServiceAccounts: one for each part."""

    create: bool = value(default=True, description="Make them; `false`: they are there.")
    name: str = value("", "What their names begin with; empty: as all objects.")
    annotations: Texts = value({}, "For all of them.")


class Rbac(StrictModel):
    """Rights."""

    create: bool = value(default=True, description="Make roles and bindings.")


class DeviceClasses(StrictModel):
    """DeviceClasses that users name in claims."""

    create: bool = value(
        default=True,
        description="Make `gpu.nvidia.com`, `mig.nvidia.com`, and one for each extended resource.",
    )


class Policies(StrictModel):
    """ValidatingAdmissionPolicies."""

    slices: bool = value(
        default=True,
        description="Keep a node's token to slices of its own node and of this driver.",
    )
    one_share: bool = value(
        default=False,
        description="Refuse what asks for more than one share of a GPU for one container.",
    )


class Config(StrictModel):
    """Configurations of nodes; see docs/configuration.md."""

    map: dict[_EntryName, NodeConfig] = Field(
        default_factory=lambda: {
            "default": NodeConfig.model_validate({"apiVersion": API_VERSION, "kind": KIND})
        },
        description="By name. The Node's label `nvidia.com/dra.config` says which a node has.",
    )
    name: str = value("", "A ConfigMap of yours instead of `map`.")
    default: str = value("", "Which of them nodes without label have; empty: by strategy.")
    fallback_strategies: list[Literal["named", "single", "empty"]] = value(
        ["named", "single"],
        "The one called `default`, the only one, or none: the first that there is.",
        min_length=1,
    )


class PluginMetrics(StrictModel):
    """Where the plugin answers over HTTP, in its Pod's own network."""

    gpu_http_endpoint: str = value(
        ":8080", "Address of `/metrics`, `/healthz` and `/readyz`.", pattern=r"^[^\s:]*:[0-9]+$"
    )


class GpusContainer(StrictModel):
    """The plugin's container."""

    env: Several = value([], "Further variables, as in a Pod.")
    security_context: Mapping = value(_PRIVILEGED, "")
    resources: Mapping = value(
        {"requests": {"cpu": "20m", "memory": "96Mi"}},
        "It takes 70 MB, and 0.2 % of a CPU when idle.",
    )
    healthcheck_port: int = value(
        51516,
        "Port of the gRPC health service; negative: none, probes ask over HTTP.",
        ge=-1,
        le=65535,
    )


class PluginContainers(StrictModel):
    """Containers of the plugin's Pod."""

    gpus: GpusContainer = value(GpusContainer(), "")


class KubeletPlugin(StrictModel):
    """The node plugin, a DaemonSet."""

    priority_class_name: str = value("system-node-critical", "Also of the MPS agent.")
    update_strategy: Mapping = value(
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "The new plugin is ready before the old one ends.",
    )
    pod_annotations: Texts = value({}, "")
    pod_security_context: Mapping = value({}, "")
    node_selector: Texts = value({}, "Also of the MPS agent.")
    tolerations: Several = value(
        [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "Also of the MPS agent.",
    )
    affinity: Mapping = value(_GPU_NODES, "Nodes with GPUs. Also of the MPS agent.")
    mig_config_label: bool = value(
        default=False,
        description="Let the Node's label `nvidia.com/mig.config` name the layout of its GPUs. The "
        "plugin may then set `nvidia.com/mig.config.state` on its own Node, and a policy is made "
        "that lets it change nothing else.",
    )
    metrics: PluginMetrics = value(PluginMetrics(), "")
    containers: PluginContainers = value(PluginContainers(), "")


class MpsAgent(StrictModel):
    """The MPS agent, a DaemonSet that is never updated by itself: its daemons end with it."""

    enabled: bool = value(
        default=True,
        description="Without it claims with `strategy: MPS` can't be prepared.",
    )
    pod_annotations: Texts = value({}, "")
    env: Several = value([], "Further variables, as in a Pod.")
    security_context: Mapping = value(_PRIVILEGED, "")
    resources: Mapping = value(
        {"requests": {"cpu": "10m", "memory": "80Mi"}},
        "It takes 60 MB. Daemons and servers of MPS run in its container: a limit would end them.",
    )


class Tls(StrictModel):
    """Certificate of the webhook."""

    mode: Literal["self-signed", "cert-manager", "secret"] = value(
        "self-signed", "Who looks after it: the webhook, cert-manager, or you."
    )
    secret_name: str = value("", "With `secret`: a Secret with `tls.crt` and `tls.key`.")
    ca_bundle: str = value("", "With `secret`: the authority of its certificate, in base64.")
    issuer_ref: Mapping = value({}, "With `cert-manager`: an issuer of yours; empty: one is made.")


class Webhook(StrictModel):
    """The admission webhook, a Deployment."""

    enabled: bool = value(
        default=False,
        description="Configs that can't work are refused when they are written.",
    )
    replicas: int = value(2, "", ge=1)
    failure_policy: Literal["Fail", "Ignore"] = value("Fail", "What holds while none answers.")
    timeout_seconds: int = value(5, "", ge=1, le=30)
    priority_class_name: str = value("system-cluster-critical", "")
    pod_annotations: Texts = value({}, "")
    node_selector: Texts = value({}, "")
    tolerations: Several = value([], "")
    affinity: Mapping = value({}, "")
    tls: Tls = value(Tls(), "")
    resources: Mapping = value(
        {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}, ""
    )


class NetworkPolicies(StrictModel):
    """NetworkPolicies: each part reaches the API server at most, the MPS agent nothing."""

    enabled: bool = value(default=False, description="")
    api_server_ports: list[_Port] = value([443, 6443], "Ports of the API server.", min_length=1)


class Monitor(StrictModel):
    """An object of the Prometheus operator."""

    enabled: bool = value(default=False, description="Needs the Prometheus operator's definitions.")
    interval: str = value("30s", "", pattern=r"^([0-9]+(ms|[smh]))+$")
    additional_labels: Texts = value({}, "By which a Prometheus finds it.")


class ChartValues(StrictModel):
    """All values of the chart."""

    name_override: str = value("", "Instead of the chart's name.", max_length=40)
    fullname_override: str = value("", "What names of objects begin with.", max_length=40)
    namespace_override: str = value("", "Instead of the release's namespace.")
    selector_labels_override: Texts = value({}, "Labels by which Pods are selected.")
    allow_default_namespace: bool = value(
        default=False, description="Allow an installation in `default`."
    )
    image: Image = value(Image(), "")
    image_pull_secrets: Several = value([], "")
    service_account: Account = value(Account(), "")
    rbac: Rbac = value(Rbac(), "")
    kubelet_root_dir: _Path = value(
        "/var/lib/kubelet", "The kubelet's `--root-dir`, at most 54 bytes long."
    )
    nvidia_driver_root: _Path = value(
        "/", "Root of the GPU driver's files; `/run/nvidia/driver` for the GPU Operator's driver."
    )
    host_root: _Path = value(
        "/",
        "Where the host has `proc` and `sys`. Another folder means a simulated node, whose state "
        "is in its driver root: that is writable then.",
    )
    cdi_root: _Path = value("/var/run/cdi", "A folder in which the container runtime looks.")
    log_verbosity: str = value(
        "info", "`debug`, `info`, `warning`, `error`, or a number as klog has it (`4`: debug)."
    )
    log_format: Literal["text", "json"] = value("text", "")
    config: Config = value(Config(), "")
    device_classes: DeviceClasses = value(DeviceClasses(), "")
    admission_policies: Policies = value(Policies(), "")
    kubelet_plugin: KubeletPlugin = value(KubeletPlugin(), "")
    mps_agent: MpsAgent = value(MpsAgent(), "")
    webhook: Webhook = value(Webhook(), "")
    network_policy: NetworkPolicies = value(NetworkPolicies(), "")
    pod_monitor: Monitor = value(Monitor(), "")
    service_monitor: Monitor = value(Monitor(), "")


# Values of the driver that this one replaces, and what to do instead.
PEER_KEYS: Final[dict[str, str]] = {
    "resources": "GPUs are always served; remove it",
    "gpuResourcesEnabledOverride": "it is not needed; remove it",
    "featureGates": "features are chosen for each GPU in config.map",
    "consumableShares": "set shares in a rule of config.map",
    "resourceApiVersion": "resource.k8s.io/v1 is used, which all releases from 1.34 on have",
    "nvidiaCDIHookPath": "the driver brings its own hook, and finds NVIDIA's by itself",
    "altProcDevices": "set hostRoot for a simulated node",
    "maskNvidiaDriverParams": "remove it",
    "controller": "there is no controller; remove it",
    "kubeletPlugin.kubeletRegistrarDirectoryPath": "set kubeletRootDir, which all folders follow",
    "kubeletPlugin.kubeletPluginsDirectoryPath": "set kubeletRootDir, which all folders follow",
    "kubeletPlugin.networkPolicy": "set networkPolicy, which is for all parts",
    "kubeletPlugin.containers.computeDomains": "compute domains are not served; remove it",
    "kubeletPlugin.containers.init": "the plugin itself waits for the GPU driver; remove it",
}
