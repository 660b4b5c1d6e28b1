"""The examples, allocated on devices as we publish them. The cluster tests run them for real."""

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from dra_driver.allocation import Refusal
from dra_driver.simulator.models import MODELS
from tests.unit.allocation.examples import FILES, FOLDER, devices_of, documents, outcome_of
from tests.unit.allocation.hardware import (
    bare,
    every_kind,
    gpu_uuid,
    partitioned,
    published,
    whole,
)
from tests.unit.allocation.test_partition_examples import WANTED
from tests.unit.allocation.test_sharing_examples import SHARING

WORKLOADS = ("Pod", "Job", "Deployment", "DaemonSet")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_b08_no_example_reads_what_a_device_may_lack(path: Path) -> None:
    """Put the GPU of which nothing is known first: every selector is evaluated on it."""
    for gpus in permutations([bare(0), whole(1, MODELS["gb10"]), partitioned(2, MODELS["b200"])]):
        outcome = outcome_of(path, published(gpus))
        assert not (isinstance(outcome, Refusal) and outcome.fatal), outcome


def test_what_each_example_gets() -> None:
    slices = every_kind()
    assert devices_of("one-gpu", slices) == ["gpu-0"]
    assert devices_of("unchanged-pod", slices) == ["gpu-0"]
    assert devices_of("by-memory", slices) == ["gpu-3"]
    assert devices_of("by-model", slices) == ["gpu-3"]
    assert devices_of("by-uuid", slices, gpu_uuid(2)) == ["gpu-2"]
    assert re.fullmatch(r"gpu-\d-mig-1g10gb-15-0", devices_of("mig-profile", slices)[0])
    assert devices_of("two-containers", slices) == ["gpu-0"]
    assert devices_of("two-pods", slices) == ["gpu-0"]
    assert devices_of("job", slices) == devices_of("deployment", slices) == ["gpu-0"]
    assert devices_of("admin-access", slices) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert devices_of("namespaces", slices) == ["gpu-0", "gpu-1"]
    whole_one, part = devices_of("two-claims", slices)
    assert (whole_one, "-mig-" in part) == ("gpu-0", True)
    assert re.fullmatch(r"gpu-\d+-mig-[347]g\d+gb-\d+-0", devices_of("first-available", slices)[0])
    assert len(FILES) == 15 + len(WANTED) + len(SHARING)


def test_two_gpus_below_one_root() -> None:
    roots = ("pci0000:10", None, "pci0000:20", "pci0000:10")
    gpus = [replace(whole(i, MODELS["t4"]), pcie_root=root) for i, root in enumerate(roots)]
    assert devices_of("same-pcie-root", published(gpus)) == ["gpu-0", "gpu-3"]
    (path,) = FOLDER.glob("*-same-pcie-root.yaml")
    assert isinstance(outcome_of(path, published(gpus[:3])), Refusal)


def test_the_alternative_and_the_stand_in_uuid() -> None:
    only_small = published([whole(0, MODELS["t4"])])
    assert devices_of("first-available", only_small) == ["gpu-0"]
    (by_uuid,) = FOLDER.glob("*-by-uuid.yaml")
    assert isinstance(outcome_of(by_uuid, every_kind()), Refusal)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_complete(path: Path) -> None:
    found = documents(path)
    assert all(doc["metadata"]["name"].startswith(path.stem[3:]) for doc in found)
    spaces = {doc["metadata"]["name"] for doc in found if doc["kind"] == "Namespace"} or {None}
    objects = [doc for doc in found if doc["kind"] != "Namespace"]
    assert {doc["metadata"].get("namespace") for doc in objects} == spaces
    for workload in (doc for doc in objects if doc["kind"] in WORKLOADS):
        space = workload["metadata"].get("namespace")
        named = {
            doc["metadata"]["name"]
            for doc in objects
            if doc["metadata"].get("namespace") == space and "ResourceClaim" in doc["kind"]
        }
        pod = workload["spec"].get("template", workload)
        claims = {claim.pop("name"): claim for claim in pod["spec"].get("resourceClaims", [])}
        assert {source for claim in claims.values() for source in claim.values()} <= named
        used = set()
        for container in pod["spec"]["containers"]:
            assert container["image"] == "debian:12-slim"
            assert "nvidia-smi -L" in " ".join(container["command"])
            used |= {claim["name"] for claim in container["resources"].get("claims", [])}
        assert used == set(claims)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_explains_itself(path: Path) -> None:
    head = path.read_text(encoding="utf-8").split("apiVersion", 1)[0]
    assert head.startswith("# ")
    assert "# You see: " in head
    assert f"[{path.stem}]({path.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
