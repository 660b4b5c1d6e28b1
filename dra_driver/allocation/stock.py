"""What claims have of the devices while the search gives out and takes back.

A device that one claim has alone is taken; of one that several share the capacity counts, and its
shared counters count once, with the first share (Kubernetes 1.37,
structured/internal/incubating/allocator_incubating.go, allocateDevice).
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from dra_driver.allocation.capacity import Shares, consumption
from dra_driver.allocation.claims import Alternative, Claim
from dra_driver.allocation.counters import Ledger
from dra_driver.allocation.devices import Device
from dra_driver.allocation.in_use import InUse
from dra_driver.allocation.outcome import Grant
from dra_driver.allocation.pools import Pool
from dra_driver.model.quantity import Quantity


class Stock:
    """Devices of some pools: what allocated claims have of them, and what the search gives."""

    def __init__(self, pools: Sequence[Pool], in_use: InUse, claims: Sequence[Claim]) -> None:
        """Begin with what allocated claims have; `claims` are those that are to get something."""
        self.granted: list[list[tuple[Grant, Device]]] = [[] for _ in claims]  # by claim
        self._claims = claims
        self._holders = in_use.holders
        self._shares = Shares(in_use)
        self._ledger = Ledger(pools, {*in_use.holders, *in_use.shared})

    def give(self, claim: int, alternative: Alternative, device: Device) -> Callable[[], None]:
        """Give the device, or a share of it, to a request; returns what takes it back."""
        consumed: Mapping[str, Quantity] = {}
        share_id, counts = "", not self._is_counted(device)
        if device.allows_multiple:
            consumed = consumption(device, alternative.capacity)
            share_id = str(uuid4())
            self._shares.take(device.id, consumed)
        if counts:
            self._ledger.take(device)
        grant = Grant(device.id, alternative, consumed, share_id)
        self.granted[claim].append((grant, device))

        def take_back() -> None:
            self.granted[claim].pop()
            if counts:
                self._ledger.give_back(device)
            if device.allows_multiple:
                self._shares.give_back(device.id, consumed)

        return take_back

    def holder(self, claim: int, device: Device, *, admin: bool) -> str:
        """Name who has the device alone; admin access looks at the claim's own devices only."""
        if not admin and device.id in self._holders:
            return f"claim {self._holders[device.id]}"
        for index, granted in enumerate(self.granted):
            if admin and index != claim:
                continue
            for grant, _ in granted:
                if grant.device == device.id and not grant.share_id:
                    return f"claim {self._claims[index]}, request {grant.alternative.name}"
        return ""

    def counter_shortage(self, device: Device) -> str:
        """Say which shared counter has not enough left for the device; empty: it can be had."""
        return "" if self._is_counted(device) else self._ledger.shortage(device)

    def capacity_shortage(self, alternative: Alternative, device: Device) -> tuple[str, str]:
        """Name the capacity that has not enough left, and say why; raises NotCountable."""
        return self._shares.shortage(device, alternative.capacity)

    def _is_counted(self, device: Device) -> bool:
        """Whether what the device consumes of shared counters is counted for another share."""
        return device.allows_multiple and self._shares.any_of(device.id)
