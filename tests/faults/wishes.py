"""Claims that share, as the machine knows them: what each wants, and what may stand for it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.model import ClaimRef
from dra_driver.model.claim import DeviceConfig
from tests.faults.sharing_bed import BY_COUNT, BY_MEMORY, DYNAMIC, OLD

GIB: Final = 1 << 30
DEVICES: Final = (
    f"gpu-{BY_MEMORY}",
    f"gpu-{BY_MEMORY}",
    f"gpu-{BY_COUNT}",
    f"gpu-{OLD}",
    f"gpu-{DYNAMIC}",
    f"gpu-{DYNAMIC}-mig-1g10gb-19-0",
    f"gpu-{DYNAMIC}-mig-3g40gb-9-4",
)
INTERVALS: Final = {"Default": 0, "Short": 1, "Long": 3}
SETTINGS: Final = ("", "", "Default", "Short", "Long", "Long", "MPS", "MPS 50")


def is_mig(device: str) -> bool:
    return "mig" in device


@dataclass
class Wish:
    """One claim: what it was allocated, how it wants that set, and whether it has it."""

    ref: ClaimRef
    devices: tuple[str, ...]
    setting: str
    gib: int  # of each share by memory
    pods: set[str]
    state: str = "new"  # or "live"; "torn": what it wants may stand or not
    limited: set[str] = field(default_factory=set)  # Pods that were there when it was prepared
    perhaps: set[str] = field(default_factory=set)  # and those for which that has failed

    def settings(self) -> dict[str, str]:
        """What is set by device: partitions have no interval of their own."""
        is_sliced = self.setting in INTERVALS
        return {
            device: "sliced" if is_sliced and is_mig(device) else self.setting
            for device in self.devices
        }

    def sets(self) -> set[frozenset[str]]:
        """Devices that are to have a daemon together: those of one config."""
        if not self.setting.startswith("MPS"):
            return set()
        whole = frozenset(device for device in self.devices if not is_mig(device))
        parts = frozenset(device for device in self.devices if is_mig(device))
        return {each for each in (whole, parts) if each}

    def amount(self) -> int:
        """Bytes of the GPU that hands out memory."""
        return self.gib * GIB * self.devices.count(f"gpu-{BY_MEMORY}")

    def impossible(self) -> bool:
        """Whether no hardware here can have it, or no container could."""
        on_old = f"gpu-{OLD}" in self.devices and self.setting not in ("", "Default")
        return on_old or len(self.sets()) > 1

    def clashes_with(self, other: "Wish") -> bool:
        """Whether both can't be prepared at once: their settings contradict."""
        mine, theirs = self.settings(), other.settings()
        if any(mine[device] != theirs[device] for device in mine.keys() & theirs.keys()):
            return True
        return any(one & two and one != two for one in self.sets() for two in other.sets())


def wants_slices(claim: Wish, device: str) -> bool:
    return claim.setting in INTERVALS and device in claim.devices


def may_stand(
    value: object, must: set[Any], may: set[Any], default: object, *, is_shaken: bool
) -> bool:
    """Whether a value is right: that of live claims, or the default without any."""
    if is_shaken or may:
        return value in must | may | {default}
    return value in (must or {default})


def all_sums(base: int, more: list[int]) -> set[int]:
    """All sums of a base and any of the others."""
    sums = {base}
    for each in more:
        sums |= {total + each for total in sums}
    return sums


def configs_of(setting: str) -> Iterable[DeviceConfig]:
    if not setting:
        return
    strategy, _, percentage = setting.partition(" ")
    sharing: dict[str, Any] = {"strategy": "MPS" if strategy == "MPS" else "TimeSlicing"}
    for_gpus = dict(sharing)
    if strategy != "MPS":
        for_gpus["timeSlicingConfig"] = {"interval": setting}
    elif percentage:
        sharing["mpsConfig"] = for_gpus["mpsConfig"] = {
            "defaultActiveThreadPercentage": int(percentage)
        }
    for kind, body in (("GpuConfig", for_gpus), ("MigDeviceConfig", sharing)):
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": body}
        yield DeviceConfig((), "FromClaim", parameters)
