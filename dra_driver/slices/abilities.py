"""What the API server at hand keeps of a ResourceSlice.

Fields of features that are switched off are dropped without a word, and what was relied on is then
not there: partitions without counters are allocated twice over, taints that were dropped leave sick
devices in use. So the server is asked by a dry-run create of a slice that uses everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Version = tuple[int, int, int]
JsonObject = dict[str, Any]

_SPLIT_COUNTERS: Final = (1, 35)  # from here on counters stand in a slice of their own
_TAINTS_WITHOUT_EFFECT: Final = (1, 35)  # from here on taints may have the effect None
_COUNTS_SHARES: Final = (1, 36, 2)
_COUNTS_SHARES_BEFORE: Final = (1, 35, 4)  # the same correction in an older release
_SET: Final = "probe"
_COUNTERS: Final = {"units": {"value": "1"}}


@dataclass(frozen=True, slots=True)
class ServerAbilities:
    """Optional fields that this server keeps, and its release."""

    version: Version = (0, 0, 0)
    taints: bool = False
    counters: bool = False
    multiple_allocations: bool = False

    @property
    def taints_without_effect(self) -> bool:
        """Whether a taint may only inform."""
        return self.taints and self.version[:2] >= _TAINTS_WITHOUT_EFFECT

    @property
    def counters_apart(self) -> bool:
        """Whether counters stand in slices without devices; before, beside those that use them."""
        return self.version[:2] >= _SPLIT_COUNTERS

    @property
    def counts_shares(self) -> bool:
        """Whether schedulers of this release count shared counters right for shared devices.

        Before, they did so only for devices that one claim has alone, and gave the same part of a
        GPU away twice (corrected in 1.36.2 and, for clusters with the gates on, in 1.35.4).
        """
        return self.version >= _COUNTS_SHARES or (
            self.version[:2] == _COUNTS_SHARES_BEFORE[:2] and self.version >= _COUNTS_SHARES_BEFORE
        )

    def dropped(self) -> tuple[str, ...]:
        """Feature gates that seem to be off."""
        gates = {
            "DRADeviceTaints": self.taints,
            "DRAPartitionableDevices": self.counters,
            "DRAConsumableCapacity": self.multiple_allocations,
        }
        return tuple(gate for gate, kept in gates.items() if not kept)


def probe_slice(driver: str, node: str, pool: str, version: Version) -> JsonObject:
    """Slice that uses every optional field, valid whether or not the server keeps them."""
    spec: JsonObject = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": "taint", "taints": [{"key": f"{driver}/probe", "effect": "NoSchedule"}]},
            {
                "name": "counter",
                "consumesCounters": [{"counterSet": _SET, "counters": _COUNTERS}],
            },
            {
                "name": "share",
                "allowMultipleAllocations": True,
                "capacity": {"shares": {"value": "2", "requestPolicy": {"default": "1"}}},
            },
        ],
    }
    if version[:2] < _SPLIT_COUNTERS:
        spec["sharedCounters"] = [{"name": _SET, "counters": _COUNTERS}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "probe-"},
        "spec": spec,
    }


def abilities_from(answer: Mapping[str, Any], version: Version) -> ServerAbilities:
    """Read off a probe's answer what was kept."""
    devices = {device.get("name"): device for device in answer.get("spec", {}).get("devices") or ()}
    capacity = devices.get("share", {}).get("capacity", {}).get("shares", {})
    return ServerAbilities(
        version=version,
        taints=bool(devices.get("taint", {}).get("taints")),
        counters=bool(devices.get("counter", {}).get("consumesCounters")),
        multiple_allocations=bool(devices.get("share", {}).get("allowMultipleAllocations"))
        and "requestPolicy" in capacity,
    )


def without_dropped(
    abilities: ServerAbilities, sent: Mapping[str, Any], answer: Mapping[str, Any]
) -> ServerAbilities:
    """Abilities after a write: what was sent and did not come back is not relied on any more."""
    answered = {device["name"]: device for device in answer.get("devices") or ()}

    def kept(key: str) -> bool:
        return all(
            key not in device or key in answered.get(device["name"], {})
            for device in sent.get("devices") or ()
        )

    has_sets = "sharedCounters" not in sent or bool(answer.get("sharedCounters"))
    return ServerAbilities(
        version=abilities.version,
        taints=abilities.taints and kept("taints"),
        counters=abilities.counters and kept("consumesCounters") and has_sets,
        multiple_allocations=abilities.multiple_allocations and kept("allowMultipleAllocations"),
    )
