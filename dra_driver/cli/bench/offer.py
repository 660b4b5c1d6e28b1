"""Which of the published devices claims are measured with, and which the live claims hold."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any, Final, TypeAlias

from dra_driver.kube import JsonObject
from dra_driver.model import Quantity
from dra_driver.model.errors import SettingInvalid

GPU: Final = "gpu"
MIG: Final = "mig"

_Group: TypeAlias = dict[str, list[str]]  # profile: partitions that stand beside each other


@dataclass(frozen=True, slots=True)
class Offer:
    """Devices for claims that the benchmark writes."""

    what: str  # each is, for people
    measured: tuple[str, ...]  # one claim each at a time, which nobody else holds
    live: tuple[str, ...]  # for live claims
    shared: bool  # live claims take them as often as one likes; else once each
    by_shares: bool = False  # each claim has a share, so none needs admin access

    @property
    def admin(self) -> bool:
        """Whether claims that have a device beside others have it with admin access."""
        return self.shared and not self.by_shares

    def check_live(self, numbers: Sequence[int]) -> None:
        """Raise SettingInvalid when so many live claims find no room."""
        most = max(numbers, default=0)
        if not self.shared and most > len(self.live):
            raise SettingInvalid(
                f"--live {most}: beside the GPU that is measured there is room for "
                f"{len(self.live)}, each with {self.what}; give fewer, or have more GPUs"
            )

    def for_live(self) -> Iterator[str]:
        """Yield a device for each further live claim."""
        return cycle(self.live) if self.shared else iter(self.live)

    def at_once(self, width: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Devices of `width` claims at once: those that are theirs alone, and shared ones.

        Where nothing may be shared there are fewer.
        """
        own = self.measured[:width]
        if not self.shared:
            return own, ()
        return own, tuple(islice(cycle(self.measured), width - len(own)))


def whole_devices(slices: Iterable[JsonObject]) -> Offer | None:
    """Devices of type `gpu`; all where the driver has no such type; None where there is none."""
    found = list(_devices(slices))
    whole = [device for device in found if _text(device, "type") == GPU]
    names = tuple(device["name"] for device in whole or found)
    return Offer("a whole device", names, names, shared=True) if names else None


def shares(slices: Iterable[JsonObject], most: int | None) -> Offer | None:
    """Shares of whole devices, up to `most` live ones of each; None where nothing is shared."""
    names = tuple(
        device["name"]
        for device in _devices(slices)
        if device.get("allowMultipleAllocations") and _text(device, "type") in (GPU, "")
    )
    if not names:
        return None
    live = names if most is None else names * most
    return Offer("a share of a device", names, live, shared=most is None, by_shares=True)


def partitions(slices: Sequence[JsonObject]) -> Offer | None:
    """Partitions of the profile of which a GPU holds most: the last GPU's are measured.

    Which stand beside each other say the counters that they consume; what consumes none exists.
    None where there is no partition.
    """
    groups = _side_by_side(slices)
    sizes: dict[str, int] = {}
    for group in groups.values():
        for profile, names in group.items():
            sizes[profile] = max(len(names), sizes.get(profile, 0))
    if not sizes:
        return None
    most = max(sizes, key=lambda profile: sizes[profile])  # of equals the first that is published
    having = [group[most] for group in groups.values() if most in group]
    live = tuple(chain.from_iterable(having[:-1]))
    return Offer(f"a partition {most}", tuple(having[-1]), live, shared=False)


def _side_by_side(slices: Sequence[JsonObject]) -> dict[str, _Group]:
    """Partitions that can all be allocated together, by GPU and then by profile."""
    free = _counters(slices)
    groups: dict[str, _Group] = {}
    used: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for device in _devices(slices):
        if _text(device, "type") != MIG:
            continue
        parent, profile = _text(device, "parentUUID"), _text(device, "profile")
        taken = used.setdefault((parent, profile), Counter())
        needs = _needs(device)
        if all(taken[key] + need <= free.get(key, 0) for key, need in needs.items()):
            taken.update(needs)
            groups.setdefault(parent, {}).setdefault(profile, []).append(device["name"])
    return groups


def _counters(slices: Iterable[JsonObject]) -> dict[tuple[str, str], int]:
    return {
        (each["name"], counter): int(Quantity.parse(amount["value"]))
        for piece in slices
        for each in piece["spec"].get("sharedCounters") or ()
        for counter, amount in each["counters"].items()
    }


def _needs(device: JsonObject) -> dict[tuple[str, str], int]:
    return {
        (each["counterSet"], counter): int(Quantity.parse(amount["value"]))
        for each in device.get("consumesCounters") or ()
        for counter, amount in each["counters"].items()
    }


def _devices(slices: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for piece in slices:
        yield from piece["spec"].get("devices") or ()


def _text(device: JsonObject, attribute: str) -> str:
    value: Any = (device.get("attributes") or {}).get(attribute) or {}
    return str(value.get("string", ""))
