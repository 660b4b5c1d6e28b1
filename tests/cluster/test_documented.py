"""Commands of kubectl and helm, and manifests, as the pages have them, on a real cluster.

What would change the cluster under other tests is asked as a dry run of the server. The release
that Helm really installs, upgrades and removes has a name and namespace of its own, and no Pods.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from tests.chart.helm import NAME
from tests.cluster.cluster import Cluster
from tests.cluster.driver import CHECKOUT, Driver
from tests.cluster.release import PLUGIN, Release
from tests.docs.blocks import Command, blocks, commands
from tests.docs.ways import Way, objects_of, way_of

_TYPED: Final = {
    page: list(found)
    for page, found in groupby(
        (each for each in commands() if way_of(each) is Way.CLUSTER), key=lambda each: each.page
    )
}
_INSTALL: Final = next(
    each for each in _TYPED["docs/install.md"] if each.words.startswith("helm install")
)
_ON_A_RELEASE: Final = {"docs/upgrading.md"}  # pages that begin where another one ends
_MANIFESTS: Final = [each for each in blocks() if each.language == "yaml"]
_NAME: Final = "documented"  # of release and namespace, in place of the one that pages have
_OUR_NAME: Final = re.compile(r"(?<![\w/-])gpu-dra-driver(?![\w/.-])")
_PLACEHOLDERS: Final = re.compile(r"\b(NODE|POD|node-a|gpu-1)\b")
_COMMAND_SECONDS: Final = 120
# A shell in which changes of what other tests use are asked only.
_PRELUDE: Final = """
set -eu -o pipefail
kubectl() {
  case "$1 $2" in
    "create namespace"|"delete namespace"|"label namespace") command kubectl "$@" ;;
    create*|delete*|label*|apply*|annotate*|patch*) command kubectl "$@" --dry-run=server ;;
    get*|describe*|auth*|exec*|logs*|rollout*) command kubectl "$@" ;;
    *) echo "tests/cluster/test_documented.py does not say how to run kubectl $1" >&2; return 1 ;;
  esac
}
helm() {
  case "$1" in
    install|upgrade) command helm "$@" $WITHOUT_TRACES ;;
    rollback|uninstall|history|get|status|template|package) command helm "$@" ;;
    *) echo "tests/cluster/test_documented.py does not say how to run helm $1" >&2; return 1 ;;
  esac
}
"""
_WITHOUT_TRACES: Final = (
    "--set deviceClasses.create=false --set admissionPolicies.slices=false "
    "--set kubeletPlugin.nodeSelector.nobody=here"
)


class Administrator:
    """Someone who types what a page says in a folder that looks like the checkout."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        """Lay out the folder; `name` is that of release and namespace."""
        self._folder, self._name = folder, name
        self.names = dict.fromkeys(("NODE", "node-a", "gpu-1"), cluster.node_name)
        for part in ("deploy", "deviceclasses", "examples"):
            (folder / part).symlink_to(CHECKOUT / part)
        programs = (Path(cluster.settings.program(each)).parent for each in ("kubectl", "helm"))
        self._env = {
            "HOME": str(folder),
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": ":".join((*map(str, programs), os.environ["PATH"])),
            "WITHOUT_TRACES": _WITHOUT_TRACES,
        }

    def types(self, command: Command) -> None:
        """Run a command, which must succeed; a head of columns is compared with the page's."""
        words = _OUR_NAME.sub(self._name, command.words)
        words = _PLACEHOLDERS.sub(lambda match: self.names[match[0]], words)
        told = self.runs(words)
        if command.output and command.output[0].isupper():
            assert told.split("\n")[0].split() == command.output[0].split(), command

    def runs(self, words: str) -> str:
        """Run a command, which must succeed; gives what it prints."""
        done = subprocess.run(
            ["bash", "-c", f"{_PRELUDE}{words}"],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        print(f"$ {words}\n{done.stdout}")
        assert done.returncode == 0, f"{words}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def administrator(driver: Driver, tmp_path: Path) -> Iterator[Administrator]:
    """Give someone with all rights; their release and its namespace are gone afterwards."""
    made = Administrator(driver.cluster, tmp_path, _NAME)
    yield made
    made.runs(f"helm uninstall {_NAME} --namespace {_NAME} --ignore-not-found")
    made.runs(f"kubectl delete namespace {_NAME} --ignore-not-found")


@pytest.mark.parametrize("page", _TYPED)
def test_a_page_can_be_typed(administrator: Administrator, page: str) -> None:
    if page in _ON_A_RELEASE:
        administrator.types(_INSTALL)
    for command in _TYPED[page]:
        administrator.types(command)


def test_what_asks_the_installed_driver_can_be_typed(release: Release, tmp_path: Path) -> None:
    administrator = Administrator(release.cluster, tmp_path, NAME)
    administrator.names["POD"] = release.pod_name(PLUGIN)
    asked = [each for each in commands() if way_of(each) is Way.RELEASE]
    assert asked
    for command in asked:
        administrator.types(command)


def test_the_api_server_would_take_all_manifests(driver: Driver) -> None:
    found = [(each, made) for each in _MANIFESTS for made in objects_of(each)]
    assert {made["kind"] for _, made in found} >= {"ResourceClaim", "ResourceClaimTemplate"}
    for block, made in found:
        dry = ("apply", "--dry-run=server", "--validate=strict", "--filename=-")
        told = driver.cluster.kubectl(*dry, stdin=json.dumps(made))
        assert told.endswith("(server dry run)\n"), f"{block.page}:{block.line}"
