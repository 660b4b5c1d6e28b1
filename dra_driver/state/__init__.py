"""What this node has promised to whom: one record per claim, and the index of who uses what."""

from dra_driver.state.ownership import Holding, Ownership
from dra_driver.state.record import ClaimRecord, DeviceRecord, Phase, decode, encode
from dra_driver.state.store import Records, Traces

__all__ = [
    "ClaimRecord",
    "DeviceRecord",
    "Holding",
    "Ownership",
    "Phase",
    "Records",
    "Traces",
    "decode",
    "encode",
]
