"""Helm removes the driver, and nothing is left but what docs/install.md lists."""

import json
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from tests.chart.helm import NAME
from tests.cluster import examples, view
from tests.cluster.driver import CHECKOUT, DRIVER, eventually
from tests.cluster.mps import MpsNode
from tests.cluster.release import AGENT, PLUGIN, Release

pytestmark = pytest.mark.every_release

_PAGE: Final = CHECKOUT / "docs" / "install.md"
_EXAMPLES: Final = {"01-one-gpu": "one-gpu", "03-by-memory": "by-memory"}  # with their Pods
_OURS: Final = re.compile(r"gpu-dra-driver|nvidia\.com")
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MOUNTS: Final = Path("/proc/1/mountinfo")


@pytest.fixture
def removed(release: Release) -> Release:
    """Run two examples, and remove the release when they have ended."""
    with release.namespace() as namespace:
        for example, pod in _EXAMPLES.items():
            namespace.apply(*examples.objects(example))
            namespace.wait_pod(pod, "Running")
            examples.looked_into(release, namespace, pod)
    return release


def test_uninstall_leaves_what_is_documented(removed: Release) -> None:
    release, cluster = removed, removed.cluster
    partitions = view.partitions(release.node)
    uids = [each["metadata"]["uid"] for part in (PLUGIN, AGENT) for each in release.pods(part)]
    assert [path for uid in uids for path in _cgroups(uid)], "Pods have cgroups of their UIDs"
    release.uninstall()
    cluster.kubectl("delete", "namespace", NAME)
    # The kubelet begins with that half a minute after the driver has gone.
    eventually(lambda: not release.slices(), "the kubelet has removed the slices", 300)
    assert _objects(release) == {"nodes sim-node"}  # the label that was set by hand
    assert [path for uid in uids for path in _cgroups(uid)] == []
    mounts = _MOUNTS.read_text()
    assert not [each for each in (*uids, DRIVER, NAME) if each in mounts]
    assert MpsNode(release).leftovers() == []
    assert view.partitions(release.node) == partitions
    names, left = _documented(), release.files()
    assert left, "the hook, for one, stays"
    made = left - release.files_before  # which other tests have left
    unknown = [path for path in made if not any(fnmatch(path.name, each) for each in names)]
    assert not unknown, unknown


def _objects(release: Release) -> set[str]:
    """All objects with a name, a label or an annotation of ours, but for Events: they expire.

    Those that `kubectl apply` has made are of other tests; Helm does not write what it applied.
    """
    listed = release.cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    kinds = [kind for kind in listed if not kind.startswith("events")]
    answer = release.cluster.kubectl("get", ",".join(kinds), "--all-namespaces", "--output=json")
    metadata = [(each["kind"], each["metadata"]) for each in json.loads(answer)["items"]]
    return {
        f"{kind.lower()}s {each['name']}"
        for kind, each in metadata
        if _OURS.search(json.dumps(each)) and _APPLIED not in each.get("annotations", {})
    }


def _cgroups(uid: str) -> list[str]:
    """Look for cgroups of a Pod while those of others come and go."""
    return [folder for folder, _, _ in os.walk(_CGROUPS) if uid in Path(folder).name]


def _documented() -> list[str]:
    """Names of files in the list of docs/install.md of what stays on a node."""
    section = _PAGE.read_text().partition("\n## Removing it\n")[2].partition("\n## ")[0]
    listed = section.partition("Left on each node")[2].partition("\n\nWhat ")[0]
    return [name for name in re.findall(r"`([^`]+)`", listed) if "/" not in name]
