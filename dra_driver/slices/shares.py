"""Shares: devices that several claims have at the same time, and what each claim takes of them.

The scheduler adds up what claims consume of each capacity of such a device, and stops at the
capacity's value (KEP-5075). Of a capacity that a claim does not ask for it takes the policy's
default, and without a default all of it: so every capacity here has one.
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.model import PublishedDevice, Quantity, SharesMode, SharesPolicy
from dra_driver.slices.abilities import ServerAbilities

JsonObject = dict[str, Any]

_MIB: Final = 1 << 20  # memory is handed out in whole MiB
_LEAST_MEMORY: Final = 2 * _MIB  # the API server wants room for one step above the least amount
_MEMORY: Final = "memory"


def wants_shares(device: PublishedDevice) -> bool:
    """Whether the configuration has the device handed out to several claims."""
    policy = device.gpu.policy.shares
    return policy.mode is not SharesMode.NONE and (
        policy.mode is not SharesMode.COUNT or policy.count > 1
    )


def why_not_shared(
    device: PublishedDevice, capacity: Mapping[str, JsonObject], abilities: ServerAbilities
) -> str:
    """Say why a device that is to be shared is not; empty: it is."""
    policy = device.gpu.policy
    if not abilities.multiple_allocations:
        return "the API server keeps no shares; switch on DRAConsumableCapacity"
    if device.is_made and not abilities.counts_shares:
        return (
            "partitions are made of its GPU on request, and schedulers before 1.36.2 (or 1.35.4) "
            "give such a GPU away twice when it is shared as well; upgrade Kubernetes, or set the "
            "partitioning mode to Existing or Static"
        )
    if device.memory_limit < policy.required_limit:
        return (
            f"limits of its memory hold at level {device.memory_limit.value}, and "
            f"requireMemoryLimit is {policy.required_limit.value}"
        )
    if policy.shares.mode is SharesMode.MEMORY:
        return _too_little(capacity, policy.shares)
    return ""


def shared_capacity(
    capacity: Mapping[str, JsonObject], policy: SharesPolicy
) -> dict[str, JsonObject]:
    """Capacity of a shared device: each with what a claim takes that does not ask for it."""
    shared: dict[str, JsonObject] = {
        key: {**value, "requestPolicy": {"default": "0"}} for key, value in capacity.items()
    }
    if _MEMORY in capacity:
        shared[_MEMORY] = _memory(_amount(capacity), policy)
    if policy.mode is SharesMode.COUNT:
        most = str(policy.count)
        rule = {"default": "1", "validRange": {"min": "1", "max": most, "step": "1"}}
        shared["shares"] = {"value": most, "requestPolicy": rule}
    return shared


def _memory(total: int, policy: SharesPolicy) -> JsonObject:
    """Memory of a shared device: handed out by amount, or only noted where a claim asks for it."""
    value, default, least = total, 0, 0
    most = _to_hand_out(total, policy)
    if policy.mode is SharesMode.MEMORY:
        value, default, least = most, most, _MIB
    rule: JsonObject = {"default": _text(default)}
    if most:
        rule["validRange"] = {"min": _text(least), "max": _text(most), "step": _text(_MIB)}
    return {"value": _text(value), "requestPolicy": rule}


def _too_little(capacity: Mapping[str, JsonObject], policy: SharesPolicy) -> str:
    """Say why there is no memory to hand out; empty: there is."""
    if _MEMORY not in capacity:
        return "how much memory it has is not known, and it is shared by memory"
    total = _amount(capacity)
    if _to_hand_out(total, policy) >= _LEAST_MEMORY:
        return ""
    return f"a reserve of {_text(policy.reserve_bytes)} leaves too little of its {_text(total)}"


def _to_hand_out(total: int, policy: SharesPolicy) -> int:
    """Whole MiB of so much memory that claims can have."""
    left = total - (policy.reserve_bytes if policy.mode is SharesMode.MEMORY else 0)
    return left - left % _MIB


def _amount(capacity: Mapping[str, JsonObject]) -> int:
    return int(Quantity.parse(capacity[_MEMORY]["value"]))


def _text(amount: int) -> str:
    return str(Quantity.of(amount))
