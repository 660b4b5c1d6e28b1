"""The one answer to "who uses what": by GPU, by memory slices, by share.

The scheduler may err (field reports k8s #141471, #136567) and expects drivers to refuse.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dra_driver.config import differences, read_stored
from dra_driver.model import Quantity, SharingSettings
from dra_driver.model.claim import ClaimRef
from dra_driver.model.errors import ConfigInvalid, DeviceInUse, RecordDamaged
from dra_driver.model.gpu import GpuPolicy, Placement
from dra_driver.state.policies import read_policy
from dra_driver.state.record import ClaimRecord, Place
from dra_driver.state.reservation import is_reservation


@dataclass(frozen=True, slots=True)
class Holding:
    """One device that a claim holds."""

    claim: ClaimRef
    device: str
    gpu_uuid: str
    span: Placement | None  # None: the whole GPU
    share_id: str | None
    admin_access: bool
    sharing: SharingSettings | None = None
    memory_limit: int | None = None  # bytes that each of `pods` may have of the device
    pods: tuple[str, ...] = ()
    mps_set: str | None = None  # whose control daemon serves the device
    share_memory: int | None = None  # bytes of its memory that were allocated
    mps_amount: int | None = None  # bytes to which MPS limits the share
    policy: GpuPolicy | None = None  # under which a share was given out
    equal_shares: bool = False  # all claims that have the device are to have the same amount

    @property
    def place(self) -> Place:
        """What the device is, whatever its name."""
        return self.gpu_uuid, self.span

    def conflicts_with(self, other: "Holding") -> bool:
        """Whether both can't be held at once.

        Admin access takes nothing from anybody. Shares of one device are counted by the scheduler,
        so they go together; a share and the whole of the same device do not.
        """
        if self.admin_access or other.admin_access or self.gpu_uuid != other.gpu_uuid:
            return False
        if self.span is None or other.span is None:
            overlap = True
        else:
            overlap = self.span.overlaps(other.span)
        if not overlap:
            return False
        same_device = self.span == other.span
        shared = self.share_id is not None and other.share_id is not None
        return not (same_device and shared and self.share_id != other.share_id)

    def has_other_peers_than(self, other: "Holding") -> bool:
        """Whether both have the same device, and each a control daemon of MPS of its own for it."""
        if self.mps_set is None or other.mps_set in (None, self.mps_set):
            return False
        return self.place == other.place

    def disagrees_with(self, other: "Holding") -> bool:
        """Whether both have the same device and want it set differently."""
        if self.admin_access or other.admin_access or self.sharing == other.sharing:
            return False
        return self.place == other.place


def holdings(record: ClaimRecord) -> list[Holding]:
    """All that the record's claim holds."""
    return [
        Holding(
            claim=record.ref,
            device=device.device,
            gpu_uuid=device.gpu_uuid,
            span=device.span,
            share_id=device.share_id,
            admin_access=device.admin_access,
            sharing=read_stored(device.sharing) if device.sharing else None,
            memory_limit=device.memory_limit,
            pods=record.pods,
            mps_set=device.mps_set,
            share_memory=device.share_memory,
            mps_amount=device.mps_amount,
            policy=read_policy(device.policy),
            equal_shares=device.equal_shares,
        )
        for device in record.devices
    ]


def amount_of(held: Iterable[Holding], place: Place) -> int | None:
    """Bytes of a device's memory that these holdings, of one claim, have together; None: not told.

    Admin access has none.
    """
    amounts = [each.share_memory for each in held if each.place == place and not each.admin_access]
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None


