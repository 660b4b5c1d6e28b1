"""What the API server does to a ResourceSlice before it stores it, release by release.

Fields of features that are off are dropped without a word, taints get their time, quantities their
canonical form. Written from the API's Go code (pkg/registry/resource/resourceslice/strategy.go,
pkg/features/kube_features.go) and on purpose not shared with the driver's own checks.
"""

import copy
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from dra_driver.model import Quantity
from dra_driver.simulator.api_server.kinds import ApiError, JsonObject
from dra_driver.simulator.api_server.validation import violations

Version = tuple[int, int, int]

_SINCE: Final[Mapping[str, tuple[int, int]]] = {  # release from which a gate is on by default
    "DRADeviceTaints": (1, 36),
    "DRAPartitionableDevices": (1, 36),
    "DRAConsumableCapacity": (1, 36),
    "DRADeviceBindingConditions": (1, 36),
}
_OFF: Final = ("DRAListTypeAttributes",)  # alpha everywhere so far

_SPEC: Final = frozenset(
    (
        "driver",
        "pool",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "devices",
        "perDeviceNodeSelection",
        "sharedCounters",
    )
)
_DEVICE_PLACES: Final = ("nodeName", "nodeSelector", "allNodes")
_BINDING: Final = ("bindsToNode", "bindingConditions", "bindingFailureConditions")
_DEVICE: Final = frozenset(
    (
        "name",
        "attributes",
        "capacity",
        "consumesCounters",
        "taints",
        "allowMultipleAllocations",
        *_DEVICE_PLACES,
        *_BINDING,
    )
)
_SCALARS: Final = frozenset(("int", "bool", "string", "version"))
_LISTS: Final = frozenset(("ints", "bools", "strings", "versions"))


def default_gates(version: Version) -> dict[str, bool]:
    """Feature gates about slices as that release has them by default."""
    on = {gate: version[:2] >= since for gate, since in _SINCE.items()}
    return on | dict.fromkeys(_OFF, False)


class SliceAdmission:
    """Drops, completes and checks slices as a server of that version with those gates does."""

    def __init__(self, version: Version, gates: Mapping[str, bool]) -> None:
        """Both can be changed later: the server was upgraded or restarted with other flags."""
        self.version = version
        self.gates = {**default_gates(version), **gates}

    def __call__(self, new: JsonObject, old: JsonObject | None) -> JsonObject:
        """Slice as it is stored; raises ApiError 400 or 422."""
        name = new.get("metadata", {}).get("name", "")
        try:
            spec = self._known(new.get("spec") or {})
            self._drop(spec, (old or {}).get("spec", {}))
            _complete(spec)
        except (TypeError, AttributeError, ValueError) as error:
            raise ApiError(
                400, "BadRequest", f"ResourceSlice cannot be decoded: {error}"
            ) from error
        causes = tuple(violations(spec, (old or {}).get("spec"), self.version))
        keeps_counters = self.gates["DRAPartitionableDevices"] and self.version >= (1, 35)
        if not causes and keeps_counters and _has_both(new["spec"]):
            causes = (("spec", "only one of `sharedCounters` or `devices` is allowed"),)
        if causes:
            said = ", ".join(f"{path}: {message}" for path, message in causes)
            raise ApiError(
                422,
                "Invalid",
                f'ResourceSlice.resource.k8s.io "{name}" is invalid: {said}',
                causes,
            )
        return {**new, "spec": spec}

    def _known(self, spec: JsonObject) -> JsonObject:
        """Copy without the fields that this release does not know."""
        kept: JsonObject = {
            key: copy.deepcopy(value) for key, value in spec.items() if key in _SPEC
        }
        values = _SCALARS | (_LISTS if self.gates["DRAListTypeAttributes"] else frozenset())
        devices = kept.get("devices") or []
        for device in devices:
            for key in set(device) - _DEVICE:
                del device[key]
            for attribute in (device.get("attributes") or {}).values():
                for key in set(attribute) - values:
                    del attribute[key]
        pruned: JsonObject = _without_empty(kept)
        return pruned

    def _drop(self, spec: JsonObject, old: JsonObject) -> None:
        """Drop fields of features that are off, unless the stored slice uses the feature."""
        devices = spec.get("devices", [])
        before = old.get("devices", [])
        if self._is_off("DRADeviceTaints", before, ("taints",)):
            _strip(devices, ("taints",))
        counted = ("consumesCounters", *_DEVICE_PLACES)
        uses = "sharedCounters" in old or "perDeviceNodeSelection" in old
        if not uses and self._is_off("DRAPartitionableDevices", before, counted):
            spec.pop("sharedCounters", None)
            spec.pop("perDeviceNodeSelection", None)
            _strip(devices, counted)
        if self._is_off("DRADeviceBindingConditions", before, _BINDING):
            _strip(devices, _BINDING)
        if self._is_off("DRAConsumableCapacity", before, ("allowMultipleAllocations",)):
            _strip(devices, ("allowMultipleAllocations",))
            for device in devices:
                _strip(device.get("capacity", {}).values(), ("requestPolicy",))

    def _is_off(self, gate: str, before: list[JsonObject], keys: tuple[str, ...]) -> bool:
        return not self.gates[gate] and not any(key in device for device in before for key in keys)


