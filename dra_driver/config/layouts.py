"""Layouts: which partitions GPUs are to have, in mig-parted's file format (api/spec/v1/spec.go)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from dra_driver.config.fitting import fit, most_that_fit
from dra_driver.config.strict import Several, StrictModel, read_strictly, shown
from dra_driver.config.told import Told
from dra_driver.model import Gpu, Slot
from dra_driver.model.errors import SettingInvalid

ALL: Final = "all"
_PROFILE: Final = r"(?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-zA-Z][a-zA-Z0-9.,]*)*"
_DEVICE_ID: Final = r"0[xX][0-9a-fA-F]{1,8}"
_SHIPPED: Final = re.compile(r"all-(?:disabled|enabled|balanced|\d+g\.\d+gb(?:[.-][a-zA-Z0-9.]+)?)")

# Of GPUs whose largest profile has so many slices: slices of a profile, and how many of it
# (pkg/mig/builder/balanced.go).
_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


def _profile_name(text: str) -> str:
    if not re.fullmatch(_PROFILE, text, re.ASCII):
        raise ValueError(f"{text!r} is not a MIG profile such as 1g.10gb or 1g.10gb+me")
    return text


def _device_id(text: str) -> str:
    if not re.fullmatch(_DEVICE_ID, text, re.ASCII):
        raise ValueError(f"{text!r} is not a PCI device id such as 0x20B010DE")
    return text


def _as_list(value: Any) -> Any:  # noqa: ANN401 - whatever stands there
    return [value] if isinstance(value, str) else value


def _all_or_list(value: Any) -> Any:  # noqa: ANN401 - whatever stands there
    if isinstance(value, list):
        return value
    if value != ALL:
        raise ValueError(f"{shown(value)} is not allowed; allowed: all, or a list of whole numbers")
    return None


_Index = Annotated[int, Field(ge=0, le=255)]
_DeviceId = Annotated[str, AfterValidator(_device_id), Told(values="`0x20B010DE`")]
_Profile = Annotated[str, AfterValidator(_profile_name), Told(values="profile")]
_Count = Annotated[int, Field(ge=0, le=64)]
_OneOrMoreIds = BeforeValidator(_as_list, json_schema_input_type=str | list[str])
_AllOrIndexes = BeforeValidator(_all_or_list, json_schema_input_type=Literal["all"] | list[_Index])


def _with_dashes(name: str) -> str:
    return name.replace("_", "-")


class LayoutEntry(StrictModel):
    """What some GPUs are to have."""

    model_config = ConfigDict(alias_generator=_with_dashes)

    device_filter: Annotated[
        Several[_DeviceId],
        _OneOrMoreIds,
        Told(values="one or a list of PCI device ids, such as `0x20B010DE`"),
    ] = Field(default=(), description="Of GPUs of these models; empty: of any.")
    devices: Annotated[
        Several[_Index] | None, _AllOrIndexes, Told(values="`all`, or a list of `0` to `255`")
    ] = Field(description="Places in PCI order.")
    mig_enabled: bool = Field(description="Whether they have MIG mode.")
    mig_devices: Mapping[_Profile, _Count] | None = Field(
        default=None,
        description="Profiles, and how many of each; required where `mig-enabled` is true.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mig_enabled and self.mig_devices is None:
            raise ValueError("mig-devices is missing; it is required where mig-enabled is true")
        if not self.mig_enabled and self.mig_devices:
            raise ValueError("mig-devices is not allowed where mig-enabled is false")
        return self

    def matches(self, gpu: Gpu, index: int) -> bool:
        """Whether this entry is about the GPU with that place in PCI order."""
        if self.devices is not None and index not in self.devices:
            return False
        ids = [int(text, 16) for text in self.device_filter]
        return not ids or gpu.pci_device_id in ids

    def document(self) -> dict[str, Any]:
        """Give the entry as it stands in a file."""
        found: dict[str, Any] = {}
        if self.device_filter:
            found["device-filter"] = list(self.device_filter)
        found["devices"] = ALL if self.devices is None else list(self.devices)
        found["mig-enabled"] = self.mig_enabled
        if self.mig_devices is not None:
            found["mig-devices"] = dict(self.mig_devices)
        return found


Layout: TypeAlias = Annotated[Several[LayoutEntry], Field(min_length=1)]
LayoutName: TypeAlias = Annotated[str, Field(min_length=1)]


class LayoutFile(StrictModel):
    """A file of mig-parted."""

    model_config = ConfigDict(alias_generator=_with_dashes)

    version: Literal["v1"]
    mig_configs: Annotated[Mapping[LayoutName, Layout], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a layout wants of one GPU."""

    mig_enabled: bool
    partitions: Mapping[str, int] = field(default_factory=dict)  # profile name: how many


