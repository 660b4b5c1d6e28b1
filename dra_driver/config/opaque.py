"""Opaque configs that classes and claims carry for this driver: `resource.nvidia.com/v1beta1`.

Schema and precedence as published manifests rely on them: class before claim, the last entry that
matches wins.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_driver.model.claim import AllocatedDevice, DeviceConfig
from dra_driver.model.errors import ConfigInvalid

API_VERSION: Final = "resource.nvidia.com/v1beta1"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimeSlicingConfig(_Strict):
    """How long a program runs before the next one has its turn."""

    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class MpsConfig(_Strict):
    """Limits of the MPS control daemon for every client."""

    defaultActiveThreadPercentage: int | None = None  # noqa: N815 - names of the published API
    defaultPinnedDeviceMemoryLimit: str | None = None  # noqa: N815
    defaultPerDevicePinnedMemoryLimit: Mapping[str, str] | None = None  # noqa: N815
    multiUser: bool = False  # noqa: N815


class GpuSharing(_Strict):
    """How several containers share one GPU."""

    strategy: Literal["TimeSlicing", "MPS"]
    timeSlicingConfig: TimeSlicingConfig | None = None  # noqa: N815
    mpsConfig: MpsConfig | None = None  # noqa: N815


class MigSharing(_Strict):
    """How several containers share one partition."""

    strategy: Literal["TimeSlicing", "MPS"]
    mpsConfig: MpsConfig | None = None  # noqa: N815


class GpuConfig(_Strict):
    """Settings for whole GPUs."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]  # noqa: N815
    kind: Literal["GpuConfig"]
    sharing: GpuSharing | None = None


class MigDeviceConfig(_Strict):
    """Settings for MIG partitions."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]  # noqa: N815
    kind: Literal["MigDeviceConfig"]
    sharing: MigSharing | None = None


_KINDS: Final[Mapping[str, type[GpuConfig] | type[MigDeviceConfig]]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
}


def decode_config(parameters: Mapping[str, Any]) -> GpuConfig | MigDeviceConfig:
    """Read a config strictly; raises ConfigInvalid that names the field and what is allowed."""
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION or kind not in _KINDS:
        raise ConfigInvalid(
            f"opaque config {version}/{kind} is unknown; allowed: {API_VERSION} with kind "
            + " or ".join(_KINDS)
        )
    try:
        return _KINDS[str(kind)].model_validate(dict(parameters))
    except ValidationError as error:
        raise ConfigInvalid(f"{kind}: {_explain(error)}") from error


def resolve_config(
    device: AllocatedDevice,
    kind: type[GpuConfig] | type[MigDeviceConfig],
    configs: tuple[DeviceConfig, ...],
) -> GpuConfig | MigDeviceConfig | None:
    """Config that holds for one allocated device, None when nobody wrote one.

    An entry without requests is for all devices its kind fits; one that names the request must
    fit, else ConfigInvalid.
    """
    for entry in reversed(configs):
        decoded = decode_config(entry.parameters)
        if not entry.requests:
            if isinstance(decoded, kind):
                return decoded
            continue
        if device.request in entry.requests or device.main_request in entry.requests:
            if not isinstance(decoded, kind):
                raise ConfigInvalid(
                    f"cannot apply {decoded.kind} to device {device.device!r} (request: "
                    f"{device.request}): it takes {kind.__name__}"
                )
            return decoded
    return None


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f'strict decoding error: unknown field "{path}"'
    if path == "sharing.timeSlicingConfig.interval":
        return (
            f"{path}: unknown time-slice interval: {first['input']}, supported time-slice "
            "intervals: Default, Short, Medium, Long"
        )
    return f"{path}: {first['msg']}"
