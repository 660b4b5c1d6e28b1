"""Taints of a device: why new claims should not have it."""

from typing import Any, Final

from dra_driver.model import Health, HealthState, PublishedDevice
from dra_driver.slices.rules import MAX_TAINTS, check_taint

JsonObject = dict[str, Any]

_LAYOUT_PENDING: Final = "layout-pending"  # a change of the GPU waits for those who have it now
_ILL: Final = "unhealthy"  # a device whose health gives no usable reason word
_UNMONITORED: Final = "unmonitored"  # without effect: how well the device is, is not known


def taints_of(device: PublishedDevice, driver: str, *, notes: bool) -> list[JsonObject]:
    """Taints with the worst first, one for each key; the API server adds the times.

    With `notes` a taint without effect says of a device that its health is not known.
    """
    taints: dict[str, JsonObject] = {}
    for entry in device.health.entries():
        ill = entry.state is HealthState.UNHEALTHY
        if ill or (entry.reason and notes):
            taint = _ill(driver, entry) if ill else _unmonitored(driver, entry)
            taints.setdefault(taint["key"], taint)
    if device.gpu.held_back:
        pending = _taint(f"{driver}/{_LAYOUT_PENDING}", "", "NoSchedule")
        taints = {pending["key"]: pending, **taints}
    return list(taints.values())[:MAX_TAINTS]


def _ill(driver: str, health: Health) -> JsonObject:
    taint = _taint(f"{driver}/{health.reason}", health.value, "NoSchedule")
    return taint if check_taint(taint) is None else _taint(f"{driver}/{_ILL}", "", "NoSchedule")


def _unmonitored(driver: str, health: Health) -> JsonObject:
    return _taint(f"{driver}/{_UNMONITORED}", health.reason, "None")


def _taint(key: str, value: str, effect: str) -> JsonObject:
    return {"key": key, **({"value": value} if value else {}), "effect": effect}
