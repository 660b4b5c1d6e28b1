"""The checkpoint of NVIDIA's driver in Go, which had this node's claims before: read only.

One file has all claims (kubernetes-sigs/dra-driver-nvidia-gpu up to v0.5): an object with `v1` or
`v2` or both, the same claims in an older and a newer form. Its checksum is not verified: it is over
the text that the same release would write again, so releases of that driver refuse good files of
each other (their pull request 1326). Each field is checked instead.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from dra_driver.model.errors import RecordDamaged

_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_POOL: Final = re.compile(r"[a-z0-9](?:[a-z0-9./-]{0,251}[a-z0-9])?")
# A claim's UID, and the beginning of a hash: it becomes part of a path.
_DAEMON: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,78}[A-Za-z0-9])?")
_COMPLETED: Final = "PrepareCompleted"
_STARTED: Final = "PrepareStarted"


class PriorKind(Enum):
    """What the other driver calls a device."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"  # a whole GPU that is bound to vfio-pci


@dataclass(frozen=True, slots=True)
class PriorDevice:
    """One device that the other driver has prepared for a claim."""

    kind: PriorKind
    name: str
    pool: str
    request: str
    uuid: str  # of the GPU or of the partition
    parent_uuid: str | None = None  # of a partition; old releases do not tell it
    mps_daemon: str = ""  # id of its control daemon of MPS; empty: none


@dataclass(frozen=True, slots=True)
class PriorClaim:
    """One claim in the checkpoint."""

    uid: str
    is_complete: bool  # else its Prepare had begun, and no container has it
    namespace: str = ""  # with `name` empty in most releases
    name: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)  # as the API server had it
    devices: tuple[PriorDevice, ...] = ()
    damage: str = ""  # what is wrong with the entry; empty: nothing

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices it was allocated, of all drivers; empty when it is not told."""
        found = self.status
        for key in ("allocation", "devices"):
            found = found.get(key) or {}
            if not isinstance(found, dict):
                return ()
        results = found.get("results")
        entries = results if isinstance(results, list) else []
        return tuple(str(each.get("device")) for each in entries if isinstance(each, dict))


@dataclass(frozen=True, slots=True)
class PriorState:
    """All that the checkpoint says."""

    claims: tuple[PriorClaim, ...]
    boot_id: str  # of the boot in which it was written; empty in older releases


def read_checkpoint(content: bytes) -> PriorState:
    """Read the file; raises RecordDamaged when it can't be known which claims it holds.

    An entry that can't be read is a claim with `damage`, of which only the UID is known.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordDamaged("checkpoint.json is cut short or not JSON") from error
    if not isinstance(document, dict):
        raise RecordDamaged("checkpoint.json is not an object")
    newest = next((document[key] for key in ("v2", "v1") if document.get(key) is not None), None)
    if newest is None:
        version = str(document.get("version", "none"))[:32]
        raise RecordDamaged(f"checkpoint.json has neither v1 nor v2, but version {version}")
    claims = newest.get("preparedClaims") if isinstance(newest, dict) else newest
    if not isinstance(newest, dict) or not isinstance(claims or {}, dict):
        raise RecordDamaged("checkpoint.json: preparedClaims is not an object")
    wrong = [uid for uid in claims or {} if not _UID.fullmatch(uid)]
    if wrong:
        raise RecordDamaged(f"checkpoint.json: {wrong[0][:64]!r} is not the UID of a claim")
    boot_id = newest.get("nodeBootID")
    return PriorState(
        tuple(_claim(uid, entry) for uid, entry in sorted((claims or {}).items())),
        boot_id if isinstance(boot_id, str) and _UID.fullmatch(boot_id) else "",
    )


def _claim(uid: str, entry: object) -> PriorClaim:
    try:
        return _read_claim(uid, entry)
    except RecordDamaged as error:
        return PriorClaim(uid, is_complete=True, damage=str(error))


def _read_claim(uid: str, entry: object) -> PriorClaim:
    if not isinstance(entry, dict):
        raise RecordDamaged("it is not an object")
    state = entry.get("checkpointState", _COMPLETED)  # v1 has no other
    if state not in (_COMPLETED, _STARTED):
        raise RecordDamaged(f"checkpointState: {str(state)[:32]!r} is not known")
    return PriorClaim(
        uid=uid,
        is_complete=state == _COMPLETED,
        namespace=_text(entry, "namespace", _NAME, optional=True),
        name=_text(entry, "name", _NAME, optional=True),
        status=_object(entry, "status"),
        devices=tuple(_devices(entry)),
    )


def _devices(entry: Mapping[str, Any]) -> Iterator[PriorDevice]:
    for group in _objects(entry, "preparedDevices"):
        daemon = _text(_object(group, "configState"), "mpsControlDaemonID", _DAEMON, optional=True)
        for each in _objects(group, "devices"):
            yield _device(each, daemon)


def _device(entry: Mapping[str, Any], daemon: str) -> PriorDevice:
    kinds = [kind for kind in PriorKind if entry.get(kind.value) is not None]
    if len(kinds) != 1:
        raise RecordDamaged("a device is neither gpu nor mig nor vfio")
    kind = kinds[0]
    prepared = _object(entry, kind.value)
    about = _object(prepared, "device")
    requests = about.get("Requests") or [""]
    if not isinstance(requests, list) or not all(isinstance(each, str) for each in requests):
        raise RecordDamaged("Requests is not a list of strings")
    # What newer releases call `concrete` was `info` before, with a word less.
    concrete = _object(prepared, "concrete") or _object(prepared, "info")
    key = "migUUID" if "migUUID" in concrete else "uuid"
    return PriorDevice(
        kind=kind,
        name=_text(about, "DeviceName", _NAME),
        pool=_text(about, "PoolName", _POOL, optional=True),
        request=requests[0],
        uuid=_text(concrete, key, _UUID),
        parent_uuid=_text(concrete, "parentUUID", _UUID, optional=True) or None,
        mps_daemon=daemon,
    )


def _text(
    entry: Mapping[str, Any], key: str, form: re.Pattern[str], *, optional: bool = False
) -> str:
    value = entry.get(key, "" if optional else None)
    if optional and value == "":
        return ""
    if not isinstance(value, str) or not form.fullmatch(value):
        raise RecordDamaged(f"{key}: {str(value)[:64]!r} is not what it should be")
    return value


def _object(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecordDamaged(f"{key} is not an object")
    return value


def _objects(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = entry.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise RecordDamaged(f"{key} is not a list of objects")
    return value
