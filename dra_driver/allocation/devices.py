"""Devices as the allocation sees them: read from ResourceSlices of `resource.k8s.io/v1`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.allocation.policies import RequestPolicy
from dra_driver.allocation.quantities import quantity_of
from dra_driver.model.quantity import Quantity


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """What names a device in the whole cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version; two are the same attribute value only if spelled the same."""

    text: str


AttributeValue = bool | int | str | Version


@dataclass(frozen=True, slots=True)
class Taint:
    """Why a device is not given to claims that do not tolerate it."""

    key: str
    value: str
    effect: str

    @property
    def prevents_allocation(self) -> bool:
        """Whether the scheduler heeds the effect: `None` and unknown ones only inform."""
        return self.effect in {"NoSchedule", "NoExecute"}

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


Counters = Mapping[str, Quantity]  # amounts by counter


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice."""

    id: DeviceId
    attributes: Mapping[str, AttributeValue]  # keys as published, with or without domain
    capacity: Mapping[str, Quantity]
    taints: tuple[Taint, ...] = ()
    local: bool = True  # only the node that publishes it can use it
    allows_multiple: bool = False  # several claims at a time may have it
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)  # by capacity
    consumes: Mapping[str, Counters] = field(default_factory=dict)  # by counter set of the pool

    def attribute(self, name: str) -> AttributeValue | None:
        """Value of the attribute with that full name; a bare key is in the driver's domain."""
        if name in self.attributes:
            return self.attributes[name]
        domain, _, bare = name.partition("/")
        return self.attributes.get(bare) if domain == self.id.driver else None


@dataclass(frozen=True, slots=True)
class Slice:
    """One ResourceSlice, as far as allocation depends on it."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int  # how many slices of this generation make the pool complete
    node: str  # empty: not bound to one node
    all_nodes: bool
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Counters], ...] = ()  # by name, which may be there twice

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> "Slice":
        """Read a ResourceSlice; raises ObjectInvalid that names the field."""
        name = Fields(manifest, "ResourceSlice").child("metadata").text("name")
        spec = Fields(manifest, f"ResourceSlice {name}").child("spec")
        driver, pool, node = spec.text("driver"), spec.child("pool"), spec.text("nodeName", "")
        pool_name = pool.text("name")
        return cls(
            name=name,
            driver=driver,
            pool=pool_name,
            generation=pool.whole("generation", 0),
            slice_count=pool.whole("resourceSliceCount", 1),
            node=node,
            all_nodes=spec.flag("allNodes"),
            devices=tuple(
                _device(device, driver, pool_name, local=bool(node))
                for device in spec.children("devices")
            ),
            counter_sets=tuple(
                (group.text("name"), _amounts(group, "counters"))
                for group in spec.children("sharedCounters")
            ),
        )


def _device(fields: Fields, driver: str, pool: str, *, local: bool) -> Device:
    return Device(
        id=DeviceId(driver, pool, fields.text("name")),
        attributes={key: _attribute(value) for key, value in fields.entries("attributes")},
        capacity=_amounts(fields, "capacity"),
        taints=tuple(
            Taint(taint.text("key"), taint.text("value", ""), taint.text("effect"))
            for taint in fields.children("taints")
        ),
        local=local,
        policies={
            name: RequestPolicy.parse(value.child("requestPolicy"))
            for name, value in fields.entries("capacity")
            if "requestPolicy" in value
        },
        allows_multiple=fields.flag("allowMultipleAllocations"),
        consumes={
            use.text("counterSet"): _amounts(use, "counters")
            for use in fields.children("consumesCounters")
        },
    )


def _attribute(fields: Fields) -> AttributeValue:
    if "string" in fields:
        return fields.text("string", "")
    if "int" in fields:
        return fields.whole("int", 0)
    if "bool" in fields:
        return fields.flag("bool")
    if "version" in fields:
        return Version(fields.text("version"))
    raise ObjectInvalid(f"{fields.where}: one of string, int, bool or version is wanted")


def _amounts(fields: Fields, key: str) -> dict[str, Quantity]:
    return {name: quantity_of(value, "value") for name, value in fields.entries(key)}
