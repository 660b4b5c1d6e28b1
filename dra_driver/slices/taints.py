"""Taints of a device: why new claims should not have it."""

from typing import Any, Final

from dra_driver.model import GpuPolicy, Health, HealthState, PublishedDevice
from dra_driver.slices.rules import MAX_TAINTS, check_taint

JsonObject = dict[str, Any]

_LAYOUT_PENDING: Final = "layout-pending"  # a change of the GPU waits for those who have it now
_ILL: Final = "unhealthy"  # a device whose health gives no usable reason word
_UNMONITORED: Final = "unmonitored"  # without effect: how well the device is, is not known
_NO_EFFECT: Final = "None"


def taints_of(device: PublishedDevice, driver: str, *, notes: bool) -> list[JsonObject]:
    """Taints with the worst first, one for each key; the API server adds the times.

    With `notes` taints without effect are possible. They say of a device that its health is not
    known, or that it is sick where the configuration wants no more than that.
    """
    effect = device.gpu.policy.taint_effect
    taints: dict[str, JsonObject] = {}
    for entry in device.health.entries():
        ill = entry.state is HealthState.UNHEALTHY
        if (effect != _NO_EFFECT or notes) if ill else (entry.reason and notes):
            taint = _ill(driver, entry, effect) if ill else _unmonitored(driver, entry)
            taints.setdefault(taint["key"], taint)
    if device.gpu.held_back:
        pending = _taint(f"{driver}/{_LAYOUT_PENDING}", "", "NoSchedule")
        taints = {pending["key"]: pending, **taints}
    return list(taints.values())[:MAX_TAINTS]


def keeps_away(health: Health, policy: GpuPolicy) -> bool:
    """Whether new claims are not to get what has that health: `None` in the policy lets them."""
    return not health.usable and policy.taint_effect != _NO_EFFECT


def _ill(driver: str, health: Health, effect: str) -> JsonObject:
    taint = _taint(f"{driver}/{health.reason}", health.value, effect)
    return taint if check_taint(taint) is None else _taint(f"{driver}/{_ILL}", "", effect)


def _unmonitored(driver: str, health: Health) -> JsonObject:
    return _taint(f"{driver}/{_UNMONITORED}", health.reason, _NO_EFFECT)


def _taint(key: str, value: str, effect: str) -> JsonObject:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}