class Ownership:
    """Index of holdings by GPU. Not thread-safe: `Records` guards it."""

    def __init__(self, records: Iterable[ClaimRecord] = ()) -> None:
        self._by_gpu: dict[str, list[Holding]] = defaultdict(list)
        self._by_claim: dict[str, list[Holding]] = {}
        self.unknown: dict[str, str] = {}  # UIDs of claims that may hold anything, and why
        for record in records:
            self.add(record)

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_claim or uid in self.unknown

    def __len__(self) -> int:
        return len(self._by_claim) + len(self.unknown)

    def __iter__(self) -> Iterator[Holding]:
        for held in self._by_claim.values():
            yield from held

    def add(self, record: ClaimRecord) -> None:
        """Enter a claim's devices, in place of what the claim held before."""
        self.remove(record.uid)
        held = holdings(record)
        self._by_claim[record.uid] = held
        for holding in held:
            self._by_gpu[holding.gpu_uuid].append(holding)

    def add_unknown(self, uid: str, why: str) -> None:
        """Enter a claim of which nobody knows what it holds."""
        self.remove(uid)
        self.unknown[uid] = why

    def remove(self, uid: str) -> None:
        """Forget a claim."""
        self.unknown.pop(uid, None)
        for holding in self._by_claim.pop(uid, ()):
            same_gpu = self._by_gpu[holding.gpu_uuid]
            same_gpu.remove(holding)
            if not same_gpu:
                del self._by_gpu[holding.gpu_uuid]

    def rival(self, record: ClaimRecord) -> Holding | None:
        """Tell what another claim holds that this one can't hold at the same time."""
        for holding in holdings(record):
            for other in self._by_gpu.get(holding.gpu_uuid, ()):
                if other.claim.uid != record.uid and holding.conflicts_with(other):
                    return other
        return None

    def check(self, record: ClaimRecord) -> None:
        """Raise DeviceInUse when another claim, or this one twice, holds what the record wants.

        RecordDamaged when that can't be known. Admin access asks nobody.
        """
        wanted = holdings(record)
        for position, holding in enumerate(wanted):
            for other in self._by_gpu.get(holding.gpu_uuid, ()):
                if other.claim.uid == record.uid:
                    continue
                if holding.conflicts_with(other):
                    raise DeviceInUse(_held_by_other(record, holding, other))
                if holding.disagrees_with(other):
                    raise DeviceInUse(_set_otherwise(record, holding, other))
                if holding.has_other_peers_than(other):
                    raise DeviceInUse(self._other_peers(record, holding, other))
                self._refuse_other_amount(record, holding, other)
            _refuse_twins(record, holding, wanted[:position])
            if not holding.admin_access:
                self._refuse_unknown(record, holding)

    def _other_peers(self, record: ClaimRecord, wanted: Holding, held: Holding) -> str:
        theirs = sorted(h.device for h in self._by_claim[held.claim.uid] if _together(h, held))
        ours = sorted(h.device for h in holdings(record) if _together(h, wanted))
        return (
            f"{wanted.device} for claim {record.ref} has a control daemon of MPS for "
            f"{' with '.join(theirs)}, which claim {held.claim} shares, and the claim wants one "
            f"for {' with '.join(ours)}; sets of devices can be equal, not overlap: ask for the "
            "same devices, or for one in each claim"
        )

    def _refuse_other_amount(self, record: ClaimRecord, wanted: Holding, held: Holding) -> None:
        """Raise DeviceInUse where equal shares are required and these are not."""
        if not wanted.equal_shares or held.admin_access or wanted.place != held.place:
            return
        ours = amount_of(holdings(record), held.place)
        theirs = amount_of(self._by_claim[held.claim.uid], held.place)
        if ours != theirs:
            raise DeviceInUse(
                f"{wanted.device} for claim {record.ref} is shared with claim {held.claim}, which "
                f"has {_text(theirs)} of its memory, and the claim asks for {_text(ours)}: with "
                "requireMemoryLimit: mps all shares of a device are equal; ask for as much, or "
                "wait until that claim's Pods have ended"
            )

    def _refuse_unknown(self, record: ClaimRecord, wanted: Holding) -> None:
        for uid, why in self.unknown.items():
            if uid != record.uid:
                raise RecordDamaged(
                    f"{wanted.device} for claim {record.ref} may be in use by the claim of UID "
                    f"{uid}: {why}; it is free once that claim's Pods have ended, or when you have "
                    "removed this file because none of them runs"
                )


def _refuse_twins(record: ClaimRecord, holding: Holding, before: Iterable[Holding]) -> None:
    for twin in before:
        if holding.conflicts_with(twin):
            raise DeviceInUse(
                f"claim {record.ref} was allocated {twin.device} and {holding.device}, which are "
                "the same hardware; delete it so that it is allocated again"
            )
        if holding.has_other_peers_than(twin):
            raise ConfigInvalid(
                f"claim {record.ref}: sharing.strategy: MPS: {holding.device} is asked for with "
                "different others, by several of its containers; a device has one control daemon"
            )


def _text(amount: int | None) -> str:
    return "an amount that is not known" if amount is None else str(Quantity.of(amount))


def _together(one: Holding, other: Holding) -> bool:
    return one.mps_set == other.mps_set


def _set_otherwise(record: ClaimRecord, wanted: Holding, held: Holding) -> str:
    return (
        f"{wanted.device} for claim {record.ref} is shared with claim {held.claim}, whose settings "
        f"differ: {'; '.join(differences(wanted.sharing, held.sharing))}; give both claims the "
        "same, or wait until that claim's Pods have ended"
    )


def _held_by_other(record: ClaimRecord, wanted: Holding, held: Holding) -> str:
    if is_reservation(held.claim):
        return (
            f"{wanted.device} ({wanted.gpu_uuid}) for claim {record.ref} can't be had while "
            f"{held.claim.name} is being applied to that GPU"
        )
    return (
        f"{wanted.device} ({wanted.gpu_uuid}) for claim {record.ref} is still held by claim "
        f"{held.claim} (UID {held.claim.uid}) as {held.device}; it is free once that claim's Pods "
        "have ended"
    )
