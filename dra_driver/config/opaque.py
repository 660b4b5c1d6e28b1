"""Opaque configs that classes and claims carry for this driver: `resource.nvidia.com/v1beta1`.

Fields and messages are those that published manifests and their authors know; fields of ours are
optional. What depends on the hardware is checked when a claim is prepared (`on_hardware`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from dra_driver.config.sharing import IntervalWord, MpsConfig, StrategyWord, sharing_settings
from dra_driver.config.strict import Fault, NullableModel, and_more, validated
from dra_driver.config.yaml_text import Path, path_text
from dra_driver.model import SharingSettings
from dra_driver.model.errors import ConfigInvalid

API_VERSION: Final = "resource.nvidia.com/v1beta1"


def _only_with(strategy: str, field: str) -> dict[str, Any]:
    """Rule of JSON Schema: another strategy has no such field."""
    return {
        "if": {"properties": {"strategy": {"not": {"const": strategy}}}},
        "then": {"properties": {field: {"type": "null"}}},
    }


class TimeSlicingConfig(NullableModel):
    """How long a program runs before the next one has its turn."""

    interval: IntervalWord = Field(
        default="Default", description="How long a program runs before the next."
    )


class GpuSharing(NullableModel):
    """How several containers share one GPU."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _only_with("TimeSlicing", "timeSlicingConfig"),
                _only_with("MPS", "mpsConfig"),
            ]
        }
    )

    strategy: StrategyWord = Field(
        description="`TimeSlicing`: one program after the other. `MPS`: several at the same time, "
        "by a control daemon; Volta and later."
    )
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class MigSharing(NullableModel):
    """How several containers share one partition; time-slicing changes nothing there."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_only_with("MPS", "mpsConfig")]})

    strategy: StrategyWord = Field(
        description="`TimeSlicing`: one program after the other, which changes nothing on a "
        "partition. `MPS`: several at the same time, by a control daemon."
    )
    mps_config: MpsConfig | None = None


class GpuConfig(NullableModel):
    """Settings for whole GPUs; without `sharing` one claim has them and nothing is set."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: GpuSharing | None = None

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield settings that are not those of the strategy."""
        sharing = self.sharing
        if sharing is None:
            return
        if sharing.strategy == "MPS" and sharing.time_slicing_config is not None:
            yield (
                ("sharing", "timeSlicingConfig"),
                "cannot use TimeSlicingConfig with the 'MPS' strategy; allowed: mpsConfig",
            )
        if sharing.strategy == "TimeSlicing" and sharing.mps_config is not None:
            yield (
                ("sharing", "mpsConfig"),
                "cannot use MpsConfig with the 'TimeSlicing' strategy; allowed: timeSlicingConfig",
            )

    def settings(self) -> SharingSettings | None:
        """Give what is wanted of each GPU; None: nothing is set."""
        sharing = self.sharing
        if sharing is None:
            return None
        time_slicing = sharing.time_slicing_config or TimeSlicingConfig()
        return sharing_settings(sharing.strategy, time_slicing.interval, sharing.mps_config)


class MigDeviceConfig(NullableModel):
    """Settings for MIG partitions; without `sharing` nothing is set."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["MigDeviceConfig"]
    sharing: MigSharing | None = None

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield settings that are not those of the strategy."""
        sharing = self.sharing
        if sharing and sharing.strategy == "TimeSlicing" and sharing.mps_config is not None:
            yield (
                ("sharing", "mpsConfig"),
                "cannot use MpsConfig with the 'TimeSlicing' strategy; allowed: no further field",
            )

    def settings(self) -> SharingSettings | None:
        """Give what is wanted of each partition; None: nothing is set."""
        if self.sharing is None:
            return None
        found = sharing_settings(self.sharing.strategy, mps=self.sharing.mps_config)
        return replace(found, interval=None)


Config: TypeAlias = GpuConfig | MigDeviceConfig
KINDS: Final[Mapping[str, type[Config]]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
}


def decode_config(parameters: Mapping[str, Any]) -> Config:
    """Read a config strictly; raises ConfigInvalid that names the field and what is allowed."""
    head = _wrong_head(parameters)
    if head is not None:
        raise ConfigInvalid(head.words)
    found, wrong = examine_config(parameters)
    if found is None:
        first = wrong[0]
        place = "" if first.is_unknown else f"{path_text(first.path) or 'the config'}: "
        raise ConfigInvalid(f"{parameters['kind']}: {place}{first.words}{and_more(wrong)}")
    return found


def examine_config(parameters: Mapping[str, Any]) -> tuple[Config | None, list[Fault]]:
    """Give the config, or all that is wrong with it; paths start at the config."""
    head = _wrong_head(parameters)
    if head is not None:
        return None, [head]
    found, wrong = validated(dict(parameters), KINDS[parameters["kind"]])
    return found, [_in_known_words(fault) for fault in wrong]


def opaque_schema(kind: str | None = None) -> dict[str, Any]:
    """JSON Schema of one kind, or of all."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if kind is not None:
        return {**head, **KINDS[kind].model_json_schema(by_alias=True)}
    schema = TypeAdapter(Config).json_schema(by_alias=True)
    return {**head, **schema}


def _wrong_head(parameters: Mapping[str, Any]) -> Fault | None:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version == API_VERSION and isinstance(kind, str) and kind in KINDS:
        return None
    return Fault(
        ("kind",) if version == API_VERSION else ("apiVersion",),
        f"opaque config {version!s:.80}/{kind!s:.80} is unknown; allowed: {API_VERSION} with "
        f"kind {' or '.join(KINDS)}",
    )


def _in_known_words(fault: Fault) -> Fault:
    """Say of an unknown field what published tools look for."""
    if not fault.is_unknown:
        return fault
    allowed = fault.words.removeprefix("unknown field")
    place = path_text(fault.path)
    return replace(fault, words=f'strict decoding error: unknown field "{place}"{allowed}')
