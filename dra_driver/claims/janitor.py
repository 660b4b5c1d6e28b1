"""Finds at start and regularly what nobody will ever unprepare, and restores what went missing.

* A record that was lost while its CDI file tells of it is written again.
* A CDI file without a record, and without a word of what it was for, is removed.
* A CDI file that went missing is written again: a container that restarts within its sandbox does
  so without a call to this driver. The common file also when the GPU driver was changed. A
  partition that this driver made and a reboot or a driver reload took is made again.
* How claims share devices is set again: it is lost when for a moment nobody holds a GPU open.
* How hard the limits of their memory hold is told anew where the claims beside them changed it.
* A claim is unprepared when for a whole interval the kubelet has listed no container with it, and
  the API server says that it is gone or holds other devices: the kubelet has lost its own notes
  (`dra_manager_state`).

A failed read proves nothing.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims.engine import Engine
from dra_driver.kube import KubeClient
from dra_driver.kube.pod_resources import claims_in_use
from dra_driver.model import DriverError
from dra_driver.model.errors import (
    ApiUnavailable,
    ClaimChanged,
    ClaimNotAllocated,
    ClaimNotFound,
    HardwareBusy,
)
from dra_driver.state import ClaimRecord, Phase, is_reservation
from dra_driver.telemetry import logger, operation

log = logger(__name__)

_API_SECONDS: Final = 10.0


class Janitor:
    """Sweeps in a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        specs: ClaimSpecs,
        kube: KubeClient,
        pod_resources: Path,
        interval: float,
    ) -> None:
        """Sweep every `interval` seconds; `pod_resources` is the kubelet's socket."""
        self._engine = engine
        self._records = engine.records
        self._specs = specs
        self._kube = kube
        self._pod_resources = pod_resources
        self._interval = interval
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._suspects: dict[str, float] = {}  # UIDs, and since when nobody seems to need them
        self._is_api_away = False
        self._has_told = False  # whether all statuses of claims were handed on since the start
        self._said: dict[str, str] = {}  # by what it is about: a trouble is told once
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def start(self) -> None:
        """Begin with a sweep at once."""
        self._thread.start()

    def poke(self) -> None:
        """Sweep soon: something has changed. Returns at once."""
        self._wake.set()

    def stop(self) -> None:
        """End after the step in hand; waits a second at most."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def sweep(self) -> None:
        """Look once at everything; a failure of one look is logged and ends that look only."""
        looks = {
            "mend records": self._records.recover,
            "look for stray CDI files": self._remove_stray_files,
            "look for what claims have lost": self._restore,
            "set again how claims share devices": self._engine.set_again,
            "tell how hard limits of memory hold": self._engine.follow_limits,
            "look for claims that nobody needs": self._remove_dead_claims,
        }
        for what, look in looks.items():
            with operation():
                self._try(what, look)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.sweep()
            self._wake.wait(self._interval)
            self._wake.clear()  # here: a wish to stop that came just before is seen above

    def _try(self, what: str, work: Callable[[], object]) -> None:
        """Do a piece of work; what goes wrong is told once and left for the next sweep."""
        try:
            work()
        except DriverError as error:
            if self._said.get(what) != str(error):
                log.warning("the janitor cannot do something", what=what, err=error)
            self._said[what] = str(error)
        except Exception:  # the thread must outlive our own mistakes
            log.exception("the janitor failed", what=what)
        else:
            self._said.pop(what, None)

    def _remove_stray_files(self) -> None:
        recorded = {record.uid for record in self._records.all()}
        for uid in sorted(self._specs.claim_uids() - recorded - set(self._records.damaged)):
            try:
                with self._records.claim_lock(uid, timeout=0):
                    if self._records.get(uid) is None:
                        log.info("a CDI file without a record is removed", claimUID=uid)
                        self._specs.undo(uid)
            except HardwareBusy:
                continue  # somebody is at work on it

    def _restore(self) -> None:
        if not self._engine.knows_hardware:
            return  # a poke comes with the first snapshot
        present = self._specs.claim_uids()
        records = [record for record in self._records.all() if record.phase is Phase.PREPARED]
        incomplete = self._engine.without_partition(records)
        for record in records:
            if record.uid not in present or record.uid in incomplete:
                self._try(f"restore {record.ref}", partial(self._engine.restore, record.ref))
        alone_with = partial(self._records.claim_lock, timeout=0)
        self._records.while_held(partial(self._specs.refresh_common, alone_with))
        if not self._has_told:
            self._engine.tell_all()
            self._has_told = True

    def _remove_dead_claims(self) -> None:
        in_use = claims_in_use(self._pod_resources)
        self._is_api_away = False
        dead = [
            record
            for record in self._records.all()
            if not is_reservation(record.ref)
            and not _is_listed(record, in_use)
            and not self._is_api_away  # else each is waited for, and all other looks with it
            and self._is_gone(record)
        ]
        now = time.monotonic()
        self._suspects = {record.uid: self._suspects.get(record.uid, now) for record in dead}
        for record in dead:
            if now - self._suspects[record.uid] >= self._interval and not self._stopping.is_set():
                self._engine.unprepare_if(record.ref, self._is_gone, self._stopping.is_set)

    def _is_gone(self, record: ClaimRecord) -> bool:
        """Whether the API server says that the claim does not hold these devices."""
        if not record.name:
            return False  # of a claim that was taken over without a name nobody can be asked
        try:
            claim = self._kube.get_claim(record.ref, _API_SECONDS)
        except (ClaimNotFound, ClaimChanged, ClaimNotAllocated):
            return True
        except DriverError as error:
            self._is_api_away = isinstance(error, ApiUnavailable)
            log.debug("nothing is known of a claim", claim=record.ref, err=error)
            return False
        allocated = {(device.pool, device.device) for device in claim.devices}
        return not any((device.pool, device.device) in allocated for device in record.devices)


def _is_listed(record: ClaimRecord, in_use: Mapping[tuple[str, str], frozenset[str]]) -> bool:
    """Whether a container has the claim; the CDI ids of another of its name hold another UID."""
    ids = in_use.get((record.namespace, record.name))
    return ids is not None and (not ids or any(record.uid in cdi_id for cdi_id in ids))
