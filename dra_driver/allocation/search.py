"""The search for devices: first fit with backtracking, as the scheduler does it.

Kubernetes 1.37, structured/internal/incubating/allocator_incubating.go: claims in order, their
requests in order, the devices of a request in the order of pools, slices and devices; the first
full solution counts. Selectors are evaluated no earlier than there, since one that fails on a
device ends the search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from dra_driver.allocation.capacity import shortage
from dra_driver.allocation.claims import Alternative, Claim, DeviceClass, Mode
from dra_driver.allocation.devices import Device
from dra_driver.allocation.in_use import InUse
from dra_driver.allocation.matching import (
    GiveUp,
    Matcher,
    constraint_objection,
    taint_objection,
)
from dra_driver.allocation.outcome import Allocation, Cause, Refusal, Rejection, Shortfall
from dra_driver.allocation.policies import NotCountable
from dra_driver.allocation.pools import Pool
from dra_driver.allocation.stock import Stock

MAX_DEVICES_OF_CLAIM = 32  # AllocationResultsMaxSize of resource.k8s.io/v1


@dataclass(frozen=True, slots=True)
class _Spot:
    """What is being filled: one alternative of one request of one claim."""

    claim: int
    request: int
    alternative: Alternative


class Search:
    """One attempt to find devices for some claims on one node."""

    def __init__(
        self,
        node: str,
        pools: Sequence[Pool],
        classes: Mapping[str, DeviceClass],
        claims: Sequence[Claim],
        in_use: InUse,
        deadline: float,
    ) -> None:
        """Look only; `deadline` is a time of `monotonic()`."""
        self._node = node
        self._pools = pools
        self._classes = classes
        self._claims = claims
        self._deadline = deadline
        self._matcher = Matcher(classes)
        self._devices = [device for pool in pools for device in pool.devices]
        self._stock = Stock(pools, in_use, claims)
        self._matching: dict[tuple[int, str], list[Device]] = {}  # for requests for all devices
        self._chosen: list[list[Alternative]] = [[] for _ in claims]
        self._furthest = (0, 0)  # claim and request at which the search got stuck
        self._shortfalls: dict[str, Shortfall] = {}

    def run(self) -> tuple[Allocation, ...] | Refusal:
        """Return one allocation for each claim, or why there is none."""
        try:
            for index, claim in enumerate(self._claims):
                self._check(index, claim)
            found = self._place(0, 0)
        except GiveUp as reason:
            return Refusal(str(reason.claim), str(reason), fatal=True)
        if found:
            return tuple(self._allocation(index) for index in range(len(self._claims)))
        reasons = [str(shortfall) for shortfall in self._shortfalls.values()]
        reasons += [f"pool {pool} is {pool.trouble}" for pool in self._pools if pool.trouble]
        return Refusal(
            claim=str(self._claims[self._furthest[0]]),
            message="; ".join(reasons),
            fatal=False,
            shortfalls=tuple(self._shortfalls.values()),
        )

    def _check(self, index: int, claim: Claim) -> None:
        """Refuse what cannot be evaluated at all, and find out how much "all" is."""
        least = 0
        for request in claim.requests:
            counts = []
            for alternative in request.alternatives:
                if alternative.class_name not in self._classes:
                    raise GiveUp(
                        claim,
                        f"request {alternative.name}: there is no device class"
                        f" {alternative.class_name}",
                    )
                if alternative.mode is Mode.ALL:
                    self._matching[index, alternative.name] = self._all_matching(claim, alternative)
                counts.append(self._wanted(index, alternative))
            least += min(counts)
        if least > MAX_DEVICES_OF_CLAIM:
            raise GiveUp(
                claim, f"{least} devices are wanted, a claim can have {MAX_DEVICES_OF_CLAIM}"
            )

    def _all_matching(self, claim: Claim, alternative: Alternative) -> list[Device]:
        for pool in self._pools:
            if pool.trouble:
                raise GiveUp(
                    claim,
                    f"request {alternative.name} asks for all devices, but pool {pool} is"
                    f" {pool.trouble}",
                )
        return [
            device
            for device in self._devices
            if self._matcher.judge(claim, alternative, device) is None
            and not self._shortage(claim, alternative, device, when_free=True)[0]
        ]

    def _wanted(self, claim: int, alternative: Alternative) -> int:
        if alternative.mode is Mode.ALL:
            return len(self._matching[claim, alternative.name])
        return alternative.count

    def _place(self, claim: int, request: int) -> bool:
        """Fill this request and everything after it."""
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._place(claim + 1, 0)
        for alternative in requests[request].alternatives:
            spot = _Spot(claim, request, alternative)
            wanted = self._wanted(claim, alternative)
            self._chosen[claim].append(alternative)
            if wanted > MAX_DEVICES_OF_CLAIM - len(self._stock.granted[claim]):
                note = f"{wanted} more devices are over the limit of {MAX_DEVICES_OF_CLAIM}"
                self._note(spot, Shortfall(alternative.name, wanted, 0, (), note))
            elif wanted and self._fill(spot, wanted, 0):
                return True
            elif not wanted:
                self._note_missing(spot, 0)
            self._chosen[claim].pop()
        return False

    def _fill(self, spot: _Spot, left: int, start: int) -> bool:
        """Find `left` more devices, from position `start` on, and fill everything after it."""
        if left == 0:
            return self._place(spot.claim, spot.request + 1)
        all_of_them = spot.alternative.mode is Mode.ALL
        candidates = self._devices
        if all_of_them:
            candidates = self._matching[spot.claim, spot.alternative.name]
        for position in range(start, len(candidates)):
            self._check_time(spot)
            device = candidates[position]
            objection = self._objection(spot, device)
            if objection is None:
                take_back = self._stock.give(spot.claim, spot.alternative, device)
                if self._fill(spot, left - 1, position + 1):
                    return True
                take_back()
            elif all_of_them and objection.cause is Cause.CONSTRAINT:
                raise GiveUp(
                    self._claims[spot.claim],
                    f"request {spot.alternative.name} asks for all devices, but {objection}",
                )
            if all_of_them:
                break  # their order does not matter: what fails once fails always
        self._note_missing(spot, left)
        return False

    def _check_time(self, spot: _Spot) -> None:
        if monotonic() > self._deadline:
            raise GiveUp(
                self._claims[spot.claim],
                "the search took too long: fewer devices, tighter selectors or fewer constraints"
                " make it shorter",
            )

    def _objection(self, spot: _Spot, device: Device) -> Rejection | None:
        """Return the first thing that speaks against the device, in the scheduler's order."""
        claim = self._claims[spot.claim]
        holder = self._stock.holder(spot.claim, device, admin=spot.alternative.admin_access)
        if holder:
            return Rejection(device.id, Cause.TAKEN, f"taken by {holder}")
        rejection = self._matcher.judge(claim, spot.alternative, device)
        if rejection is not None:
            return rejection
        all_of_them = spot.alternative.mode is Mode.ALL  # then capacity is looked at last
        return (
            (None if all_of_them else self._capacity_objection(spot, device))
            or self._counter_objection(device)
            or taint_objection(spot.alternative, device)
            or constraint_objection(
                claim.constraints, spot.alternative, device, self._stock.granted[spot.claim]
            )
            or (self._capacity_objection(spot, device) if all_of_them else None)
        )

    def _counter_objection(self, device: Device) -> Rejection | None:
        short = self._stock.counter_shortage(device)
        return Rejection(device.id, Cause.COUNTER, short) if short else None

    def _capacity_objection(self, spot: _Spot, device: Device) -> Rejection | None:
        name, told = self._shortage(self._claims[spot.claim], spot.alternative, device)
        return Rejection(device.id, Cause.CAPACITY, told, name) if name else None

    def _shortage(
        self, claim: Claim, alternative: Alternative, device: Device, *, when_free: bool = False
    ) -> tuple[str, str]:
        """Name the capacity of which there is too little, now or even when free, and say why."""
        try:
            if when_free:
                return shortage(device, alternative.capacity)
            return self._stock.capacity_shortage(alternative, device)
        except NotCountable as error:
            where = f"request {alternative.name}: device {device.id}"
            raise GiveUp(claim, f"{where}: {error}") from error

    def _note_missing(self, spot: _Spot, left: int) -> None:
        """Remember why `left` devices were not found, if the search never got further."""
        wanted = self._wanted(spot.claim, spot.alternative)
        known = self._shortfalls.get(spot.alternative.name)
        same_place = (spot.claim, spot.request) == self._furthest
        if same_place and known is not None and known.found >= wanted - left:
            return
        own = {grant.device for grant, _ in self._stock.granted[spot.claim][-(wanted - left) :]}
        if wanted == left:
            own = set()
        rejections = (self._reason(spot, d) for d in self._devices if d.id not in own)
        self._note(
            spot,
            Shortfall(
                spot.alternative.name,
                wanted,
                wanted - left,
                tuple(rejection for rejection in rejections if rejection is not None),
            ),
        )

    def _reason(self, spot: _Spot, device: Device) -> Rejection | None:
        """Return the objection for a person: that it does not match says more than taken."""
        objection = self._objection(spot, device)
        if objection is None or objection.cause is not Cause.TAKEN:
            return objection
        try:
            unfit = self._matcher.judge(self._claims[spot.claim], spot.alternative, device)
        except GiveUp:
            return objection
        return unfit or objection

    def _note(self, spot: _Spot, shortfall: Shortfall) -> None:
        place = (spot.claim, spot.request)
        if place < self._furthest:
            return
        if place > self._furthest:
            self._furthest = place
            self._shortfalls.clear()
        self._shortfalls[shortfall.request] = shortfall

    def _allocation(self, index: int) -> Allocation:
        granted = self._stock.granted[index]
        return Allocation(
            claim=self._claims[index],
            grants=tuple(grant for grant, _ in granted),
            chosen=tuple(self._chosen[index]),
            node=self._node if any(device.local for _, device in granted) else "",
        )
