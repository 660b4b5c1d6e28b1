"""What the API server would refuse in a ResourceSlice, told before it is sent.

Rules of `resource.k8s.io/v1` in releases 1.34 to 1.37, the strictest of them where they differ
(pkg/apis/resource/validation/validation.go). One bad value would lose the whole slice.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dra_driver.model import Quantity
from dra_driver.slices.request_policies import check_policy
from dra_driver.slices.semver import is_semver

MAX_DEVICES: Final = 64  # 128 for plain devices, but the first taint on one of them halves it
MAX_VALUES: Final = 32  # attributes and capacities of one device together
MAX_TAINTS: Final = 4  # 16 from 1.35 on
_MAX_TEXT: Final = 64  # bytes of a string or version
MAX_COUNTERS: Final = 32  # of one set; in 1.34 of all sets in a slice
MAX_COUNTER_SETS: Final = 8  # in a slice of counters
_MAX_CONSUMED_SETS: Final = 2  # that one device consumes from
_MAX_LABEL: Final = 63
_MAX_SUBDOMAIN: Final = 253
_MAX_IDENTIFIER: Final = 32
_LARGEST: Final = 2**63 - 1
_REMEMBERED: Final = lru_cache(maxsize=1024)  # for few texts that all devices have in common

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")  # None only from 1.35 on: see abilities


@dataclass(frozen=True, slots=True)
class Violation:
    """A field that would be refused, relative to the object that was checked, and why."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def check_attribute(key: str, attribute: Mapping[str, Any]) -> str | None:
    """Why the API server would refuse an attribute, None when it would not."""
    if len(attribute) != 1:
        return "must have exactly one value"
    kind, value = next(iter(attribute.items()))
    if kind in ("string", "version"):
        wrong = _check_text(value)
        if wrong is None and kind == "version" and not is_semver(value):
            wrong = f"{value!r} is not a version by semver 2.0.0"
    elif kind == "int":
        fits = type(value) is int and -_LARGEST - 1 <= value <= _LARGEST
        wrong = None if fits else f"{value!r} is not a 64-bit integer"
    elif kind == "bool":
        wrong = None if isinstance(value, bool) else f"{value!r} is not true or false"
    else:
        wrong = f"{kind!r} is not a kind of value"
    return _check_key(key) or wrong


def check_capacity(key: str, capacity: Mapping[str, Any]) -> str | None:
    """Why the API server would refuse a capacity, None when it would not."""
    wrong = _check_key(key) or _check_quantity(capacity.get("value"))
    if wrong is None and "requestPolicy" in capacity:
        wrong = check_policy(Quantity.parse(capacity["value"]), capacity["requestPolicy"])
    return wrong


def check_taint(taint: Mapping[str, Any]) -> str | None:
    """Why the API server would refuse a taint, None when it would not."""
    prefix, slash, name = str(taint.get("key", "")).rpartition("/")
    if slash and not _fits(_SUBDOMAIN, prefix, _MAX_SUBDOMAIN):
        return f"key: {prefix!r} is not a DNS subdomain"
    if not _fits(_LABEL_VALUE, name, _MAX_LABEL):
        return f"key: {name!r} is not a label name"
    if taint.get("value") and not _fits(_LABEL_VALUE, taint["value"], _MAX_LABEL):
        return f"value: {taint['value']!r} is not a label value"
    if taint.get("effect") not in _EFFECTS:
        return f"effect: {taint.get('effect')!r} is not one of {', '.join(_EFFECTS)}"
    return None


