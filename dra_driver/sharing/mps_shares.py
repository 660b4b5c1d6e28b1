"""Memory that MPS leaves to claims that share a device by amounts.

The control daemon has one limit for all clients of a device, which no client can raise: it is as
large as the largest share. What a smaller one is comes to its containers as a variable, which can
only lower the limit, but which a program can take away.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.config import limits_by_uuid, read_stored
from dra_driver.model import MemoryLimitLevel, MpsSettings
from dra_driver.sharing.mps_spec import MIB
from dra_driver.state import ClaimRecord, DeviceRecord, Holding, Place

LIMIT_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def largest_amounts(mps_set: str, held: Iterable[Holding]) -> Mapping[Place, int]:
    """Bytes of the largest share of each device of a set.

    Without entry: a claim has the device and no amount, so that nothing limits it.
    """
    return {
        place: max(amount for amount in amounts if amount is not None)
        for place, amounts in _amounts(each for each in held if each.mps_set == mps_set).items()
        if None not in amounts
    }


def with_client_limits(record: ClaimRecord) -> ClaimRecord:
    """Record that says how much MPS leaves each program of the claim. Raises ConfigInvalid.

    A program may have several shares of one device: its limit is their sum.
    """
    totals: dict[tuple[str | None, str], int] = defaultdict(int)
    for device in record.devices:
        totals[device.mps_set, device.uuid] += device.mps_amount or 0

    def limited(device: DeviceRecord) -> DeviceRecord:
        if device.mps_amount is None:
            return device
        peers = [each for each in record.devices if each.mps_set == device.mps_set]
        own = limits_by_uuid(settings_of(peers), tuple({each.uuid for each in peers}))
        total = totals[device.mps_set, device.uuid] // MIB * MIB
        return device.model_copy(update={"client_limit": least(own.get(device.uuid), total)})

    return record.model_copy(update={"devices": tuple(map(limited, record.devices))})


def limit_variable(device: DeviceRecord, devices: Iterable[DeviceRecord]) -> str:
    """Give the `LIMIT_VARIABLE` of a container with this device of a claim; empty: none.

    Devices are counted as the daemon counts them, in the order of their UUIDs.
    """
    peers = {
        each.uuid: each.client_limit
        for each in devices
        if each.mps_set == device.mps_set is not None
    }
    limits = (peers[uuid] for uuid in sorted(peers))
    return ",".join(
        f"{ordinal}={limit // MIB}M" for ordinal, limit in enumerate(limits) if limit is not None
    )


def level_of(device: DeviceRecord, held: Iterable[Holding]) -> MemoryLimitLevel:
    """How hard the limit of a share holds beside all that is held."""
    if device.memory_limit is not None:
        return MemoryLimitLevel.CGROUP
    if device.mps_amount is None:
        return MemoryLimitLevel.NONE
    there = _amounts(each for each in held if each.mps_set == device.mps_set)
    is_equal = len(set(there.get(device.place, ()))) <= 1
    return MemoryLimitLevel.MPS if is_equal else MemoryLimitLevel.MPS_CLIENT


def settings_of(devices: Sequence[DeviceRecord]) -> MpsSettings:
    """Read the settings of the devices of one set, which are those of each of them."""
    stored = read_stored(devices[0].sharing)
    return (stored.mps if stored else None) or MpsSettings()


def least(*limits: int | None) -> int | None:
    """Give the smallest of several limits; None limits nothing."""
    return min((limit for limit in limits if limit is not None), default=None)


def _amounts(held: Iterable[Holding]) -> Mapping[Place, Sequence[int | None]]:
    """Tell what each claim has of each device through MPS; None: all."""
    found: dict[tuple[Place, str], list[int | None]] = defaultdict(list)
    for each in held:
        found[each.place, each.claim.uid].append(each.mps_amount)
    amounts: dict[Place, list[int | None]] = defaultdict(list)
    for (place, _), shares in found.items():
        known = [share for share in shares if share is not None]
        amounts[place].append(sum(known) if len(known) == len(shares) else None)
    return amounts
