"""The examples as files, and what they get of a node's slices."""

from pathlib import Path
from typing import Any

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
from tests.unit.allocation.build import NODE
from tests.unit.allocation.test_deviceclasses import shipped

FOLDER = Path(__file__).parents[3] / "examples" / "resourceclaims"
FILES = sorted(FOLDER.glob("*.yaml"))
NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"
CLASSES = [DeviceClass.parse(manifest) for manifest in shipped()]


def documents(path: Path, uuid: str = NO_UUID) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8").replace(NO_UUID, uuid)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(path: Path, kind: str, uuid: str = NO_UUID) -> list[dict[str, Any]]:
    return [document for document in documents(path, uuid) if document["kind"] == kind]


def claims_of(path: Path, uuid: str = NO_UUID) -> list[Claim]:
    """Return the claims of an example: given ones, from templates, and the scheduler's own."""
    claims = [Claim.parse(document) for document in of_kind(path, "ResourceClaim", uuid)]
    claims += [
        Claim.from_template(template, template["metadata"]["name"])
        for template in of_kind(path, "ResourceClaimTemplate", uuid)
    ]
    made = (claim_for_pod(pod, CLASSES) for pod in _pods(path))
    return claims + [claim for claim in made if claim is not None]


def _pods(path: Path) -> list[dict[str, Any]]:
    """Return the Pods of an example, and one of each Deployment."""
    made = [
        {**deployment["spec"]["template"], "metadata": deployment["metadata"]}
        for deployment in of_kind(path, "Deployment")
    ]
    return of_kind(path, "Pod") + made


def outcome_of(
    path: Path, slices: list[dict[str, Any]], uuid: str = NO_UUID
) -> tuple[Allocation, ...] | Refusal:
    typed = [Slice.parse(manifest) for manifest in slices]
    return allocate(NODE, typed, CLASSES, claims_of(path, uuid))


def devices_of(stem: str, slices: list[dict[str, Any]], uuid: str = NO_UUID) -> list[str]:
    (path,) = FOLDER.glob(f"??-{stem}.yaml")
    outcome = outcome_of(path, slices, uuid)
    assert not isinstance(outcome, Refusal), outcome
    return [grant.device.device for allocation in outcome for grant in allocation.grants]
