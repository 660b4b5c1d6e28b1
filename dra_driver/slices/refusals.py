"""Finds out what it is in a slice that the API server refuses: devices, or shared counters."""

import re
from typing import Final

from dra_driver.kube import JsonObject, KubeClient, Refused

_DEVICE: Final = re.compile(r"spec\.devices\[(\d+)\]")


def refused_devices(kube: KubeClient, obj: JsonObject, error: Refused) -> dict[str, str]:
    """Names of the devices to leave out, each with the server's words; empty: it is not a device.

    The refusal names them; where it does not, halves of the slice are tried as dry runs.
    """
    devices = obj["spec"].get("devices", [])
    named: dict[str, str] = {}
    for cause in error.fields:
        match = _DEVICE.match(cause.field)
        if match is not None and int(match[1]) < len(devices):
            words = f"the API server refuses {cause.field}: {cause.message}"
            named.setdefault(devices[int(match[1])]["name"], words)
    if named or _refusal(kube, obj, []) is not None:
        return named
    return _search(kube, obj, devices)


def refuses_counters(kube: KubeClient, obj: JsonObject) -> bool:
    """Whether it is the shared counters of a slice that the API server refuses."""
    if "sharedCounters" not in obj["spec"]:
        return False
    bare = {key: value for key, value in obj["spec"].items() if key != "sharedCounters"}
    with_counters, without = obj, {**obj, "spec": bare}
    return _refusal(kube, with_counters, []) is not None and _refusal(kube, without, []) is None


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
    spec = {key: value for key, value in obj["spec"].items() if key != "devices"}
    if devices or "sharedCounters" not in spec:
        spec["devices"] = devices  # a slice of counters must not even have an empty list
    trial = {**obj, "metadata": {"generateName": "probe-"}, "spec": spec}
    try:
        kube.create_slice(trial, dry_run=True)
    except Refused as error:
        return error
    return None
