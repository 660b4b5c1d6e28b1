"""Kinds that the API stand-in serves, how they are selected, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
Selector: TypeAlias = Mapping[str, str]


class ApiError(Exception):
    """An answer other than success, in the words of a `Status` object."""

    def __init__(
        self, code: int, reason: str, message: str, causes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Keep status code, machine-readable reason, text, and (field, message) pairs."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.causes = causes

    def status(self) -> JsonObject:
        """Body of the answer."""
        answer: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }
        if self.causes:
            causes = [
                {"reason": _cause(message), "message": message, "field": path}
                for path, message in self.causes
            ]
            answer["details"] = {"causes": causes}
        return answer


def _cause(message: str) -> str:
    """Word of the API for what is wrong with a field; those that no driver asks for are one."""
    return "FieldValueForbidden" if message.startswith("Forbidden:") else "FieldValueInvalid"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object that is served, and the fields by which it can be selected."""

    group: str
    plural: str
    kind: str
    namespaced: bool = True
    selectable: frozenset[str] = field(default_factory=frozenset)
    version: str = "v1"

    @property
    def api_version(self) -> str:
        """Value of `apiVersion` in its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


_ABOUT: Final = frozenset(f"involvedObject.{key}" for key in ("kind", "namespace", "name", "uid"))
_DRA: Final = "resource.k8s.io"
RESOURCES: Final[Mapping[str, Resource]] = {
    resource.plural: resource
    for resource in (
        Resource("", "namespaces", "Namespace", namespaced=False),
        Resource("", "nodes", "Node", namespaced=False),
        Resource("", "secrets", "Secret"),
        Resource("", "pods", "Pod", selectable=frozenset(("spec.nodeName", "status.phase"))),
        Resource("", "events", "Event", selectable=_ABOUT | {"reason", "type"}),
        Resource(
            _DRA,
            "resourceslices",
            "ResourceSlice",
            namespaced=False,
            selectable=frozenset(("spec.driver", "spec.nodeName", "spec.pool.name")),
        ),
        Resource(_DRA, "deviceclasses", "DeviceClass", namespaced=False),
        Resource(_DRA, "resourceclaims", "ResourceClaim"),
        Resource(_DRA, "resourceclaimtemplates", "ResourceClaimTemplate"),
        Resource(
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
            namespaced=False,
        ),
    )
}


def selects(obj: JsonObject, selector: Selector, namespace: str = "") -> bool:
    """Whether all fields have the wanted values and the object is in the namespace, if any."""
    if namespace and obj["metadata"].get("namespace") != namespace:
        return False
    return all(_field(obj, path) == wanted for path, wanted in selector.items())


def _field(obj: JsonObject, path: str) -> str:
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
