"""The record of one claim, and its form on disk.

A file is sealed (`sealed`). Fields that a newer version wrote are kept.
"""

import json
from enum import StrEnum
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_driver.model.claim import AllocatedDevice, ClaimRef, PreparedClaim, PreparedDevice
from dra_driver.model.errors import RecordDamaged
from dra_driver.model.gpu import Placement
from dra_driver.state.sealed import opened, sealed

SCHEMA: Final = 1

Place: TypeAlias = tuple[str, Placement | None]  # GPU, and memory slices of a partition


class Phase(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"  # changes may have been made, in part
    PREPARED = "prepared"  # all changes were made and the kubelet may have been told


# Unknown fields are kept. Values are not cached: 16,384 texts of claims long gone, as UIDs are new.
_FORM: Final = ConfigDict(frozen=True, extra="allow", cache_strings="keys")


class DeviceRecord(BaseModel):
    """One device of a claim: what was allocated, and the hardware it was resolved to."""

    model_config = _FORM

    request: str  # as allocated: `main` or `main/sub`
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    gpu_uuid: str
    gpu_minor: int
    uuid: str  # of the GPU, or of the partition
    placement: tuple[int, int] | None = None  # start and size; None: the whole GPU
    gi_profile_id: int | None = None
    ci_profile_id: int | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    made: bool = False  # this driver gives the hardware that shape for the claim
    share_memory: int | None = None  # bytes of its memory that this share was allocated
    memory_limit: int | None = None  # bytes that a Pod may use for this share; None: no limit
    policy: dict[str, Any] | None = None  # of its GPU: stays while the share is held
    equal_shares: bool = False  # no claim with another amount may have the device beside it
    client_limit: int | None = None  # bytes of it that MPS leaves each program of the claim
    sharing: dict[str, Any] | None = None  # settings, in the words of `sharing` of a config
    mps_set: str | None = None  # devices of one set have one control daemon of MPS together
    mps_folders: tuple[str, str] | None = None  # on the host: its sockets, and /dev/shm
    may_reset: bool = False  # MIG mode may be switched for it where that resets the GPU
    cdi_ids: tuple[str, ...] = ()

    @property
    def span(self) -> Placement | None:
        """Memory slices that the device covers, None for a whole GPU."""
        return Placement(*self.placement) if self.placement else None

    @property
    def place(self) -> Place:
        """What the device is, whatever its name."""
        return self.gpu_uuid, self.span

    @property
    def mps_amount(self) -> int | None:
        """Bytes to which MPS limits the share; None: something else limits it, or nothing."""
        is_limited = self.mps_set is not None and self.memory_limit is None
        return self.share_memory if is_limited else None

    @property
    def allocation(self) -> AllocatedDevice:
        """What the API server said of this device, but for what it consumes."""
        return AllocatedDevice(
            request=self.request,
            pool=self.pool,
            device=self.device,
            share_id=self.share_id,
            admin_access=self.admin_access,
        )


class ClaimRecord(BaseModel):
    """All that Unprepare needs, written before the first change is made."""

    model_config = _FORM

    schema_number: int = SCHEMA
    namespace: str
    name: str
    uid: str
    phase: Phase = Phase.PREPARING
    boot_id: str = ""
    planned: int = 0  # Unix seconds at which Prepare decided on it; stays when it is made again
    devices: tuple[DeviceRecord, ...] = ()
    pods: tuple[str, ...] = ()  # UIDs of the Pods that have limits; only with memory limits
    taken_over: bool = False  # prepared by the driver before: containers know one CDI id a device
    left_behind: tuple[str, ...] = ()  # what of that driver's stays when the claim has ended

    @property
    def ref(self) -> ClaimRef:
        """Name of the claim."""
        return ClaimRef(self.namespace, self.name, self.uid)

    @property
    def allocation(self) -> tuple[AllocatedDevice, ...]:
        """What the API server said of all devices."""
        return tuple(device.allocation for device in self.devices)

    def named(self, ref: ClaimRef) -> "ClaimRecord":
        """Record with the claim's name, which the driver before may not have noted."""
        if self.name:
            return self
        return self.model_copy(update={"namespace": ref.namespace, "name": ref.name})

    def in_phase(self, phase: Phase) -> "ClaimRecord":
        """Copy in another phase."""
        return self.model_copy(update={"phase": phase})

    def answer(self) -> PreparedClaim:
        """Tell the kubelet's answer for this claim."""
        return PreparedClaim(
            self.ref,
            tuple(
                PreparedDevice(
                    request=device.request.split("/", 1)[0],
                    pool=device.pool,
                    device=device.device,
                    uuid=device.uuid,
                    cdi_ids=device.cdi_ids,
                    share_id=device.share_id,
                )
                for device in self.devices
            ),
        )


def encode(record: ClaimRecord) -> bytes:
    """Bytes of a record file."""
    return sealed(record.model_dump_json(exclude_none=True).encode())


def decode(content: bytes, uid: str) -> ClaimRecord:
    """Read the record file of a claim UID; raises RecordDamaged that says what is wrong."""
    body = opened(content, f"the record of claim {uid}")
    try:
        record = ClaimRecord.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        written = _schema(body)
        hint = f" (written by a newer driver: schema {written})" if written > SCHEMA else ""
        raise RecordDamaged(f"the record of claim {uid}: {field}: {first['msg']}{hint}") from error
    if record.uid != uid:
        raise RecordDamaged(f"the record of claim {uid} holds claim {record.uid}")
    return record


def _schema(body: bytes) -> int:
    try:
        return int(json.loads(body)["schema_number"])
    except (ValueError, TypeError, KeyError):
        return SCHEMA