def load_layouts(text: str) -> Mapping[str, tuple[LayoutEntry, ...]]:
    """Read a file of mig-parted; raises SettingInvalid with line, field and what is allowed."""
    return read_strictly(text, LayoutFile).mig_configs


def is_shipped(name: str) -> bool:
    """Whether a layout of that name needs no definition: it follows from the GPU's profiles."""
    return _SHIPPED.fullmatch(name) is not None


def resolve_layout(
    name: str, layouts: Mapping[str, tuple[LayoutEntry, ...]], gpu: Gpu, index: int
) -> Wanted | None:
    """Find out what a layout wants of the GPU with that place in PCI order; None: nothing.

    Of entries that match the last one counts, as when mig-parted applies them in turn. Raises
    SettingInvalid when the GPU cannot have it; the message says what it can have.
    """
    entries = layouts.get(name)
    if entries is None:
        return _shipped(name, gpu)
    entry = next((entry for entry in reversed(entries) if entry.matches(gpu, index)), None)
    if entry is None:
        return None
    counts = {profile: count for profile, count in (entry.mig_devices or {}).items() if count}
    wanted = Wanted(entry.mig_enabled, counts)
    _check(name, wanted, gpu)
    return wanted


def shipped_layouts(gpu: Gpu) -> Mapping[str, Wanted]:
    """All layouts that need no definition, for one GPU."""
    found = {"all-disabled": Wanted(mig_enabled=False)}
    if not gpu.mig_capable:
        return found
    found["all-enabled"] = Wanted(mig_enabled=True)
    for profile in dict.fromkeys(slot.profile.name for slot in gpu.slots):
        count = most_that_fit(profile, gpu.slots)
        found[f"all-{profile.replace('+', '.')}"] = Wanted(
            mig_enabled=True, partitions={profile: count}
        )
    balanced = _balanced(gpu.slots)
    if balanced:
        found["all-balanced"] = Wanted(mig_enabled=True, partitions=balanced)
    return found


def _shipped(name: str, gpu: Gpu) -> Wanted:
    available = shipped_layouts(gpu)
    if name not in available:
        raise SettingInvalid(
            f"layout {name}: {gpu.uuid} ({gpu.product_name}) cannot have it; it can have "
            + ", ".join(available)
        )
    return available[name]


def _check(name: str, wanted: Wanted, gpu: Gpu) -> None:
    """Raise SettingInvalid when the GPU has no MIG, not such profiles, or not so much room."""
    if not wanted.mig_enabled:
        return
    who = f"layout {name}: {gpu.uuid} ({gpu.product_name})"
    if not gpu.mig_capable:
        raise SettingInvalid(f"{who} has no MIG; restrict the layout by device-filter or devices")
    offered = dict.fromkeys(slot.profile.name for slot in gpu.slots)
    for profile in wanted.partitions:
        if profile not in offered:
            raise SettingInvalid(
                f"{who} offers no profile {profile}; it offers {', '.join(offered)}"
            )
    if fit(wanted.partitions, gpu.slots) is None:
        counts = ", ".join(f"{count} x {profile}" for profile, count in wanted.partitions.items())
        raise SettingInvalid(f"{who} has no room for {counts}")


def _balanced(slots: Sequence[Slot]) -> Mapping[str, int]:
    """Partitions of three sizes that fill a GPU; empty: not known for such a GPU."""
    most: dict[int, tuple[int, str]] = {}  # slices of a profile: the one that fits most often
    for profile in dict.fromkeys(slot.profile.name for slot in slots):
        plain = re.fullmatch(r"(\d+)g\.\d+gb", profile)
        if plain:
            size, count = int(plain[1]), most_that_fit(profile, slots)
            most[size] = max(most.get(size, (0, "")), (count, profile), key=lambda each: each[0])
    formula = _BALANCED.get(max(most, default=0), {})
    if not all(size in most for size in formula):
        return {}
    return {most[size][1]: count for size, count in formula.items()}
