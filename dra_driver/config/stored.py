"""Settings of sharing as records keep them: in the words of the configs that ask for them.

What was written by another release is read as far as this one knows it. Whoever gives a device up
must be able to do so, whatever the record says (field report dra #578).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dra_driver.config.amounts import text_of
from dra_driver.config.opaque import GpuSharing
from dra_driver.config.sharing import sharing_settings
from dra_driver.config.strict import validated
from dra_driver.config.yaml_text import Path
from dra_driver.model import MpsSettings, SharingSettings


def stored_form(settings: SharingSettings) -> dict[str, Any]:
    """Give the settings as `sharing` of a config has them, without what is the default."""
    found: dict[str, Any] = {"strategy": settings.strategy.value}
    if settings.interval is not None:
        found["timeSlicingConfig"] = {"interval": settings.interval.word}
    if settings.mps is not None:
        found["mpsConfig"] = mps_form(settings.mps)
    return found


def mps_form(mps: MpsSettings) -> dict[str, Any]:
    """Give what differs from the default, in the words of configs."""
    limit, shm, limits = mps.pinned_memory_limit, mps.shm_size, mps.per_device_limits
    fields = {
        "defaultActiveThreadPercentage": mps.thread_percentage,
        "defaultPinnedDeviceMemoryLimit": None if limit is None else text_of(limit),
        "defaultPerDevicePinnedMemoryLimit": {k: text_of(v) for k, v in limits} or None,
        "multiUser": mps.multi_user or None,
        "shmSize": None if shm is None else text_of(shm),
        "seLinuxLabel": mps.selinux_label or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def read_stored(data: object) -> SharingSettings | None:
    """Read what a record has; fields and values that this release does not know are left out.

    None: nothing is known of it, so nothing was set by a strategy of this release.
    """
    while True:
        found, wrong = validated(data, GpuSharing)
        if found is not None:
            break
        smaller = data
        for fault in wrong:
            smaller = _without(smaller, fault.path)
        if smaller == data:
            return None
        data = smaller
    slices = found.time_slicing_config
    settings = sharing_settings(
        found.strategy, slices.interval if slices else None, found.mps_config
    )
    return settings if slices else replace(settings, interval=None)


def differences(mine: SharingSettings | None, theirs: SharingSettings | None) -> Iterator[str]:
    """Say in which settings two claims do not agree: `sharing.strategy: MPS against not set`."""
    one = dict(_leaves(stored_form(mine), ("sharing",)) if mine else ())
    other = dict(_leaves(stored_form(theirs), ("sharing",)) if theirs else ())
    for path in dict.fromkeys((*one, *other)):
        if one.get(path) != other.get(path):
            yield f"{path}: {one.get(path, 'not set')} against {other.get(path, 'not set')}"


def _leaves(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield ".".join((*path, name)), text


def _without(data: Any, path: Path) -> Any:  # noqa: ANN401 - plain data
    """Copy without what stands at a path."""
    if not path or not isinstance(data, dict) or path[0] not in data:
        return data
    first, *rest = path
    if rest:
        return {**data, first: _without(data[first], tuple(rest))}
    return {key: value for key, value in data.items() if key != first}
