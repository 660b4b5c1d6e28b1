"""A node as this driver publishes it, of which one claim after the other is given its devices."""

from typing import Any
from uuid import uuid4

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    Refusal,
    Slice,
    allocate,
    claim_for_pod,
    devices_in_use,
)
from dra_driver.model import Gpu
from dra_driver.slices import ServerAbilities
from tests.unit.allocation.build import NODE, Manifest, claim, exactly
from tests.unit.allocation.test_deviceclasses import shipped
from tests.unit.slices.published import NEW, plan_for

CLASSES = {c.name: c for c in map(DeviceClass.parse, shipped())}


class SharingNode:
    """Claims stay allocated until they are released; all of them are looked at each time."""

    def __init__(self, *gpus: Gpu, abilities: ServerAbilities = NEW) -> None:
        self._slices = [Slice.parse(obj) for obj in plan_for(*gpus, abilities=abilities).objects()]
        self.devices = {d.id.device: d for piece in self._slices for d in piece.devices}
        self.claims: dict[str, Manifest] = {}  # allocated ones, by UID

    def ask(self, class_name: str = "gpu.nvidia.com", **wish: Any) -> list[str]:
        """Devices of a new claim with one request; none if it is refused."""
        return self.claim(Claim.parse(claim("c", {"r": exactly(class_name, **wish)})))

    def claim(self, wanted: Claim) -> list[str]:
        """Devices of a new claim; none if it is refused."""
        outcome = self.outcome(wanted)
        return [] if isinstance(outcome, Refusal) else self.stored(outcome)

    def pod(self, resource: str, count: int = 1) -> list[str]:
        """Devices of an unchanged Pod that asks for an extended resource."""
        containers = [{"name": "c", "resources": {"limits": {resource: count}}}]
        pod = {"metadata": {"name": "pod"}, "spec": {"containers": containers}}
        wanted = claim_for_pod(pod, CLASSES.values())
        assert wanted is not None, "no class for it"
        return self.claim(wanted)

    def outcome(self, wanted: Claim) -> tuple[Allocation, ...] | Refusal:
        in_use = devices_in_use(self.claims.values())
        return allocate(NODE, self._slices, CLASSES.values(), [wanted], in_use)

    def stored(self, outcome: tuple[Allocation, ...]) -> list[str]:
        (found,) = outcome
        status = {"allocation": found.to_json(CLASSES)}
        self.claims[str(uuid4())] = {"metadata": {"name": "c"}, "status": status}
        return [grant.device.device for grant in found.grants]

    def release(self, uid: str) -> None:
        del self.claims[uid]

    def results(self) -> list[dict[str, Any]]:
        """All that is allocated."""
        return [
            result
            for manifest in self.claims.values()
            for result in manifest["status"]["allocation"]["devices"]["results"]
        ]
