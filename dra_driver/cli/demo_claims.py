"""What the scheduler and the kubelet do with a Pod of the examples, on the demo's node."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    DeviceId,
    Refusal,
    Slice,
    allocate,
    claim_for_pod,
    devices_in_use,
)
from dra_driver.cli.bed import DRIVER, PATIENCE, Bed
from dra_driver.cli.shipped import Manifest, device_classes, parse
from dra_driver.model import ClaimRef
from dra_driver.model.errors import Bug
from dra_driver.simulator.kubelet_plugin import Device

_PLURALS: Final = {"Pod": "pods", "ResourceClaimTemplate": "resourceclaimtemplates"}


@dataclass(frozen=True, slots=True)
class Served:
    """One Pod of an example, its claim, and how far it got."""

    pod: str
    claim: Claim
    ref: ClaimRef
    outcome: Allocation | Refusal
    prepared: tuple[Device, ...] = ()
    seconds: float = 0.0  # that Prepare took
    uuids: Mapping[str, str] = field(default_factory=dict)  # of all published devices


class Scheduler:
    """Takes Pods from the API server's objects to devices, as scheduler and kubelet would."""

    def __init__(self, bed: Bed) -> None:
        """Create the DeviceClasses that come with the driver."""
        self._bed = bed
        for manifest in device_classes():
            bed.api.objects.create("deviceclasses", manifest)
        stored = bed.api.objects.select("deviceclasses")
        self._classes = {c.name: c for c in map(DeviceClass.parse, stored)}

    def serve(self, text: str) -> Served:
        """Create the objects of an example with one Pod, allocate its claim and prepare it."""
        self._bed.check()
        template, pod = None, {}
        for manifest in parse(text):
            stored = self._bed.api.objects.create(_PLURALS[manifest["kind"]], manifest)
            if manifest["kind"] == "Pod":
                pod = stored
            else:
                template = stored
        claim, ref = self._claim(pod, template)
        outcome = self._allocate(claim)
        name = pod["metadata"]["name"]
        if isinstance(outcome, Refusal):
            return Served(name, claim, ref, outcome)
        self._store(ref, outcome)
        begin = time.monotonic()
        devices = self._bed.kubelet.prepare(DRIVER, [ref], PATIENCE)[ref.uid]
        seconds = time.monotonic() - begin
        return Served(name, claim, ref, outcome, devices, seconds, _uuids(self._bed.slices()))

    def retire(self, served: Sequence[Served]) -> float:
        """Unprepare the claims and delete them, as after their Pods; return the seconds it took."""
        self._bed.check()
        begin = time.monotonic()
        self._bed.kubelet.unprepare(DRIVER, [each.ref for each in served], PATIENCE)
        seconds = time.monotonic() - begin
        for each in served:
            self._bed.api.objects.delete("resourceclaims", each.ref.name, each.ref.namespace)
        return seconds

    def _claim(self, pod: Manifest, template: Manifest | None) -> tuple[Claim, ClaimRef]:
        """Make the claim that the template or the old resource name of a Pod stands for."""
        name = pod["metadata"]["name"]
        if template is not None:
            spec = template["spec"]["spec"]
            prefix = f"{name}-{pod['spec']['resourceClaims'][0]['name']}-"
        else:
            spec, prefix = {}, f"{name}-extended-resources-"
        metadata = {"namespace": pod["metadata"]["namespace"], "generateName": prefix}
        stored = self._bed.api.objects.create(
            "resourceclaims", {"metadata": metadata, "spec": spec}
        )
        ref = ClaimRef(*(stored["metadata"][key] for key in ("namespace", "name", "uid")))
        if template is not None:
            return Claim.parse(stored), ref
        claim = claim_for_pod(pod, self._classes.values())
        if claim is None:
            raise Bug(f"Pod {name} asks for nothing that a DeviceClass offers")
        return claim, ref

    def _allocate(self, claim: Claim) -> Allocation | Refusal:
        objects = self._bed.api.objects
        outcome = allocate(
            self._bed.node_name,
            [Slice.parse(piece) for piece in self._bed.slices()],
            self._classes.values(),
            [claim],
            devices_in_use(objects.select("resourceclaims")),
        )
        return outcome if isinstance(outcome, Refusal) else outcome[0]

    def _store(self, ref: ClaimRef, allocation: Allocation) -> None:
        """Write the allocation into the claim's status, as the scheduler does."""
        objects = self._bed.api.objects
        claim: dict[str, Any] = objects.get("resourceclaims", ref.name, ref.namespace)
        claim["status"] = {"allocation": allocation.to_json(self._classes)}
        objects.replace("resourceclaims", claim, part="status")


def devices_of(served: Sequence[Served]) -> dict[DeviceId, int]:
    """Return which devices are given, each with the position of its Pod."""
    return {
        grant.device: position
        for position, each in enumerate(served)
        if isinstance(each.outcome, Allocation)
        for grant in each.outcome.grants
    }


def _uuids(slices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """UUIDs by device; a partition that is made for a claim has none here."""
    return {
        device["name"]: device["attributes"]["uuid"]["string"]
        for piece in slices
        for device in piece["spec"].get("devices", ())
        if "uuid" in device["attributes"]
    }
