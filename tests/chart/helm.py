"""Helm, and the plain manifests that it renders for those who do not use it."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chart.documents import CHART, MANIFESTS

NAME: Final = "gpu-dra-driver"  # of release and namespace alike, as in all plain manifests
_HELMS_OWN: Final = re.compile(
    r"^ +(helm\.sh/chart|app\.kubernetes\.io/(managed-by|instance)):.*\n|^# Source:.*\n",
    re.MULTILINE,
)
_ABOUT: Final = {
    "kubelet-plugin": "The node plugin and the configuration of the nodes. Apply rbac.yaml first.",
    "mps-agent": "The MPS agent; without it no claim can have MPS. Apply rbac.yaml first.",
}
_PARTS: Final = {"kubelet-plugin": ("kubelet-plugin", "node-config"), "mps-agent": ("mps-agent",)}
_ACCOUNT_IN_RBAC: Final = "kubelet-plugin"

Manifest = dict[str, Any]

EVERYTHING: Final = (  # that can be switched on
    "webhook.enabled=true",
    "networkPolicy.enabled=true",
    "podMonitor.enabled=true",
    "serviceMonitor.enabled=true",
    "admissionPolicies.oneShare=true",
    "kubeletPlugin.migConfigLabel=true",
)


class HelmRefused(Exception):
    """Helm ended with an error; its words."""


class Helm:
    """One `helm` program, without settings of its user."""

    def __init__(self, program: Path, home: Path) -> None:
        """Let it keep in `home` what it keeps."""
        self._program = program
        self._environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}

    def run(self, *arguments: str) -> str:
        """Run it; gives its output. Raises HelmRefused."""
        done = subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise HelmRefused(done.stderr)
        return done.stdout

    def template(self, *options: str) -> str:
        """Render the chart as text; later options win over those given here."""
        fixed = (NAME, str(CHART), "--namespace", NAME, "--kube-version", "1.37.2")
        return self.run("template", *fixed, *options)

    def objects(self, *options: str) -> list[Manifest]:
        """Render the chart."""
        return [each for each in yaml.safe_load_all(self.template(*options)) if each]


def plain(helm: Helm) -> dict[Path, str]:
    """Manifests of plugin and agent with default values, and what is to be in them."""
    documents = [_HELMS_OWN.sub("", text).strip("\n") for text in helm.template().split("\n---\n")]
    return {
        MANIFESTS / f"{part}.yaml": _file(part, documents)
        for part in ("kubelet-plugin", "mps-agent")
    }


def _file(part: str, documents: list[str]) -> str:
    about = f"# {_ABOUT[part]}\n# Made by `make chart` from the Helm chart.\n"
    return about + "\n---\n".join(each for each in documents if _is_of(part, each)) + "\n"


def _is_of(part: str, document: str) -> bool:
    """Whether a manifest belongs to a part, and is not in rbac.yaml already."""
    found = yaml.safe_load(document)
    if not found or found["kind"] not in ("ServiceAccount", "ConfigMap", "DaemonSet"):
        return False
    component = found["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return component in _PARTS[part] and (
        found["kind"] != "ServiceAccount" or component != _ACCOUNT_IN_RBAC
    )


def setting(*values: str) -> list[str]:
    """Options that give values, as in `image.tag=v1`."""
    return [part for each in values for part in ("--set", each)]


def one(objects: list[Manifest], kind: str, end: str) -> Manifest:
    """The one object of a kind whose name ends so."""
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
