"""Finds at start and regularly what nobody will ever unprepare, and restores what went missing.

Three kinds of leftovers, each taken away only on proof:

* a CDI file without a record: nothing can refer to it any more;
* a record whose claim the API server no longer has, twice in a row, while the kubelet lists no
  container with that claim: the kubelet has lost its own notes (`dra_manager_state`);
* a claim record without its CDI file: the folder was emptied; it is written again, since a
  container that restarts within its sandbox does so without a call to this driver.

A failed read proves nothing.
"""

import threading
from pathlib import Path
from typing import Final

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims.engine import Engine
from dra_driver.kube import KubeClient
from dra_driver.kube.pod_resources import claims_in_use
from dra_driver.model import ClaimRef, DriverError
from dra_driver.model.errors import ClaimChanged, ClaimNotAllocated, ClaimNotFound
from dra_driver.state import Phase, Records
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
        self._records: Records = engine.records
        self._specs = specs
        self._kube = kube
        self._pod_resources = pod_resources
        self._interval = interval
        self._stopping = threading.Event()
        self._suspects: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def start(self) -> None:
        """Begin with a sweep at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step in hand; waits a second at most."""
        self._stopping.set()
        self._thread.join(1.0)

    def sweep(self) -> None:
        """Look once at everything; a failure of one look is logged and ends that look only."""
        for look in (self._remove_stray_files, self._restore_files, self._remove_dead_claims):
            try:
                with operation():
                    look()
            except DriverError as error:
                log.warning("a look at leftovers failed", look=look.__name__, err=error)

    def _run(self) -> None:
        self.sweep()
        while not self._stopping.wait(self._interval):
            self.sweep()

    def _remove_stray_files(self) -> None:
        for uid in sorted(self._specs.claim_uids()):
            with self._records.claim_lock(uid):
                if self._records.get(uid) is None and uid not in self._records.damaged:
                    log.info("a CDI file without a record is removed", claimUID=uid)
                    self._specs.undo(uid)

    def _restore_files(self) -> None:
        present = self._specs.claim_uids()
        for record in self._records.all():
            if record.uid in present or record.phase is not Phase.PREPARED:
                continue
            try:
                self._engine.restore(record.ref)
            except DriverError as error:
                log.warning("a claim can't be restored", claim=record.ref, err=error)

    def _remove_dead_claims(self) -> None:
        dead = {record.ref for record in self._records.all() if self._is_gone(record.ref)}
        suspects = {ref.uid for ref in dead}
        confirmed = [ref for ref in dead if ref.uid in self._suspects]
        self._suspects = suspects
        if not confirmed:
            return
        in_use = claims_in_use(self._pod_resources)
        for ref in confirmed:
            if (ref.namespace, ref.name) in in_use:
                continue
            log.info("a claim that exists no more is unprepared", claim=ref, claimUID=ref.uid)
            self._engine.unprepare([ref], self._stopping.is_set)

    def _is_gone(self, ref: ClaimRef) -> bool:
        try:
            self._kube.get_claim(ref, _API_SECONDS)
        except (ClaimNotFound, ClaimChanged):
            return True
        except ClaimNotAllocated:
            return False  # it exists; the kubelet may still be at work on it
        except DriverError as error:
            log.debug("nothing is known of a claim", claim=ref, err=error)
            return False
        return False
