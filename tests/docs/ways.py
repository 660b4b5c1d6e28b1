"""Which test runs a command of the pages, or checks a manifest; what none can, and why."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import jsonschema
import yaml

from dra_driver.config import load
from dra_driver.simulator.node_file import NodeSpec
from tests.chart.documents import schema
from tests.docs.blocks import Block, Command

FIRST_CLAIM: Final = ("README.md", "## A first claim on a real cluster")


class Way(StrEnum):
    """Who runs a command."""

    FIRST_CLAIM = "tests/cluster/test_readme.py"
    CLUSTER = "tests/cluster/test_documented.py"
    RELEASE = "tests/cluster/test_documented.py, with the driver's Pods"
    NODE = "tests/node/test_documented.py"
    MAKE = "tests/unit/docs/test_commands.py"
    NOBODY = "nobody"


# What no test runs as it stands, and why. Keys are what commands begin with.
NOT_RUN: Final[Mapping[str, str]] = {
    "dra-driver bench": "takes minutes: tests/node/test_bench*.py run it with --quick",
    "sudo dra-driver bench": "the same, on a node that nobody else uses",
    "python -m tests.cluster run": "these tests themselves",
    "kubectl apply -f claim.yaml": "needs the webhook: test_commands.py compares its answer",
    "git tag": "publishes",
    "git push": "publishes",
    "buildah": "fetches from a registry, and publishes",
    "cosign": "needs keys, and publishes",
    "helm push": "publishes",
    "helm uninstall dra-driver-nvidia-gpu": "NVIDIA's chart is not here",
    "kubectl drain": "would take the only node from the other tests",
}

_PROGRAMS: Final = {
    "kubectl": Way.CLUSTER,
    "helm": Way.CLUSTER,
    "dra-driver": Way.NODE,
    "nvidia-smi": Way.NODE,
    "nvidia-cuda-mps-control": Way.NODE,
    "sim-mps-client": Way.NODE,
    "make": Way.MAKE,
}
_PROGRAM: Final = re.compile(rf"(?:^|[/ (])({'|'.join(_PROGRAMS)})(?= |$)")
_IN_PODS: Final = re.compile(r"kubectl (?:exec|logs|rollout|get --raw) ")  # of the installed driver
_HEAD: Final = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"


class NotCovered(Exception):
    """No test runs the command or checks the manifest, and nothing says why."""


def way_of(command: Command) -> Way:
    """Say who runs a command."""
    if any(command.words.startswith(begin) for begin in NOT_RUN):
        return Way.NOBODY
    if (command.page, command.heading) == FIRST_CLAIM:
        return Way.FIRST_CLAIM
    if _IN_PODS.match(command.words):
        return Way.RELEASE
    program = _PROGRAM.search(command.words)
    if program is None:
        raise NotCovered(f"{command}: tests/docs/ways.py does not know who runs that")
    return _PROGRAMS[program[1]]


def objects_of(block: Block) -> list[dict[str, Any]]:
    """Give the objects of a YAML block that the API server has to judge; all else is checked here.

    Raises NotCovered for a block of no known kind, and what the reader of its kind complains of.
    """
    for document in yaml.safe_load_all(block.text):
        if isinstance(document, list):
            return [_role(document)]
        if "apiVersion" in document and not document["apiVersion"].startswith("config."):
            return _with_entries_read(list(yaml.safe_load_all(block.text)))
    _check_own(block)
    return []


def _check_own(block: Block) -> None:
    """Read what is no object of the API server."""
    (document,) = yaml.safe_load_all(block.text)
    if document.get("kind") == "NodeConfig":
        load(block.text)
    elif "rules" in document:  # part of one
        load(_HEAD + block.text)
    elif "gpus" in document:
        NodeSpec.model_validate(document)
    elif document.keys() <= schema()["properties"].keys():
        jsonschema.validate(document, schema())
    else:
        raise NotCovered(f"{block.page}:{block.line}: YAML of no kind that ways.py knows")


def _role(rules: list[Any]) -> dict[str, Any]:
    """Rules of RBAC as the role that they would be part of."""
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    return {**head, "metadata": {"name": "documented"}, "rules": rules}


def _with_entries_read(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the node configurations in ConfigMaps."""
    for each in objects:
        for text in each["data"].values() if each["kind"] == "ConfigMap" else ():
            load(text)
    return objects
