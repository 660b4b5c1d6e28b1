"""What an evaluation says: an allocation as the scheduler would write it, or why there is none."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dra_driver.allocation.claims import Alternative, Claim, DeviceClass
from dra_driver.allocation.devices import DeviceId
from dra_driver.model.quantity import Quantity


class Cause(Enum):
    """The first thing that speaks against a device, in words that follow a number of devices."""

    TAKEN = "taken"
    CLASS_SELECTOR = "not in the class"
    REQUEST_SELECTOR = "ruled out by the request's selectors"
    CAPACITY = "short of capacity"
    COUNTER = "short of a shared counter"
    TAINTED = "tainted"
    CONSTRAINT = "against a constraint"
    SELECTOR_FAILED = "not answered by a selector"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one device was not given to one request."""

    device: DeviceId
    cause: Cause
    detail: str  # which selector, capacity, counter, taint, constraint or holder
    capacity: str = ""  # name of the capacity, where that is the cause

    def __str__(self) -> str:
        return f"{self.device.device}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One request, or one of its alternatives, that did not get its devices."""

    request: str
    wanted: int  # 0: all that match, and none does
    found: int
    rejections: tuple[Rejection, ...]
    note: str = ""  # what speaks against it before any device is looked at

    def __str__(self) -> str:
        if self.note:
            return f"request {self.request}: {self.note}"
        counts = Counter((each.cause, each.capacity) for each in self.rejections)
        reasons = ", ".join(
            f"{counts[cause, name]} {cause.value} {name}".rstrip()
            for cause in Cause
            for name in sorted({named for of, named in counts if of is cause})
        )
        if not reasons:
            reasons = f"no {'other ' if self.found else ''}device is published for this node"
        wanted = "1 device" if self.wanted == 1 else f"{self.wanted or 'all'} devices"
        return f"request {self.request} wants {wanted}, {self.found} found ({reasons})"


@dataclass(frozen=True, slots=True)
class Refusal:
    """No allocation: the claim at which it ends, and why."""

    claim: str
    message: str  # one line for a person
    fatal: bool  # the scheduler gives the Pod up on all nodes, not only on this one
    shortfalls: tuple[Shortfall, ...] = ()

    def __str__(self) -> str:
        return f"claim {self.claim}: {self.message}"


@dataclass(frozen=True, slots=True)
class Grant:
    """One device, or a share of one, given to one request."""

    device: DeviceId
    alternative: Alternative
    consumed: Mapping[str, Quantity] = field(default_factory=dict)  # of a share, by capacity
    share_id: str = field(default="", compare=False)  # a UUID; empty: the claim has it alone

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `status.allocation.devices.results`."""
        result: dict[str, Any] = {
            "request": self.alternative.name,
            "driver": self.device.driver,
            "pool": self.device.pool,
            "device": self.device.device,
        }
        if self.alternative.admin_access:
            result["adminAccess"] = True
        if self.share_id:
            result["shareID"] = self.share_id
        if self.consumed:
            result["consumedCapacity"] = {name: str(q) for name, q in self.consumed.items()}
        if self.alternative.tolerations:
            result["tolerations"] = [entry.to_json() for entry in self.alternative.tolerations]
        return result


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one claim got."""

    claim: Claim
    grants: tuple[Grant, ...]
    chosen: tuple[Alternative, ...]  # one for each request, in order
    node: str  # empty: usable from every node

    def to_json(self, classes: Mapping[str, DeviceClass]) -> dict[str, Any]:
        """Return `status.allocation`."""
        devices: dict[str, Any] = {"results": [grant.to_json() for grant in self.grants]}
        if config := list(self._config(classes)):
            devices["config"] = config
        allocation: dict[str, Any] = {"devices": devices}
        if self.node:
            field = {"key": "metadata.name", "operator": "In", "values": [self.node]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        return allocation

    def _config(self, classes: Mapping[str, DeviceClass]) -> Iterable[dict[str, Any]]:
        """Yield the entries of all classes, each class once, then those of the claim."""
        requests_of_class: dict[str, list[str]] = {}
        for alternative in self.chosen:
            requests_of_class.setdefault(alternative.class_name, []).append(alternative.name)
        for class_name, requests in requests_of_class.items():
            for config in classes[class_name].configs:
                yield self._entry("FromClass", requests, config.parameters)
        for config in self.claim.configs:
            wanted = config.requests
            if not wanted or any(self._names(choice) & set(wanted) for choice in self.chosen):
                yield self._entry("FromClaim", list(wanted), config.parameters)

    def _entry(
        self, source: str, requests: list[str], parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {"source": source}
        # Without `requests` an entry is for all of them, and that is how Kubernetes 1.37 writes it.
        covers_all = all(self._names(choice) & set(requests) for choice in self.chosen)
        if requests and not covers_all:
            entry["requests"] = requests
        return {**entry, **parameters}

    @staticmethod
    def _names(choice: Alternative) -> set[str]:
        return {choice.name, choice.name.partition("/")[0]}
