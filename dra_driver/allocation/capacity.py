"""Capacity of devices: what claims take of those that several share, and what is left.

Kubernetes 1.37, structured/internal/incubating/allocator_incubating.go and consumable_capacity.go.
A claim that asks for capacity gets no device that has less, shared or not; but only what is taken
of shared devices is added up.
"""

from collections.abc import Mapping
from decimal import Decimal

from dra_driver.allocation.devices import Device, DeviceId
from dra_driver.allocation.in_use import InUse
from dra_driver.allocation.policies import NotCountable, RequestPolicy
from dra_driver.model.quantity import Quantity

Amounts = Mapping[str, Quantity]  # by capacity
_NOTHING: Mapping[str, Decimal] = {}


def consumption(device: Device, wanted: Amounts) -> dict[str, Quantity]:
    """Return what a claim that wants so much takes of each capacity; raises NotCountable."""
    taken: dict[str, Quantity] = {}
    for name, value in device.capacity.items():
        policy = device.policies.get(name, RequestPolicy())
        try:
            if name in wanted:
                taken[name] = policy.rounded(wanted[name])
            else:
                taken[name] = value if policy.default is None else policy.default
        except NotCountable as error:
            raise NotCountable(f"capacity {name}: {error}") from error
        if taken[name].value < 0:
            raise NotCountable(f"capacity {name}: {taken[name]} is less than nothing")
    return taken


def shortage(
    device: Device, wanted: Amounts, before: Mapping[str, Decimal] = _NOTHING
) -> tuple[str, str]:
    """Name the capacity that is not enough, and say why; empty: there is enough.

    `before` is what others consume. Raises NotCountable.
    """
    for name in wanted:
        if name not in device.capacity:
            return name, f"no capacity {name}"
    for name, amount in consumption(device, wanted).items():
        if told := device.policies.get(name, RequestPolicy()).objection(amount):
            return name, f"capacity {name}: {told}"
        left = device.capacity[name].value - before.get(name, Decimal(0))
        if amount.value > left:
            return name, f"capacity {name}: {amount} wanted, {Quantity(left)} left"
    return "", ""


class Shares:
    """What claims have consumed of devices, those included that the search has just given out."""

    def __init__(self, in_use: InUse) -> None:
        """Begin with what allocated claims consume."""
        self._consumed: dict[DeviceId, dict[str, Decimal]] = {
            device: {name: amount.value for name, amount in amounts.items()}
            for device, amounts in in_use.shared.items()
        }
        self._claims = dict.fromkeys(in_use.shared, 1)  # or more: how many is not known

    def any_of(self, device: DeviceId) -> bool:
        """Whether some claim has a share of the device."""
        return self._claims.get(device, 0) > 0

    def shortage(self, device: Device, wanted: Amounts) -> tuple[str, str]:
        """Name the capacity that has not enough left, and say why; raises NotCountable."""
        return shortage(device, wanted, self._consumed.get(device.id, _NOTHING))

    def take(self, device: DeviceId, consumed: Amounts) -> None:
        """Count a share that is given out."""
        self._claims[device] = self._claims.get(device, 0) + 1
        self._count(device, consumed, 1)

    def give_back(self, device: DeviceId, consumed: Amounts) -> None:
        """Count a share no more."""
        self._claims[device] -= 1
        self._count(device, consumed, -1)

    def _count(self, device: DeviceId, consumed: Amounts, sign: int) -> None:
        total = self._consumed.setdefault(device, {})
        for name, amount in consumed.items():
            total[name] = total.get(name, Decimal(0)) + sign * amount.value
