"""When each taint began: that must not change when a slice is written again.

Without a time the server takes the present, and tolerations of some seconds start again. The slices
may have been deleted in between, as at every start of the kubelet, so the times are kept here too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from dra_driver.slices.builder import PoolPlan, SlicePlan

JsonObject = dict[str, Any]
_Key: TypeAlias = tuple[str, str, str, str]


class TaintTimes:
    """Times of the taints that this node has now; used by one thread."""

    def __init__(self) -> None:
        """Know none yet."""
        self._times: dict[_Key, str] = {}

    def note(self, slices: Iterable[Mapping[str, Any]]) -> None:
        """Learn from slices as the API server has them; the earliest time counts."""
        for obj in slices:
            for device in obj.get("spec", {}).get("devices") or ():
                for taint in device.get("taints") or ():
                    if time := taint.get("timeAdded"):
                        key = _key(device, taint)
                        self._times[key] = min(time, self._times.get(key, time))

    def applied(self, plan: PoolPlan) -> PoolPlan:
        """Give the plan's taints the times they began; those of taints that ended are forgotten."""
        wanted = {
            _key(device, taint)
            for part in plan.slices
            for device in part.devices
            for taint in device.get("taints", ())
        }
        self._times = {key: time for key, time in self._times.items() if key in wanted}
        if not self._times:
            return plan
        return replace(plan, slices=tuple(self._timed(part) for part in plan.slices))

    def _timed(self, part: SlicePlan) -> SlicePlan:
        if not part.devices:
            return part  # a slice of counters must not even have an empty list of devices
        devices = [
            {**device, "taints": [self._timed_taint(device, taint) for taint in device["taints"]]}
            if "taints" in device
            else device
            for device in part.devices
        ]
        return replace(part, spec={**part.spec, "devices": devices})

    def _timed_taint(self, device: JsonObject, taint: JsonObject) -> JsonObject:
        time = self._times.get(_key(device, taint))
        return {**taint, "timeAdded": time} if time else taint


def _key(device: Mapping[str, Any], taint: Mapping[str, Any]) -> _Key:
    words = (device.get("name"), taint.get("key"), taint.get("value"), taint.get("effect"))
    name, key, value, effect = (str(word or "") for word in words)
    return name, key, value, effect