def check_device(device: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield all that would make the API server refuse the slice because of this device."""
    if not _fits(_LABEL, device.get("name"), _MAX_LABEL):
        yield Violation("name", f"{device.get('name')!r} is not a DNS label")
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacity) > MAX_VALUES:
        yield Violation("attributes", f"more than {MAX_VALUES} with the capacities")
    for key, attribute in attributes.items():
        if (wrong := check_attribute(key, attribute)) is not None:
            yield Violation(f"attributes[{key}]", wrong)
    for key, value in capacity.items():
        if (wrong := check_capacity(key, value)) is not None:
            yield Violation(f"capacity[{key}]", wrong)
        if "requestPolicy" in value and not device.get("allowMultipleAllocations"):
            yield Violation(f"capacity[{key}].requestPolicy", "needs allowMultipleAllocations")
    yield from _check_taints(device.get("taints", []))
    yield from _check_consumption(device.get("consumesCounters", []))


def check_spec(spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield all that would make the API server refuse a slice of one node."""
    if not _fits(_SUBDOMAIN, spec.get("driver"), _MAX_LABEL):
        yield Violation("driver", f"{spec.get('driver')!r} is not a DNS subdomain of 63 letters")
    if not _fits(_SUBDOMAIN, spec.get("nodeName"), _MAX_SUBDOMAIN):
        yield Violation("nodeName", f"{spec.get('nodeName')!r} is not a DNS subdomain")
    pool = spec.get("pool", {})
    name = str(pool.get("name", ""))
    parts = name.split("/")
    if len(name) > _MAX_SUBDOMAIN or not all(_SUBDOMAIN.fullmatch(part) for part in parts):
        yield Violation("pool.name", f"{name!r} is not a list of DNS subdomains with slashes")
    if pool.get("resourceSliceCount", 0) < 1 or pool.get("generation", -1) < 0:
        yield Violation("pool", "needs a slice count from 1 and a generation from 0")
    devices = spec.get("devices", [])
    yield from _check_shared(spec.get("sharedCounters", []), devices)
    if len(devices) > MAX_DEVICES:
        yield Violation("devices", f"more than {MAX_DEVICES}")
    names = [device.get("name") for device in devices]
    if len(set(names)) < len(names):
        yield Violation("devices", "two have the same name")
    for index, device in enumerate(devices):
        for wrong in check_device(device):
            yield Violation(f"devices[{index}].{wrong.field}", wrong.message)


def _check_taints(taints: list[Mapping[str, Any]]) -> Iterator[Violation]:
    if len(taints) > MAX_TAINTS:
        yield Violation("taints", f"more than {MAX_TAINTS}")
    for index, taint in enumerate(taints):
        if (wrong := check_taint(taint)) is not None:
            yield Violation(f"taints[{index}]", wrong)


def _check_shared(
    groups: list[Mapping[str, Any]], devices: list[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Check the counter sets of a slice: in 1.34 they stand beside devices, later by themselves."""
    if len(groups) > MAX_COUNTER_SETS:
        yield Violation("sharedCounters", f"more than {MAX_COUNTER_SETS}")
    names = [group.get("name") for group in groups]
    if len(set(names)) < len(names):
        yield Violation("sharedCounters", "two have the same name")
    for index, group in enumerate(groups):
        for wrong in check_counter_set(group):
            yield Violation(f"sharedCounters[{index}].{wrong.field}", wrong.message)
    if groups and devices:
        yield from _check_references(groups, devices)


def _check_references(
    groups: list[Mapping[str, Any]], devices: list[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Check that devices consume only what stands in their slice."""
    sets = {group.get("name"): group.get("counters", {}) for group in groups}
    if sum(map(len, sets.values())) > MAX_COUNTERS:
        yield Violation("sharedCounters", f"more than {MAX_COUNTERS} counters beside devices")
    for index, device in enumerate(devices):
        for use in device.get("consumesCounters", []):
            for counter in use.get("counters", {}).keys() - sets.get(use.get("counterSet"), {}):
                told = f"{counter!r} is not in this slice"
                yield Violation(f"devices[{index}].consumesCounters", told)


def check_counter_set(group: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield all that would make the API server refuse the slice because of this counter set."""
    yield from _check_counters("name", group)


def _check_consumption(uses: list[Mapping[str, Any]]) -> Iterator[Violation]:
    sets = [use.get("counterSet") for use in uses]
    if len(sets) > _MAX_CONSUMED_SETS or len(set(sets)) < len(sets):
        told = f"more than {_MAX_CONSUMED_SETS}, or one set twice"
        yield Violation("consumesCounters", told)
    for index, use in enumerate(uses):
        for wrong in _check_counters("counterSet", use):
            yield Violation(f"consumesCounters[{index}].{wrong.field}", wrong.message)


def _check_counters(name: str, group: Mapping[str, Any]) -> Iterator[Violation]:
    """Check counters and the name of their set, which stands in field `name`."""
    if not _fits(_LABEL, group.get(name), _MAX_LABEL):
        yield Violation(name, f"{group.get(name)!r} is not a DNS label")
    counters = group.get("counters", {})
    if not 0 < len(counters) <= MAX_COUNTERS:
        yield Violation("counters", f"must be 1 to {MAX_COUNTERS}")
    for key, counter in counters.items():
        if not _is_label(key):
            yield Violation("counters", f"{key!r} is not a DNS label")
        if (wrong := _check_quantity(counter.get("value"))) is not None:
            yield Violation(f"counters[{key}]", wrong)


@_REMEMBERED
def _is_label(text: str) -> bool:
    return _fits(_LABEL, text, _MAX_LABEL)


def _check_text(value: object) -> str | None:
    if not isinstance(value, str) or not value.isprintable():
        return f"{value!r} is not printable text"
    if len(value.encode()) > _MAX_TEXT:
        return f"{value!r} has more than {_MAX_TEXT} bytes"
    return None


@_REMEMBERED
def _check_key(key: str) -> str | None:
    """Why an attribute or capacity can't have this name, None when it can."""
    domain, slash, name = key.rpartition("/")
    if slash and not _fits(_SUBDOMAIN, domain, _MAX_LABEL):
        return f"{domain!r} is not a domain of at most {_MAX_LABEL} letters"
    if not _fits(_IDENTIFIER, name, _MAX_IDENTIFIER):
        return f"{name!r} is not a C identifier of at most {_MAX_IDENTIFIER} letters"
    return None


def _check_quantity(value: object) -> str | None:
    return _check_amount(value) if isinstance(value, str) else f"{value!r} is not a quantity"


@_REMEMBERED
def _check_amount(text: str) -> str | None:
    try:
        amount = Quantity.parse(text)
    except ValueError:
        return f"{text!r} is not a quantity"
    return None if 0 <= amount.value <= _LARGEST else f"{text!r} does not fit 63 bits"


def _fits(pattern: re.Pattern[str], value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and pattern.fullmatch(value) is not None
