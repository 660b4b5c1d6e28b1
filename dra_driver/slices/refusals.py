"""Finds the devices because of which the API server refuses a slice."""

import re
from typing import Final

from dra_driver.kube import JsonObject, KubeClient, Refused

_DEVICE: Final = re.compile(r"spec\.devices\[(\d+)\]")


def refused_devices(kube: KubeClient, obj: JsonObject, error: Refused) -> dict[str, str]:
    """Names of the devices to leave out, each with the server's words; empty: it is not a device.

    The refusal names them; where it does not, halves of the slice are tried as dry runs.
    """
    devices = obj["spec"]["devices"]
    named: dict[str, str] = {}
    for cause in error.fields:
        match = _DEVICE.match(cause.field)
        if match is not None and int(match[1]) < len(devices):
            words = f"the API server refuses {cause.field}: {cause.message}"
            named.setdefault(devices[int(match[1])]["name"], words)
    if named or _refusal(kube, obj, []) is not None:
        return named
    return _search(kube, obj, devices)


def _search(kube: KubeClient, obj: JsonObject, devices: list[JsonObject]) -> dict[str, str]:
    error = _refusal(kube, obj, devices)
    if error is None:
        return {}
    if len(devices) == 1:
        return {devices[0]["name"]: str(error)}
    middle = len(devices) // 2
    return _search(kube, obj, devices[:middle]) | _search(kube, obj, devices[middle:])


def _refusal(kube: KubeClient, obj: JsonObject, devices: list[JsonObject]) -> Refused | None:
    """Ask for a slice of these devices only; None when the server would take it."""
    trial = {
        **obj,
        "metadata": {"generateName": "probe-"},
        "spec": {**obj["spec"], "devices": devices},
    }
    try:
        kube.create_slice(trial, dry_run=True)
    except Refused as error:
        return error
    return None
