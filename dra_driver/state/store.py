"""Claim records on disk, shared by all instances of this driver on the node.

Four rules keep it right whoever is killed when:

* one call works on a claim at a time, in any process (`claim_lock`);
* what is free and what is not is decided under one lock for the node (`reserve`, `forget`), which
  no call to hardware or API server is ever made under;
* an instance trusts its index only while nobody else has changed a record: whoever does first
  leaves its mark in the lock file;
* a record that can't be read is set aside and rebuilt from other traces of the claim; while there
  are none, any device may be in use, and nothing is given out until the claim is unprepared,
  prepared again, or a person has removed the file.
"""

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from dra_driver.host import (
    MarkedLock,
    RangeLock,
    ensure_folder,
    list_folder,
    read_file,
    remove_durably,
    sweep_unfinished,
    write_durably,
)
from dra_driver.model.errors import (
    ClaimNotFound,
    DeviceInUse,
    HardwareBusy,
    RecordDamaged,
    StorageFailed,
)
from dra_driver.state.ownership import Holding, Ownership
from dra_driver.state.record import ClaimRecord, Phase, decode, encode
from dra_driver.telemetry import logger

log = logger(__name__)

_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LOCK_SECONDS: Final = 20.0
_MODE: Final = 0o700


class Traces(Protocol):
    """What else tells of claims: written after their records, removed before them."""

    def uids(self) -> set[str]:
        """UIDs of the claims of which there is a trace. Raises StorageFailed."""

    def record(self, uid: str) -> ClaimRecord | None:
        """Record of a claim as its trace tells it, None when it has nothing to say."""


