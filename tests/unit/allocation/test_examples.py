"""The examples, allocated on devices as we publish them. The cluster tests run them for real."""

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    Refusal,
    Slice,
    allocate,
    claim_for_pod,
)
from dra_driver.simulator.models import MODELS
from tests.unit.allocation.build import NODE
from tests.unit.allocation.hardware import (
    bare,
    every_kind,
    gpu_uuid,
    partitioned,
    published,
    whole,
)
from tests.unit.allocation.test_deviceclasses import shipped

FOLDER = Path(__file__).parents[3] / "examples" / "resourceclaims"
FILES = sorted(FOLDER.glob("*.yaml"))
WORKLOADS = ("Pod", "Job", "Deployment", "DaemonSet")
NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"
CLASSES = [DeviceClass.parse(manifest) for manifest in shipped()]


def _documents(path: Path, uuid: str = NO_UUID) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8").replace(NO_UUID, uuid)
    return [document for document in yaml.safe_load_all(text) if document]


def _of_kind(path: Path, kind: str, uuid: str = NO_UUID) -> list[dict[str, Any]]:
    return [document for document in _documents(path, uuid) if document["kind"] == kind]


def _claims(path: Path, uuid: str = NO_UUID) -> list[Claim]:
    """Return the claims of an example: given ones, from templates, and the scheduler's own."""
    claims = [Claim.parse(document) for document in _of_kind(path, "ResourceClaim", uuid)]
    claims += [
        Claim.from_template(template, template["metadata"]["name"])
        for template in _of_kind(path, "ResourceClaimTemplate", uuid)
    ]
    made = (claim_for_pod(pod, CLASSES) for pod in _of_kind(path, "Pod"))
    return claims + [claim for claim in made if claim is not None]


def _allocate(
    path: Path, slices: list[dict[str, Any]], uuid: str = NO_UUID
) -> tuple[Allocation, ...] | Refusal:
    typed = [Slice.parse(manifest) for manifest in slices]
    return allocate(NODE, typed, CLASSES, _claims(path, uuid))


def _devices(stem: str, slices: list[dict[str, Any]], uuid: str = NO_UUID) -> list[str]:
    (path,) = FOLDER.glob(f"*-{stem}.yaml")
    outcome = _allocate(path, slices, uuid)
    assert not isinstance(outcome, Refusal), outcome
    return [grant.device.device for allocation in outcome for grant in allocation.grants]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_b08_no_example_reads_what_a_device_may_lack(path: Path) -> None:
    """Put the GPU of which nothing is known first: every selector is evaluated on it."""
    for gpus in permutations([bare(0), whole(1, MODELS["gb10"]), partitioned(2, MODELS["b200"])]):
        outcome = _allocate(path, published(gpus))
        assert not (isinstance(outcome, Refusal) and outcome.fatal), outcome


def test_what_each_example_gets() -> None:
    slices = every_kind()
    assert _devices("one-gpu", slices) == ["gpu-0"]
    assert _devices("unchanged-pod", slices) == ["gpu-0"]
    assert _devices("by-memory", slices) == ["gpu-3"]
    assert _devices("by-model", slices) == ["gpu-3"]
    assert _devices("by-uuid", slices, gpu_uuid(2)) == ["gpu-2"]
    assert re.fullmatch(r"gpu-\d-mig-1g10gb-15-0", _devices("mig-profile", slices)[0])
    assert _devices("two-containers", slices) == ["gpu-0"]
    assert _devices("two-pods", slices) == ["gpu-0"]
    assert _devices("job", slices) == _devices("deployment", slices) == ["gpu-0"]
    assert _devices("admin-access", slices) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert _devices("namespaces", slices) == ["gpu-0", "gpu-1"]
    whole_one, part = _devices("two-claims", slices)
    assert (whole_one, "-mig-" in part) == ("gpu-0", True)
    assert re.fullmatch(r"gpu-\d+-mig-[347]g\d+gb-\d+-0", _devices("first-available", slices)[0])
    assert len(FILES) == 15


def test_two_gpus_below_one_root() -> None:
    roots = ("pci0000:10", None, "pci0000:20", "pci0000:10")
    gpus = [replace(whole(i, MODELS["t4"]), pcie_root=root) for i, root in enumerate(roots)]
    assert _devices("same-pcie-root", published(gpus)) == ["gpu-0", "gpu-3"]
    (path,) = FOLDER.glob("*-same-pcie-root.yaml")
    assert isinstance(_allocate(path, published(gpus[:3])), Refusal)


def test_the_alternative_and_the_stand_in_uuid() -> None:
    only_small = published([whole(0, MODELS["t4"])])
    assert _devices("first-available", only_small) == ["gpu-0"]
    (by_uuid,) = FOLDER.glob("*-by-uuid.yaml")
    assert isinstance(_allocate(by_uuid, every_kind()), Refusal)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_complete(path: Path) -> None:
    documents = _documents(path)
    assert all(doc["metadata"]["name"].startswith(path.stem[3:]) for doc in documents)
    spaces = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Namespace"} or {None}
    objects = [doc for doc in documents if doc["kind"] != "Namespace"]
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
