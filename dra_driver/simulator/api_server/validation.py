"""Rules by which the API server takes or refuses a ResourceSlice.

From pkg/apis/resource/validation/validation.go of releases 1.34 to 1.37. Written apart from the
driver's own checks on purpose: each is a test of the other.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.simulator.api_server.policies import policy_violations

Violation = tuple[str, str]
Json = Mapping[str, Any]

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_PRE: Final = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    rf"(-{_PRE}(\.{_PRE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_MAX_VALUE: Final = 64  # bytes of a string or version
_MAX_TOTAL: Final = 32  # attributes and capacities of a device
_MAX_DEVICES: Final = 128
_MAX_DEVICES_RICH: Final = 64  # where a device has taints or consumes counters, from 1.35
_PLACES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_VALUE_KEYS: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_SPLIT_COUNTERS: Final = (1, 35)  # counters and devices stand in different slices from here on


def violations(spec: Json, old: Json | None, version: tuple[int, ...]) -> Iterator[Violation]:
    """Yield (field, what is wrong with it) for all that this release refuses."""
    split = version[:2] >= _SPLIT_COUNTERS
    yield from _name("spec.driver", spec.get("driver"), _SUBDOMAIN, 63)
    yield from _pool(spec.get("pool") or {})
    if old is not None:
        for path in ("driver", "nodeName"):
            if spec.get(path) != old.get(path):
                yield f"spec.{path}", "field is immutable"
        if (spec.get("pool") or {}).get("name") != old["pool"]["name"]:
            yield "spec.pool.name", "field is immutable"
    if sum(bool(spec.get(place)) for place in _PLACES) != 1:
        yield "spec", "exactly one of " + ", ".join(f"`{p}`" for p in _PLACES) + " is required"
    devices = spec.get("devices") or []
    groups = spec.get("sharedCounters") or []
    if split and groups and devices:
        yield "spec", "only one of `sharedCounters` or `devices` is allowed"
    rich = split and any("taints" in device or "consumesCounters" in device for device in devices)
    yield from _count("spec.devices", devices, _MAX_DEVICES_RICH if rich else _MAX_DEVICES)
    yield from _unique("spec.devices", "name", devices)
    for index, device in enumerate(devices):
        yield from _device(f"spec.devices[{index}]", device, split=split)
    yield from _groups(groups, devices, split=split)


def _pool(pool: Json) -> Iterator[Violation]:
    name = pool.get("name")
    if not isinstance(name, str) or not name or len(name) > 253:  # noqa: PLR2004
        yield "spec.pool.name", "must be 1 to 253 characters"
    elif not all(_SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        yield "spec.pool.name", "must be DNS subdomains separated by slashes"
    if not isinstance(pool.get("resourceSliceCount"), int) or pool["resourceSliceCount"] < 1:
        yield "spec.pool.resourceSliceCount", "must be greater than zero"
    if not isinstance(pool.get("generation"), int) or pool["generation"] < 0:
        yield "spec.pool.generation", "must be greater than or equal to zero"


def _device(path: str, device: Json, *, split: bool) -> Iterator[Violation]:
    yield from _name(f"{path}.name", device.get("name"), _LABEL, 63)
    attributes = device.get("attributes") or {}
    capacity = device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > _MAX_TOTAL:
        yield path, f"the total number of attributes and capacities must not exceed {_MAX_TOTAL}"
    for key, attribute in attributes.items():
        yield from _key(f"{path}.attributes", key)
        yield from _attribute(f"{path}.attributes[{key}]", attribute)
    for key, value in capacity.items():
        yield from _key(f"{path}.capacity", key)
        if "requestPolicy" in value and not device.get("allowMultipleAllocations"):
            where = f"{path}.capacity[{key}].requestPolicy"
            yield where, "Forbidden: allowMultipleAllocations must be true"
        yield from policy_violations(f"{path}.capacity[{key}]", value)
    taints = device.get("taints") or []
    yield from _count(f"{path}.taints", taints, 16 if split else 4)
    for index, taint in enumerate(taints):
        yield from _taint(f"{path}.taints[{index}]", taint, split=split)
    uses = device.get("consumesCounters") or []
    if split:
        yield from _count(f"{path}.consumesCounters", uses, 2)
    for index, use in enumerate(uses):
        yield from _counters(f"{path}.consumesCounters[{index}]", "counterSet", use)


def _attribute(path: str, attribute: Json) -> Iterator[Violation]:
    given = [key for key in _VALUE_KEYS if key in attribute]
    if len(given) != 1:
        yield path, "exactly one value must be specified"
    wanted: dict[str, type] = {"int": int, "bool": bool, "string": str, "version": str}
    for kind in given:
        value = attribute[kind]
        if kind in wanted and type(value) is not wanted[kind]:
            yield f"{path}.{kind}", f"cannot decode {value!r}"
        elif kind in ("string", "version") and len(value.encode(errors="replace")) > _MAX_VALUE:
            yield f"{path}.{kind}", f"Too long: may not be more than {_MAX_VALUE} bytes"
        elif kind == "version" and not _SEMVER.fullmatch(value):
            yield f"{path}.{kind}", "must be a string compatible with semver.org spec 2.0.0"
        elif kind == "int" and not -(2**63) <= value < 2**63:
            yield f"{path}.{kind}", "does not fit 64 bits"


def _taint(path: str, taint: Json, *, split: bool) -> Iterator[Violation]:
    prefix, slash, name = str(taint.get("key", "")).rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):  # noqa: PLR2004
        yield f"{path}.key", "prefix part must be a DNS subdomain"
    if len(name) > 63 or not _QUALIFIED.fullmatch(name):  # noqa: PLR2004
        yield f"{path}.key", "name part must be a label name"
    value = taint.get("value", "")
    if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):  # noqa: PLR2004
        yield f"{path}.value", "must be a label value"
    effects = ("NoSchedule", "NoExecute", *(("None",) if split else ()))
    if taint.get("effect") not in effects:
        yield f"{path}.effect", f"Unsupported value: supported are {', '.join(effects)}"


def _groups(groups: list[Json], devices: list[Json], *, split: bool) -> Iterator[Violation]:
    path = "spec.sharedCounters"
    yield from _unique(path, "name", groups)
    if split:
        yield from _count(path, groups, 8)
    elif sum(len(group.get("counters") or {}) for group in groups) > 32:  # noqa: PLR2004
        yield path, "the total number of shared counters must not exceed 32"
    for index, group in enumerate(groups):
        yield from _counters(f"{path}[{index}]", "name", group)
    if split:
        return
    known = {group.get("name"): set(group.get("counters") or {}) for group in groups}
    for index, device in enumerate(devices):
        for use in device.get("consumesCounters") or []:
            missing = set(use.get("counters") or {}) - known.get(use.get("counterSet"), set())
            if missing or use.get("counterSet") not in known:
                where = f"spec.devices[{index}].consumesCounters"
                yield where, "must reference counters of this ResourceSlice"


def _counters(path: str, name: str, group: Json) -> Iterator[Violation]:
    yield from _name(f"{path}.{name}", group.get(name), _LABEL, 63)
    counters = group.get("counters") or {}
    if not 0 < len(counters) <= 32:  # noqa: PLR2004
        yield f"{path}.counters", "must have 1 to 32 items"
    for key in counters:
        yield from _name(f"{path}.counters", key, _LABEL, 63)


def _key(path: str, key: str) -> Iterator[Violation]:
    domain, slash, name = key.partition("/")
    if not slash:
        name, domain = domain, ""
    if slash:
        yield from _name(path, domain, _SUBDOMAIN, 63)
    yield from _name(path, name, _IDENTIFIER, 32)


def _name(path: str, value: object, pattern: re.Pattern[str], most: int) -> Iterator[Violation]:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        yield path, f"Invalid value: {value!r}"
    elif len(value) > most:
        yield path, f"Too long: may not be more than {most} bytes"


def _count(path: str, items: list[Json], most: int) -> Iterator[Violation]:
    if len(items) > most:
        yield path, f"Too many: {len(items)}: must have at most {most} items"


def _unique(path: str, key: str, items: list[Json]) -> Iterator[Violation]:
    seen: set[object] = set()
    for index, item in enumerate(items):
        if item.get(key) in seen:
            yield f"{path}[{index}].{key}", f"Duplicate value: {item.get(key)!r}"
        seen.add(item.get(key))
