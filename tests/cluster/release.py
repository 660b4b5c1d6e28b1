"""The driver as an administrator has it: Pods, installed from its image by Helm."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from dra_driver.simulator.node_file import NodeSpec
from tests.chart.documents import CHART
from tests.chart.helm import NAME, Helm, setting
from tests.cluster.api import Object
from tests.cluster.cache import HarnessError
from tests.cluster.driver import Driver, eventually
from tests.cluster.driver_image import NEWER
from tests.cluster.workload import Namespace

PLUGIN: Final = "kubelet-plugin"
AGENT: Final = "mps-agent"
CONFIG_LABEL: Final = "nvidia.com/dra.config"
PLAIN: Final = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"
"""The configuration that the chart brings."""


_DEFAULT: Final = "default"  # the entry that counts for nodes without label
_HOOK_FOLDER: Final = Path("/var/lib/gpu-dra-driver")
_GPU_LABEL: Final = "nvidia.com/gpu.present"
_STARTED_SECONDS: Final = 120.0


class Release(Driver):
    """A simulated node and the chart's release on it, with the chart's default values.

    Only where the simulated node is has to be said.
    """

    def __init__(self, installed: Driver, helm: Helm, spec: NodeSpec) -> None:
        """Make the simulated node; `install` has to follow."""
        super().__init__(installed.cluster, spec)
        self._helm = helm
        self.driver_root = self.node.root
        self.namespace_of_driver = Namespace(self.cluster, NAME)
        self.files_before = self.files()
        for tag in self.cluster.settings.driver_images.keys() - {NEWER}:
            self.load_image(tag)

    def load_image(self, tag: str) -> None:
        """Load one of the driver's images into containerd."""
        archive = self.cluster.settings.driver_images[tag]
        self.cluster.node.ctr("images", "import", "--local", archive)

    def install(self) -> None:
        """Install the chart; returns when all of its Pods are ready."""
        self.label(_GPU_LABEL, "true")
        self.helm("install", "--create-namespace")
        self.wait_started()
        self.restarts_at_first = {part: self.restarts(part) for part in (PLUGIN, AGENT)}
        self._devices = self.device_names()

    def helm(self, verb: str, *options: str) -> str:
        """Run Helm's install or upgrade on the release.

        An upgrade takes back what tests have changed by hand in the ConfigMap.
        """
        roots = setting(f"nvidiaDriverRoot={self.driver_root}", f"hostRoot={self.node.root}")
        force = ["--force-conflicts"] if verb == "upgrade" else []
        return self.run_helm(verb, NAME, str(CHART), *roots, *force, *options)

    def run_helm(self, *arguments: str) -> str:
        """Run Helm on the cluster in the release's namespace."""
        access = [f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAME}"]
        return self._helm.run(*arguments, *access)

    def uninstall(self) -> None:
        """Remove the release; returns when its Pods are gone."""
        self.run_helm("uninstall", NAME)
        eventually(lambda: not self.pods(PLUGIN) + self.pods(AGENT), "no Pod of the driver is left")

    def files(self) -> set[Path]:
        """Files and sockets in all folders of the node that the driver writes to."""
        kubelet = self.cluster.kubelet_root
        folders = (kubelet / "plugins", kubelet / "plugins_registry", _HOOK_FOLDER)
        found = {path for folder in folders for path in folder.rglob("*") if not path.is_dir()}
        return {*found, *self.cdi_files()}

    def wait_started(self) -> None:
        """Wait until the Pods of both DaemonSets are ready, and none besides is left."""
        for part in (PLUGIN, AGENT):
            try:
                eventually(partial(self._is_ready, part), f"{part} runs", _STARTED_SECONDS)
            except HarnessError as error:
                raise HarnessError(f"{error}\n{self.story()}") from None

    def wait_settled(self) -> None:
        """Wait until what was published at first is published."""
        self.wait_started()
        eventually(lambda: self.device_names() == self._devices, "all devices are published")

    def set_config(self, name: str, config: str | None) -> None:
        """Change an entry of the release's node configurations, or take it away."""
        path = f"/api/v1/namespaces/{NAME}/configmaps/{NAME}-node-config"
        self.cluster.api.patch(path, {"data": {f"{name}.yaml": config}})

    @contextmanager
    def configured(self, config: str) -> Iterator[None]:
        """Let another node configuration count for a while; nothing is restarted."""
        self.set_config(_DEFAULT, config)
        try:
            yield
        finally:
            self.set_config(_DEFAULT, PLAIN)

    def label(self, key: str, value: str | None) -> None:
        """Set a label of the Node, or take it away."""
        patch = {"metadata": {"labels": {key: value}}}
        self.cluster.api.patch(f"/api/v1/nodes/{self.cluster.node_name}", patch)

    def pods(self, part: str) -> list[Object]:
        """Pods of one part of the driver."""
        query = {"labelSelector": f"app.kubernetes.io/component={part}"}
        path = f"/api/v1/namespaces/{NAME}/pods"
        found: list[Object] = self.cluster.api.get(path, **query)["items"]
        return found

    def pod_name(self, part: str) -> str:
        """Name of the one Pod of a part."""
        (found,) = self.pods(part)
        return str(found["metadata"]["name"])

    def pid(self, part: str) -> int:
        """Process id of the one container of a part, as the node counts."""
        name = self.pod_name(part)
        (status,) = self.namespace_of_driver.pod(name)["status"]["containerStatuses"]
        wanted = str(status["containerID"]).removeprefix("containerd://")
        tasks = map(str.split, self.cluster.node.ctr("tasks", "list").splitlines())
        (found,) = (int(task[1]) for task in tasks if task[0] == wanted)
        return found

    def restarts(self, part: str) -> int:
        """How often the one container of a part was started anew, -1 while it does not run."""
        (status,) = self.pods(part)[0]["status"]["containerStatuses"]
        return int(status["restartCount"]) if "running" in status["state"] else -1

    def is_ready(self) -> bool:
        """Whether the plugin's Pod says that it is registered and that its slices are complete."""
        return self.page("/readyz")[0] == HTTPStatus.OK

    def page(self, path: str, pod: str = "") -> tuple[int, str]:
        """Ask the plugin's Pod over HTTP, over the node's own way to its Pods."""
        name = pod or self.pod_name(PLUGIN)
        address = self.namespace_of_driver.pod(name)["status"].get("podIP")
        if address is None:
            return 0, f"{name} has no address yet"
        try:
            with urllib.request.urlopen(f"http://{address}:8080{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metrics(self, name: str, **labels: str) -> list[float]:
        """Values of the series of this name that have these labels."""
        _, text = self.page("/metrics")
        return [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def story(self) -> str:
        """Tell what the driver's Pods went through."""
        lines = self.namespace_of_driver.warnings()
        for part in (PLUGIN, AGENT):
            for pod in self.pods(part):
                name = pod["metadata"]["name"]
                lines.append(f"{name}: {json.dumps(pod['status'].get('containerStatuses'))}")
                if pod["status"].get("podIP"):
                    container = pod["spec"]["containers"][0]["name"]
                    lines.append(self.namespace_of_driver.logs(name, container)[-2000:])
        return "\n".join(lines)

    def _is_ready(self, part: str) -> bool:
        path = f"/apis/apps/v1/namespaces/{NAME}/daemonsets/{NAME}-{part}"
        found = self.cluster.api.find(path)
        if not found or "observedGeneration" not in found.get("status", {}):
            return False
        status: Mapping[str, Any] = found["status"]
        # The DaemonSet may tell yet of a Pod that is gone: the Pod itself has to say so, too.
        return bool(
            status["observedGeneration"] == found["metadata"]["generation"]
            and status["desiredNumberScheduled"] == status.get("numberReady", 0) == 1
            and (part == AGENT or status.get("updatedNumberScheduled", 0) == 1)
            and [_serves(each) for each in self.pods(part)] == [True]
        )


def _serves(pod: Object) -> bool:
    """Whether a Pod is ready and stays."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