class Records:
    """The records of all claims on this node."""

    def __init__(
        self, folder: Path, traces: Traces, on_damage: Callable[[str], None] = lambda _: None
    ) -> None:
        """Use `<folder>/claims/<uid>.json`; nothing is read before `load`.

        Records that were lost or damaged are rebuilt from `traces`; `on_damage` is told in one line
        what is wrong with a record.
        """
        self._traces = traces
        self._on_damage = on_damage
        self._folder = folder / "claims"
        self._aside = folder / "damaged"
        self._claim_locks = folder / "claims.lock"
        self._node_lock = folder / "state.lock"
        self._mark = secrets.token_hex(8)
        self._guard = threading.Lock()
        self._index = Ownership()
        self._stale = True
        self._damaged: dict[str, str] = {}

    def load(self) -> None:
        """Make the folders, clear what killed writers left, read all records."""
        ensure_folder(self._folder, _MODE)
        ensure_folder(self._aside, _MODE)
        sweep_unfinished(self._folder)
        for path in list_folder(self._aside, ".json"):
            self._damaged[path.stem] = f"the record of claim {path.stem} was set aside earlier"
        with self._node():
            pass

    @contextmanager
    def claim_lock(self, uid: str, timeout: float = _LOCK_SECONDS) -> Iterator[None]:
        """Work on one claim alone; raises HardwareBusy after `timeout` seconds of waiting."""
        with RangeLock(self._claim_locks, uid, timeout):
            yield

    @contextmanager
    def shares_lock(self, record: ClaimRecord) -> Iterator[None]:
        """Give up a claim's shares alone, until its record is gone: so the last one knows it is.

        Of two that go at once each would leave all as it is for the other. Raises HardwareBusy.
        """
        gpus = {device.gpu_uuid for device in record.devices if device.share_id is not None}
        with ExitStack() as stack:
            for gpu in sorted(gpus):
                stack.enter_context(RangeLock(self._claim_locks, f"shares of {gpu}", _LOCK_SECONDS))
            yield

    def get(self, uid: str) -> ClaimRecord | None:
        """Record of a claim as it is on disk now, None when there is none; under its lock.

        One that is damaged or was lost is rebuilt from what else tells of the claim; None if
        nothing does. Raises StorageFailed.
        """
        with suppress(RecordDamaged):
            content = read_file(self._path(uid))
            if content is not None:
                return decode(content, uid)
            if not self._is_there(uid) and self._traces.record(uid) is None:
                return None
        with self._node(anew=True) as index:  # what is rebuilt is held again
            return self._read(uid) or self._lost(uid, index)

    def recover(self) -> None:
        """Mend what was damaged or lost since the records were last read. Raises StorageFailed."""
        readable = {record.uid for record in self.all()}
        if not readable.issuperset({*self._uids(self._folder), *self._traces.uids()}):
            with self._node(anew=True):
                pass

    def reserve(self, record: ClaimRecord) -> None:
        """Write the record if nobody else holds its devices.

        Raises DeviceInUse, or RecordDamaged while a record that can't be read may hold them.
        """
        path = self._path(record.uid)
        with self._node() as index:
            index.check(record)
            ensure_folder(self._folder, _MODE)
            write_durably(path, encode(record))
            index.add(record)

    def adopt(self, record: ClaimRecord) -> bool:
        """Write the record of a claim that the driver before has prepared; False: it is known.

        Nobody is refused: its containers run. A claim whose Prepare had only begun has no
        container; it has nothing where another claim has the device. Raises StorageFailed.
        """
        with self._node() as index:
            has_begun = record.phase is Phase.PREPARING
            read_file(self._path(record.uid))  # one that can't be read now is not known
            if record.uid in index or (has_begun and index.rival(record) is not None):
                return False
            ensure_folder(self._folder, _MODE)
            write_durably(self._path(record.uid), encode(record))
            index.add(record)
            return True

    def doubt(self, uid: str, why: str) -> None:
        """Note that a claim holds devices of which nothing is known. Raises StorageFailed."""
        path = self._aside / self._path(uid).name
        with self._node() as index:
            if uid not in index:
                ensure_folder(self._aside, _MODE)
                write_durably(path, f"{why}\n".encode())
                self._tell(uid, f"{why}; remove {path} if no container of claim {uid} runs")
                self._add_unknown(index, uid)

    def refuse_taken(self, record: ClaimRecord) -> None:
        """Raise what `reserve` would raise; nothing is written."""
        with self._node() as index:
            index.check(record)

    def update(self, record: ClaimRecord) -> None:
        """Replace the record of a claim whose devices stay the same.

        The folder is not flushed: a power cut may bring the old phase back, and with it a claim of
        a former boot that Prepare takes back and makes anew.
        """
        if not record.pods:
            write_durably(self._path(record.uid), encode(record), flush_folder=False)
            return
        with self._node() as index:  # other claims of its Pods are told
            write_durably(self._path(record.uid), encode(record), flush_folder=False)
            index.add(record)

    def forget(
        self, uid: str, when_none_left: Callable[[], None], *, keep_aside: bool = False
    ) -> None:
        """Remove the record; if it was the last, call `when_none_left` while none can be added.

        With `keep_aside` what was set aside of an earlier record stays: containers of that time may
        still run, with devices that nobody knows.
        """
        path = self._path(uid)
        with self._node() as index:
            remove_durably(path)
            if not keep_aside:
                remove_durably(self._aside / path.name)
            index.remove(uid)
            if self._is_there(uid):
                self._add_unknown(index, uid)
            else:
                self._damaged.pop(uid, None)
            if not len(index):
                when_none_left()

    def while_held(self, work: Callable[[], None]) -> None:
        """Call `work` if there is a record at all, while the last one can't be forgotten."""
        with self._node() as index:
            if len(index):
                work()

    def holdings(self) -> list[Holding]:
        """All devices held on this node."""
        with self._node() as index:
            return list(index)

    def unknown(self) -> set[str]:
        """UIDs of the claims that hold nobody knows what: their records can't be read."""
        with self._node() as index:
            return set(index.unknown)

    def partitions_held(self) -> dict[str, str]:
        """Claims that hold partitions, in words, by the UUID of the GPU. Raises DriverError."""
        words: dict[str, str] = {}
        for holding in self.holdings():
            if holding.span is not None and not holding.admin_access:
                told = f"claim {holding.claim} holds partition {holding.device} of it"
                words.setdefault(holding.gpu_uuid, told)
        return words

    def all(self) -> list[ClaimRecord]:
        """All readable records as they are now, sorted by UID; nothing is mended."""
        found = []
        for uid in self._uids(self._folder):
            with suppress(RecordDamaged, StorageFailed):
                content = read_file(self._path(uid))
                if content is not None:
                    found.append(decode(content, uid))
        return found

    @property
    def damaged(self) -> dict[str, str]:
        """What is wrong with the records that were set aside or can't be read, by claim UID."""
        return dict(self._damaged)

    @contextmanager
    def _node(self, *, anew: bool = False) -> Iterator[Ownership]:
        """Hold the node's lock, with an index that is true now."""
        with self._guarded(), MarkedLock(self._node_lock, self._mark, _LOCK_SECONDS) as lock:
            if anew or self._stale or not lock.marked_by_us:
                self._index = self._read_all()
                lock.mark()
            self._stale = True  # until this change is known to be on disk and in the index alike
            for uid in list(self._index.unknown):
                if not self._is_there(uid):  # a person has removed it
                    self._index.remove(uid)
            try:
                yield self._index
            except (DeviceInUse, RecordDamaged):
                self._stale = False  # refused before anything was written
                raise
            self._stale = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep other threads out; raises HardwareBusy when one of them does not come back."""
        if not self._guard.acquire(timeout=_LOCK_SECONDS):
            raise HardwareBusy(
                f"another call of this driver has worked on {self._node_lock.name} for "
                f"{_LOCK_SECONDS:.0f} s; look at the disk of {self._folder}"
            )
        try:
            yield
        finally:
            self._guard.release()

    def _read_all(self) -> Ownership:
        """Read and mend every record; those that stay unreadable may hold anything."""
        index = Ownership()
        # Another instance may have set a record aside, or dealt with one that this one did.
        self._damaged = {uid: told for uid, told in self._damaged.items() if self._is_there(uid)}
        for uid in sorted({*self._uids(self._folder), *self._uids(self._aside)}):
            try:
                record = self._read(uid)
            except StorageFailed as error:
                self._tell(uid, str(error))
                index.add_unknown(uid, str(error))
                continue
            if record is not None:
                index.add(record)
            elif self._is_there(uid):
                self._add_unknown(index, uid)
        for uid in self._traced():
            record = None if uid in index else self._lost(uid, index)
            if record is not None:
                index.add(record)
        return index

    def _add_unknown(self, index: Ownership, uid: str) -> None:
        why = f"{self._aside / f'{uid}.json'} can't be read"
        self._damaged.setdefault(uid, why)
        index.add_unknown(uid, why)

    def _traced(self) -> list[str]:
        try:
            return sorted(uid for uid in self._traces.uids() if _UID.fullmatch(uid))
        except StorageFailed as error:
            log.warning("lost records can't be looked for", err=error)
            return []

    def _read(self, uid: str) -> ClaimRecord | None:
        """Record of a claim; a damaged one is set aside and rebuilt."""
        path = self._path(uid)
        try:
            content = read_file(path)
            if content is not None:
                return decode(content, uid)
        except RecordDamaged as error:
            self._set_aside(path, uid, str(error))
        content = read_file(self._aside / path.name)
        if content is None:
            return None
        try:
            record: ClaimRecord | None = decode(content, uid)  # a newer driver may read it
        except RecordDamaged:
            record = self._traces.record(uid)
        if record is not None:
            log.info("a damaged record was rebuilt", claim=record.ref, claimUID=uid)
            self._keep(record)
        return record

    def _lost(self, uid: str, index: Ownership) -> ClaimRecord | None:
        """Rebuild the record of a claim of which only a trace is left.

        Not if a device is another claim's by now: then the trace is older than that. It was out of
        reach, as a folder that is mounted over, when its own claim was unprepared.
        """
        record = self._traces.record(uid)
        if record is None:
            return None
        other = index.rival(record)
        if other is not None:
            log.warning("a trace of a claim is out of date", claim=record.ref, holder=other.claim)
            return None
        self._tell(uid, f"the record of claim {record.ref} was lost; it is rebuilt")
        self._keep(record)
        return record

    def _keep(self, record: ClaimRecord) -> None:
        """Write a rebuilt record; without room it is rebuilt again whenever it is asked for."""
        try:
            ensure_folder(self._folder, _MODE)
            write_durably(self._path(record.uid), encode(record))
        except StorageFailed as error:
            log.warning("a rebuilt record can't be kept", claim=record.ref, err=error)

    def _set_aside(self, path: Path, uid: str, why: str) -> None:
        self._tell(uid, f"{why}; it was moved to {self._aside}")
        try:
            path.replace(self._aside / path.name)
        except FileNotFoundError:
            return  # another call was faster
        except OSError as error:
            raise StorageFailed(
                f"cannot move the damaged record {path} to {self._aside}: {error.strerror}"
            ) from error

    def _tell(self, uid: str, what: str) -> None:
        if self._damaged.get(uid) != what:
            log.error("a claim's record is damaged", claimUID=uid, err=what)
            self._on_damage(what)
        self._damaged[uid] = what

    def _is_there(self, uid: str) -> bool:
        name = f"{uid}.json"
        return (self._aside / name).exists() or (self._folder / name).exists()

    def _uids(self, folder: Path) -> list[str]:
        """UIDs that have a file there; files that are named otherwise were never ours."""
        return [path.stem for path in list_folder(folder, ".json") if _UID.fullmatch(path.stem)]

    def _path(self, uid: str) -> Path:
        if _UID.fullmatch(uid) is None:
            raise ClaimNotFound(f"{uid!r} is not the UID of a claim")
        return self._folder / f"{uid}.json"
