"""How sharing is written, in configs of claims and in the node configuration alike."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from dra_driver.config.amounts import ClientLimit, Room
from dra_driver.config.strict import NullableModel, shown
from dra_driver.config.told import Told
from dra_driver.model import MpsSettings, SharingSettings, Strategy, TimeSlice

_STRATEGIES: Final = tuple(strategy.value for strategy in Strategy)
_INTERVALS: Final = tuple(interval.word for interval in TimeSlice)
_MOST_PERCENT: Final = 100
_LONGEST_LABEL: Final = 255
_ORDINAL: Final = r"(?:0|[1-9][0-9]{0,2})"
_UUID: Final = r"(?:GPU|MIG)-[0-9A-Za-z-]{1,64}"
_LABEL: Final = r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_.]+:[a-zA-Z0-9_.]+(?::[a-zA-Z0-9_.,:-]+)?"


def _strategy(value: Any) -> Any:  # noqa: ANN401 - whatever stands there
    if isinstance(value, str) and value not in _STRATEGIES:
        raise ValueError(
            f"unknown GPU sharing strategy: {_word(value)}, supported GPU sharing strategies: "
            + ", ".join(_STRATEGIES)
        )
    return value


def _interval(value: Any) -> Any:  # noqa: ANN401 - whatever stands there
    if isinstance(value, str) and value not in _INTERVALS:
        raise ValueError(
            f"unknown time-slice interval: {_word(value)}, supported time-slice intervals: "
            + ", ".join(_INTERVALS)
        )
    return value


def _percentage(number: int) -> int:
    if number < 0:
        raise ValueError(
            f"active thread percentage must not be negative: {number} is not allowed; "
            "allowed: 0 or more"
        )
    if number > _MOST_PERCENT:
        raise ValueError(
            f"active thread percentage must not be greater than 100: {number} is not allowed; "
            "allowed: 100 or less"
        )
    return number


def _device_key(text: str) -> str:
    if re.fullmatch(f"{_ORDINAL}|{_UUID}", text, re.ASCII):
        return text
    if re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        problem = "invalid device index"
    else:
        problem = "invalid device: unable to parse key as an integer"
    raise ValueError(
        f"{problem}: {_word(text)}; allowed: the place of a device among the claim's, from 0 in "
        "the order of their UUIDs, or a UUID such as GPU-… or MIG-…"
    )


def _label(text: str) -> str:
    if not re.fullmatch(_LABEL, text, re.ASCII) or len(text) > _LONGEST_LABEL:
        raise ValueError(
            f"{shown(text)} is not an SELinux label such as system_u:object_r:container_file_t:s0"
        )
    return text


def _word(text: str) -> str:
    """Repeat a word as it was written, on one line and in few letters."""
    written = shown(text)
    return text if written == f"'{text}'" else written


IntervalWord: TypeAlias = Annotated[
    Literal["Default", "Short", "Medium", "Long"], BeforeValidator(_interval)
]
StrategyWord: TypeAlias = Annotated[Literal["TimeSlicing", "MPS"], BeforeValidator(_strategy)]
_Percentage = Annotated[
    int,
    AfterValidator(_percentage),
    Field(json_schema_extra={"minimum": 0, "maximum": _MOST_PERCENT}),
    Told(values="`0` to `100`"),
]
_DeviceKey = Annotated[
    str,
    AfterValidator(_device_key),
    Field(json_schema_extra={"pattern": f"^({_ORDINAL}|{_UUID})$"}),
    Told(values="device"),
]
_LimitsByDevice = Annotated[
    Mapping[_DeviceKey, ClientLimit], Field(json_schema_extra={"additionalProperties": False})
]
_SeLinuxLabel = Annotated[
    str,
    AfterValidator(_label),
    Field(json_schema_extra={"pattern": f"^{_LABEL}$", "maxLength": _LONGEST_LABEL}),
    Told(values="such as `system_u:object_r:container_file_t:s0`"),
]


class MpsDefaults(NullableModel):
    """What a control daemon of MPS is told, whichever devices it has."""

    default_active_thread_percentage: _Percentage | None = Field(
        default=None, description="Part of a device's threads that each client may use."
    )
    default_pinned_device_memory_limit: ClientLimit | None = Field(
        default=None,
        description="Memory that each client may have of each device; rounded down to whole MiB.",
    )
    multi_user: bool = Field(
        default=False,
        description="Clients of several user ids are served at the same time, not one user after "
        "the other.",
    )
    shm_size: Annotated[Room | None, Told(default="64Mi")] = Field(
        default=None,
        description="Size of the `/dev/shm` that the clients have together (an addition of this "
        "driver).",
    )
    se_linux_label: _SeLinuxLabel | None = Field(
        default=None,
        description="Label of the folders that the clients share (an addition of this driver).",
    )

    def settings(self) -> MpsSettings:
        """Give what the daemon is told, the same for equal wishes however they are written."""
        return MpsSettings(
            thread_percentage=self.default_active_thread_percentage,
            pinned_memory_limit=self.default_pinned_device_memory_limit,
            multi_user=self.multi_user,
            shm_size=self.shm_size,
            selinux_label=self.se_linux_label or "",
        )


class MpsConfig(MpsDefaults):
    """What a control daemon of MPS is told for the devices of one claim."""

    default_per_device_pinned_memory_limit: _LimitsByDevice | None = Field(
        default=None,
        description="The same for single devices; it wins over the default.",
    )

    def settings(self) -> MpsSettings:
        """Give what the daemon is told, with the limits of single devices."""
        limits = sorted((self.default_per_device_pinned_memory_limit or {}).items())
        return replace(super().settings(), per_device_limits=tuple(limits))


def sharing_settings(
    strategy: str, interval: str | None = None, mps: MpsDefaults | None = None
) -> SharingSettings:
    """Fill in what is not given."""
    if strategy == Strategy.MPS.value:
        return SharingSettings(Strategy.MPS, mps=(mps or MpsDefaults()).settings())
    return SharingSettings(Strategy.TIME_SLICING, TimeSlice[(interval or "Default").upper()])
