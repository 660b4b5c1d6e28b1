"""Every way in which a config can be wrong, from the models: values, neighbours, combinations."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.unit.config.test_opaque_fields import (
    BODY,
    OUT_OF_RANGE,
    OWN,
    SAMPLES,
    is_in_map,
    of_other_types,
)
from tests.unit.config.walk import UNKNOWN, WRONG, Path, changed, without, words

API = "resource.nvidia.com/v1beta1"


class Wrong(NamedTuple):
    """A config, and the field that is wrong in it."""

    config: dict[str, Any]
    field: str


def wrong_configs() -> Iterator[Wrong]:
    for config, path, value in BODY:
        for other in [*of_other_types(path, value), *_out_of_range(path)]:
            yield Wrong(changed(config, path, other), words(path))
        if isinstance(value, str):
            for word in (WRONG, "", value.swapcase() + "!", f" {value}", f"{value}\nx"):
                yield Wrong(changed(config, path, word), words(path))
        if isinstance(value, dict):
            inner = (*path, UNKNOWN)
            yield Wrong(changed(config, inner, 1), words(inner))
        if path[-1] == "strategy":
            yield Wrong(without(config, path), words(path))
    for kind, samples in SAMPLES.items():
        yield from _wrong_heads(samples[0])
        yield from _wrong_pairs(kind)


def _out_of_range(path: Path) -> tuple[Any, ...]:
    if is_in_map(path):
        return OUT_OF_RANGE["defaultPinnedDeviceMemoryLimit"]
    return OUT_OF_RANGE.get(str(path[-1]), ())


def _wrong_heads(config: dict[str, Any]) -> Iterator[Wrong]:
    versions: tuple[Any, ...] = ("zz/v1", "resource.nvidia.com/v1", 1, None, {})
    for value in versions:
        yield Wrong(config | {"apiVersion": value}, "apiVersion")
    kinds: tuple[Any, ...] = ("Other", "gpuconfig", "VfioDeviceConfig", 1, None, ["GpuConfig"])
    for value in kinds:
        yield Wrong(config | {"kind": value}, "kind")
    yield Wrong({key: config[key] for key in config if key != "kind"}, "kind")
    yield Wrong(config | {UNKNOWN: 1}, UNKNOWN)


def _wrong_pairs(kind: str) -> Iterator[Wrong]:
    for strategy in OWN.values():
        for field, owner in OWN.items():
            if owner != strategy:
                sharing = {"strategy": strategy, field: {}}
                config = {"apiVersion": API, "kind": kind, "sharing": sharing}
                yield Wrong(config, f"sharing.{field}")
