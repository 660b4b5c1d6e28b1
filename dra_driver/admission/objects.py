"""What claims, their templates and DeviceClasses say about devices, in every version of the API.

Shapes of staging/src/k8s.io/api/resource: v1 and v1beta2 have a request's fields in `exactly` or
in each item of `firstAvailable`; v1beta1 has those of `exactly` in the request itself. The API
server has validated what it sends, so what has another shape is passed over, not judged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.config.yaml_text import Path

GROUP: Final = "resource.k8s.io"
CLASS: Final = "DeviceClass"
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {  # of requests and configs
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    CLASS: ("spec",),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """One way in which a request can be met."""

    name: str  # that of the request, or `request/name` for one of several
    device_class: str
    count: int | None  # None: all devices that there are
    admin_access: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a claim: one wish, or several of which the first that can be met counts."""

    name: str
    wishes: tuple[Wish, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """An opaque config for this driver, and where it stands in the object."""

    path: Path
    requests: tuple[str, ...]  # none: all
    parameters: Any

    def at(self, *path: str | int) -> Path:
        """Path of something in the parameters, from the top of the object."""
        return (*self.path, "opaque", "parameters", *path)


@dataclass(frozen=True, slots=True)
class Devices:
    """What one object says about devices, as far as it concerns this driver."""

    class_name: str  # of a DeviceClass, which has no requests
    requests: tuple[Request, ...]
    entries: tuple[Entry, ...]


def devices_of(kind: str, obj: Mapping[str, Any], driver: str) -> Devices | None:
    """Read an object of this kind; None: it is of none that this driver looks at."""
    if kind not in _PLACES:
        return None
    place = _PLACES[kind]
    found: Any = obj
    for part in place:
        found = _mapping(found).get(part)
    devices = _mapping(found)
    is_class = kind == CLASS
    return Devices(
        class_name=str(_mapping(obj.get("metadata")).get("name", "")) if is_class else "",
        requests=() if is_class else tuple(_requests(devices)),
        entries=tuple(_entries(devices, place, driver)),
    )


def _requests(devices: Mapping[str, Any]) -> Iterator[Request]:
    for request in map(_mapping, _list(devices.get("requests"))):
        name = str(request.get("name", ""))
        several = [_mapping(each) for each in _list(request.get("firstAvailable"))]
        if several:
            wishes = [_wish(f"{name}/{each.get('name', '')}", each) for each in several]
        else:
            wishes = [_wish(name, _mapping(request.get("exactly")) or request)]
        yield Request(name, tuple(wishes))


def _wish(name: str, fields: Mapping[str, Any]) -> Wish:
    count = fields.get("count", 1)  # the API server fills in what is not given
    is_known = fields.get("allocationMode") != "All" and isinstance(count, int)
    return Wish(
        name=name,
        device_class=str(fields.get("deviceClassName", "")),
        count=count if is_known else None,
        admin_access=fields.get("adminAccess") is True,
    )


def _entries(devices: Mapping[str, Any], place: Path, driver: str) -> Iterator[Entry]:
    for number, config in enumerate(map(_mapping, _list(devices.get("config")))):
        opaque = _mapping(config.get("opaque"))
        if opaque.get("driver") == driver:
            requests = tuple(str(name) for name in _list(config.get("requests")))
            yield Entry((*place, "config", number), requests, opaque.get("parameters"))


def _mapping(value: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, list) else []
