"""Claims, claim templates and device classes of `resource.k8s.io/v1`, as far as they are evaluated.

A request with `exactly` has one alternative, one with `firstAvailable` several; from there on both
are the same thing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dra_driver.allocation.devices import Taint
from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.allocation.quantities import quantities_of
from dra_driver.model.quantity import Quantity

# Alpha API fields that change which devices fit: to leave them out silently would give wrong
# answers.
_NOT_EVALUATED = ("derivedAttributes",)


class Mode(Enum):
    """How many devices a request wants."""

    EXACT_COUNT = "ExactCount"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A kind of taint that a request accepts."""

    key: str  # empty: every key
    operator: str  # `Exists` or `Equal`
    value: str
    effect: str  # empty: every effect

    def covers(self, taint: Taint) -> bool:
        """Whether the taint is accepted (resourceclaim/devicetoleration.go)."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator == "Exists" or self.value == taint.value

    def to_json(self) -> dict[str, str]:
        """Return the API form, which the scheduler copies into the result."""
        parts = {"key": self.key, "operator": self.operator, "value": self.value}
        parts["effect"] = self.effect
        return {name: text for name, text in parts.items() if text}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to satisfy a request."""

    name: str  # as results name it: `main`, or `main/sub` below `firstAvailable`
    class_name: str
    selectors: tuple[str, ...]
    mode: Mode
    count: int
    admin_access: bool
    tolerations: tuple[Toleration, ...]
    capacity: Mapping[str, Quantity] = field(default_factory=dict)  # how much it wants of each


@dataclass(frozen=True, slots=True)
class Request:
    """One entry of `spec.devices.requests`; the first alternative that can be had is taken."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on an attribute over all devices of some requests."""

    attribute: str  # full name, with domain
    same: bool  # matchAttribute, else distinctAttribute
    requests: tuple[str, ...]  # empty: all

    def concerns(self, alternative: str) -> bool:
        """Whether devices of that alternative (`main` or `main/sub`) are meant."""
        main = alternative.partition("/")[0]
        return not self.requests or main in self.requests or alternative in self.requests


@dataclass(frozen=True, slots=True)
class Config:
    """Parameters for a driver, passed on unread."""

    requests: tuple[str, ...]  # empty: all
    parameters: Mapping[str, Any]  # `{"opaque": {...}}`


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """An administrator's selection of devices under a name."""

    name: str
    selectors: tuple[str, ...]
    configs: tuple[Config, ...] = ()
    extended_resource: str = ""
    created: str = ""  # RFC 3339 in UTC, so that text order is time order

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> "DeviceClass":
        """Read a DeviceClass; raises ObjectInvalid that names the field."""
        meta = Fields(manifest, "DeviceClass").child("metadata")
        name = meta.text("name")
        top = Fields(manifest, f"DeviceClass {name}")
        spec = top.child("spec")
        return cls(
            name=name,
            selectors=_selectors(spec),
            configs=_configs(spec),
            extended_resource=spec.text("extendedResourceName", ""),
            created=meta.text("creationTimestamp", ""),
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim asks for."""

    namespace: str
    name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()
    configs: tuple[Config, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> "Claim":
        """Read a ResourceClaim; raises ObjectInvalid that names the field."""
        meta = Fields(manifest, "ResourceClaim").child("metadata")
        namespace, name = meta.text("namespace", "default"), meta.text("name")
        spec = Fields(manifest, f"ResourceClaim {namespace}/{name}").child("spec")
        return cls._of_spec(namespace, name, spec)

    @classmethod
    def from_template(cls, manifest: Mapping[str, Any], name: str) -> "Claim":
        """Read a ResourceClaimTemplate as the claim of that name that is made from it."""
        meta = Fields(manifest, "ResourceClaimTemplate").child("metadata")
        namespace = meta.text("namespace", "default")
        where = f"ResourceClaimTemplate {namespace}/{meta.text('name')}"
        return cls._of_spec(namespace, name, Fields(manifest, where).child("spec").child("spec"))

    @classmethod
    def _of_spec(cls, namespace: str, name: str, spec: Fields) -> "Claim":
        devices = spec.child("devices")
        return cls(
            namespace=namespace,
            name=name,
            requests=tuple(_request(request) for request in devices.children("requests")),
            constraints=tuple(_constraint(entry) for entry in devices.children("constraints")),
            configs=_configs(devices),
        )


def _request(fields: Fields) -> Request:
    name = fields.text("name")
    if "exactly" in fields:
        return Request(name, (_alternative(fields.child("exactly"), name),))
    subrequests = tuple(
        _alternative(option, f"{name}/{option.text('name')}")
        for option in fields.children("firstAvailable")
    )
    if not subrequests:
        raise ObjectInvalid(f"{fields.where}: exactly or firstAvailable is wanted")
    return Request(name, subrequests)


def _alternative(fields: Fields, name: str) -> Alternative:
    for key in _NOT_EVALUATED:
        if key in fields:
            raise ObjectInvalid(f"{fields.where}.{key}: not evaluated by this version")
    mode_name = fields.text("allocationMode", Mode.EXACT_COUNT.value)
    if mode_name not in {mode.value for mode in Mode}:
        raise ObjectInvalid(
            f"{fields.where}.allocationMode: ExactCount or All is wanted, found {mode_name!r}"
        )
    count = fields.whole("count", 1)
    if count < 1:
        raise ObjectInvalid(f"{fields.where}.count: at least 1 is wanted, found {count}")
    return Alternative(
        name=name,
        class_name=fields.text("deviceClassName"),
        selectors=_selectors(fields),
        mode=Mode(mode_name),
        count=count,
        admin_access=fields.flag("adminAccess"),
        tolerations=tuple(
            Toleration(
                key=entry.text("key", ""),
                operator=entry.text("operator", "Equal"),
                value=entry.text("value", ""),
                effect=entry.text("effect", ""),
            )
            for entry in fields.children("tolerations")
        ),
        capacity=quantities_of(fields.child("capacity"), "requests"),
    )


def _selectors(fields: Fields) -> tuple[str, ...]:
    return tuple(
        selector.child("cel").text("expression") for selector in fields.children("selectors")
    )


def _constraint(fields: Fields) -> Constraint:
    for key, same in (("matchAttribute", True), ("distinctAttribute", False)):
        if key in fields:
            return Constraint(fields.text(key), same, fields.texts("requests"))
    raise ObjectInvalid(f"{fields.where}: matchAttribute or distinctAttribute is wanted")


def _configs(fields: Fields) -> tuple[Config, ...]:
    configs = []
    for entry in fields.children("config"):
        if "opaque" not in entry:
            raise ObjectInvalid(f"{entry.where}.opaque: opaque parameters are wanted")
        configs.append(Config(entry.texts("requests"), {"opaque": entry.raw("opaque")}))
    return tuple(configs)
