"""What this node has promised to whom: one record per claim, and the index of who uses what."""

from dra_driver.state.ended import EndedClaims
from dra_driver.state.layouts import LayoutNote, LayoutNotes, NotedSlot
from dra_driver.state.ownership import Holding, Ownership, holdings
from dra_driver.state.predecessor import (
    PriorClaim,
    PriorDevice,
    PriorKind,
    PriorState,
    read_checkpoint,
)
from dra_driver.state.record import ClaimRecord, DeviceRecord, Phase, Place, decode, encode
from dra_driver.state.reservation import (
    is_reservation,
    is_reservation_uid,
    reservation,
    reservation_uid,
)
from dra_driver.state.store import Records, Traces

__all__ = [
    "ClaimRecord",
    "DeviceRecord",
    "EndedClaims",
    "Holding",
    "LayoutNote",
    "LayoutNotes",
    "NotedSlot",
    "Ownership",
    "Phase",
    "Place",
    "PriorClaim",
    "PriorDevice",
    "PriorKind",
    "PriorState",
    "Records",
    "Traces",
    "decode",
    "encode",
    "holdings",
    "is_reservation",
    "is_reservation_uid",
    "read_checkpoint",
    "reservation",
    "reservation_uid",
]
