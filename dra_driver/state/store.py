"""Claim records on disk, shared by all instances of this driver on the node.

Three rules keep it right whoever is killed when:

* one call works on a claim at a time, in any process (`claim_lock`);
* what is free and what is not is decided under one lock for the node (`reserve`, `forget`), which
  no call to hardware or API server is ever made under;
* an instance trusts its index only while nobody else has changed a record: whoever does first
  leaves its mark in the lock file.
"""

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

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
from dra_driver.model.errors import ClaimNotFound, DeviceInUse, RecordDamaged
from dra_driver.state.ownership import Holding, Ownership
from dra_driver.state.record import ClaimRecord, decode, encode
from dra_driver.telemetry import logger

log = logger(__name__)

_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_LOCK_SECONDS: Final = 20.0


class Records:
    """The records of all claims on this node."""

    def __init__(
        self, folder: Path, rebuild: Callable[[str], ClaimRecord | None] = lambda _: None
    ) -> None:
        """Use `<folder>/claims/<uid>.json`; nothing is read before `load`.

        `rebuild` finds from other traces what a damaged record of that claim UID held.
        """
        self._rebuild = rebuild
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
        ensure_folder(self._folder, 0o700)
        ensure_folder(self._aside, 0o700)
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

    def get(self, uid: str) -> ClaimRecord | None:
        """Record of a claim as it is on disk now.

        A damaged one is set aside and rebuilt from what else tells of the claim; None if nothing.
        """
        path = self._path(uid)
        content = read_file(path)
        if content is None:
            return None
        try:
            return decode(content, uid)
        except RecordDamaged as error:
            self._set_aside(path, uid, error)
            record = self._rebuild(uid)
            if record is not None:
                log.info("a damaged record was rebuilt", claim=record.ref, claimUID=uid)
                write_durably(path, encode(record))
            return record

    def reserve(self, record: ClaimRecord) -> None:
        """Write the record if nobody else holds its devices; else raise DeviceInUse."""
        path = self._path(record.uid)
        with self._node() as index:
            index.check(record)
            write_durably(path, encode(record))
            index.add(record)

    def update(self, record: ClaimRecord) -> None:
        """Replace the record of a claim whose devices stay the same."""
        write_durably(self._path(record.uid), encode(record))

    def forget(self, uid: str, when_none_left: Callable[[], None]) -> None:
        """Remove the record; if it was the last, call `when_none_left` while none can be added."""
        path = self._path(uid)
        with self._node() as index:
            remove_durably(path)
            remove_durably(self._aside / path.name)
            self._damaged.pop(uid, None)
            index.remove(uid)
            if not len(index):
                when_none_left()

    def holdings(self) -> list[Holding]:
        """All devices held on this node."""
        with self._node() as index:
            return list(index)

    def all(self) -> list[ClaimRecord]:
        """All readable records, sorted by UID."""
        found = (self.get(path.stem) for path in list_folder(self._folder, ".json"))
        return [record for record in found if record is not None]

    @property
    def damaged(self) -> dict[str, str]:
        """What is wrong with the records that were set aside, by claim UID."""
        return dict(self._damaged)

    @contextmanager
    def _node(self) -> Iterator[Ownership]:
        """Hold the node's lock, with an index that is true now."""
        with self._guard, MarkedLock(self._node_lock, self._mark, _LOCK_SECONDS) as lock:
            if self._stale or not lock.marked_by_us:
                self._index = Ownership(self.all())
                lock.mark()
            self._stale = True  # until this change is known to be on disk and in the index alike
            try:
                yield self._index
            except DeviceInUse:
                self._stale = False  # refused before anything was written
                raise
            self._stale = False

    def _path(self, uid: str) -> Path:
        if _UID.fullmatch(uid) is None:
            raise ClaimNotFound(f"{uid!r} is not the UID of a claim")
        return self._folder / f"{uid}.json"

    def _set_aside(self, path: Path, uid: str, error: RecordDamaged) -> None:
        log.error("a damaged record was set aside", claimUID=uid, file=self._aside, err=error)
        self._damaged[uid] = str(error)
        with suppress(FileNotFoundError):  # another call was faster
            path.replace(self._aside / path.name)
