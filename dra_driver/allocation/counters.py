"""Shared counters: what devices that can be had beside each other may use up together.

Kubernetes 1.37, structured/internal/incubating/allocator_incubating.go (checkAvailableCounters):
devices that are allocated consume, and so do those that the search has just given out, those with
admin access included. When more is allocated than a counter has, its pool gives out no device that
consumes any.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from dra_driver.allocation.devices import Device, DeviceId
from dra_driver.allocation.pools import Pool
from dra_driver.model.quantity import Quantity


@dataclass(frozen=True, slots=True, order=True)
class _Short:
    """A counter that has less left than is wanted; the emptiest tells most, so it comes first."""

    left: Decimal
    counter: str
    counter_set: str
    wanted: Decimal = field(compare=False)

    def __str__(self) -> str:
        left, wanted = Quantity(self.left), Quantity(self.wanted)
        return f"counter {self.counter} of {self.counter_set}: {wanted} wanted, {left} left"


class Ledger:
    """What is left of the counters of some pools while devices are given out."""

    def __init__(self, pools: Iterable[Pool], taken: Iterable[DeviceId]) -> None:
        """Begin with what the pools have, less what `taken` devices consume."""
        self._left: dict[tuple[str, str], dict[tuple[str, str], Decimal]] = {}
        self._overdrawn: dict[tuple[str, str], str] = {}  # by pool: what keeps all of it back
        gone = set(taken)
        for pool in pools:
            left = {
                (name, counter): amount.value
                for name, counters in pool.counter_sets.items()
                for counter, amount in counters.items()
            }
            self._left[pool.driver, pool.name] = left
            for device in (*pool.devices, *pool.elsewhere):
                if device.id in gone:
                    self.take(device)
            if below := sorted(key for key, amount in left.items() if amount < 0):
                name, counter = below[0]
                told = f"counter {counter} of {name}: devices in use take more than there is"
                self._overdrawn[pool.driver, pool.name] = told

    def shortage(self, device: Device) -> str:
        """Say which counter has not enough left for the device; empty: none, it can be had."""
        if not device.consumes:
            return ""
        if told := self._overdrawn.get((device.id.driver, device.id.pool)):
            return told
        left = self._of(device)
        short = (
            _Short(left[key], key[1], key[0], need)
            for key, need in _needs(device.consumes)
            if left[key] < need
        )
        worst = min(short, default=None)
        return "" if worst is None else str(worst)

    def take(self, device: Device) -> None:
        """Count a device that is given out."""
        left = self._of(device)
        for key, need in _needs(device.consumes):
            left[key] -= need

    def give_back(self, device: Device) -> None:
        """Count a device no more."""
        left = self._of(device)
        for key, need in _needs(device.consumes):
            left[key] += need

    def _of(self, device: Device) -> dict[tuple[str, str], Decimal]:
        return self._left[device.id.driver, device.id.pool]


def _needs(
    consumes: Mapping[str, Mapping[str, Quantity]],
) -> Iterator[tuple[tuple[str, str], Decimal]]:
    for name, counters in consumes.items():
        for counter, amount in counters.items():
            yield (name, counter), amount.value