def _has_both(spec: Mapping[str, Any]) -> bool:
    """Whether counters and devices are given, if only as empty lists: those are not null in Go."""
    return all(spec.get(key) is not None for key in ("sharedCounters", "devices"))


def _strip(objects: Any, keys: tuple[str, ...]) -> None:  # noqa: ANN401 - any collection of dicts
    for obj in objects:
        for key in keys:
            obj.pop(key, None)


def _complete(spec: JsonObject) -> None:
    """Set missing times of taints and rewrite quantities in their canonical form."""
    for device in spec.get("devices", []):
        for taint in device.get("taints", []):
            if not taint.get("value"):
                taint.pop("value", None)
            taint.setdefault("timeAdded", datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    for holder, key in _quantities(spec):
        holder[key] = canonical(holder[key])


def _quantities(spec: JsonObject) -> Iterator[tuple[JsonObject, str]]:
    """Yield every place that holds a quantity."""
    counters = [group.get("counters", {}) for group in spec.get("sharedCounters", [])]
    for device in spec.get("devices", []):
        counters += [use.get("counters", {}) for use in device.get("consumesCounters", [])]
        for capacity in device.get("capacity", {}).values():
            yield capacity, "value"
            policy = capacity.get("requestPolicy", {})
            ranges = policy.get("validRange", {})
            yield from ((policy, key) for key in ("default",) if key in policy)
            yield from ((ranges, key) for key in ("min", "max", "step") if key in ranges)
    for group in counters:
        yield from ((counter, "value") for counter in group.values())


def canonical(value: object) -> str:
    """Quantity as the server writes it: `81920Mi` is `80Gi`, `1000` is `1k`; raises ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"quantity {value!r} is not a string")
    amount = Quantity.parse(value)
    if value.endswith("i"):
        return str(amount)
    for power, suffix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        unit = Decimal(10) ** power
        if amount.value and amount.value % unit == 0:
            return f"{int(amount.value / unit)}{suffix}"
    whole = int(amount.value)
    return str(whole) if whole == amount.value else f"{int(amount.value * 1000)}m"


def _without_empty(value: Any, *, keep: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Copy without null, empty list and empty map members, as Go's omitempty leaves them out.

    Members of a map of values (`keep`) stay: an attribute without a value is an error, not absent.
    """
    if isinstance(value, dict):
        pruned = {
            key: _without_empty(item, keep=key in ("attributes", "capacity"))
            for key, item in value.items()
        }
        return {key: item for key, item in pruned.items() if keep or item not in (None, [], {})}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
