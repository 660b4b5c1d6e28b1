"""Writes the statuses of claims in a thread of its own: no Prepare waits for it, none fails of it.

Each claim waits with its newest status only. An API server that is away or busy holds all of them
back. A permission may be missing for one claim alone (from 1.36 on it depends on how the claim's
node was written down), so that one waits by itself.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.client import KubeClient
from dra_driver.kube.errors import ApiBusy
from dra_driver.model import ClaimStatus, DriverError, TryAgain
from dra_driver.model.errors import (
    ClaimChanged,
    ClaimNotAllocated,
    ClaimNotFound,
    PermissionMissing,
)
from dra_driver.telemetry import Metrics, logger

log = logger(__name__)

_CAPACITY: Final = 1024  # claims; beyond it the one that waits for longest is dropped
_FIRST_PAUSE: Final = 1.0  # seconds, doubled each time
_LONGEST_PAUSE: Final = 60.0
_PERMISSION_PAUSE: Final = 300.0  # a person has to act first
_LAST_SECONDS: Final = 2.0  # for what still waits at the stop; the next start writes the rest
_QUIET_SECONDS: Final = 3600.0
_METRIC: Final = "gpu_dra_driver_claim_status_writes_total"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A status, and the monotonic second from which on it may be sent."""

    status: ClaimStatus
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class _Again:
    """Seconds until another try: of this claim, or of all since the server is in trouble."""

    seconds: float
    for_all: bool


class ClaimStatusSender:
    """Takes statuses from anybody and applies them to their claims."""

    def __init__(
        self,
        kube: KubeClient,
        metrics: Metrics,
        still_holds: Callable[[ClaimStatus], bool],
    ) -> None:
        """Keep the parts; nothing runs before `start`.

        A status of which `still_holds` says no is not written: it may have waited for long, while
        another instance of this driver prepared its claim anew.
        """
        self._kube = kube
        self._metrics = metrics
        self._still_holds = still_holds
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()  # by claim UID, in turn
        self._stopping = threading.Event()
        self._told: dict[str, float] = {}  # when a trouble was told last, by reason word
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, for two seconds at most, and end."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2 * _LAST_SECONDS)

    def add(self, status: ClaimStatus) -> None:
        """Let a claim's status be written, in the place of one that still waits.

        Never blocks, never fails.
        """
        dropped: _Waiting | None = None
        with self._changed:
            self._waiting[status.ref.uid] = _Waiting(status)
            if len(self._waiting) > _CAPACITY:
                _, dropped = self._waiting.popitem(last=False)
            self._changed.notify_all()
        if dropped is not None:
            self._count("dropped")
            log.warning("too many claim statuses wait: one is dropped", claim=dropped.status.ref)

    def forget(self, uid: str) -> None:
        """Write nothing any more of a claim whose devices are taken back."""
        with self._changed:
            self._waiting.pop(uid, None)

    def _run(self) -> None:
        troubles = 0
        while (status := self._next()) is not None:
            again = self._send(status)
            self._settle(status, again)
            if again is None or not again.for_all:
                troubles = 0
                continue
            backoff = min(_FIRST_PAUSE * 2 ** min(troubles, 10), _LONGEST_PAUSE)
            troubles += 1
            self._stopping.wait(max(again.seconds, backoff))
        self._send_last()

    def _next(self) -> ClaimStatus | None:
        """Wait for a status that is due; it keeps its place until `_settle`. None at the stop."""
        with self._changed:
            while not self._stopping.is_set():
                now = time.monotonic()
                for waiting in self._waiting.values():
                    if waiting.due <= now:
                        return waiting.status
                soonest = min((waiting.due for waiting in self._waiting.values()), default=None)
                self._changed.wait(None if soonest is None else soonest - now)
        return None

    def _settle(self, status: ClaimStatus, again: _Again | None) -> None:
        """Take it out, or to the end of the queue; a newer one that came meanwhile stays."""
        uid = status.ref.uid
        with self._changed:
            waiting = self._waiting.get(uid)
            if waiting is None or waiting.status is not status:
                return
            del self._waiting[uid]
            if again is not None:
                pause = 0.0 if again.for_all else again.seconds
                self._waiting[uid] = _Waiting(status, time.monotonic() + pause)

    def _send_last(self) -> None:
        now = time.monotonic()
        deadline = now + _LAST_SECONDS
        with self._changed:
            left = [each.status for each in self._waiting.values() if each.due <= now]
        for status in left:
            again = self._send(status)
            if time.monotonic() > deadline or (again is not None and again.for_all):
                return

    def _send(self, status: ClaimStatus) -> _Again | None:
        """Try once; None when no other try is due."""
        try:
            is_kept = self._apply(status)
        except (ClaimNotFound, ClaimChanged, ClaimNotAllocated) as error:
            self._count("gone")
            log.debug("a claim needs no status any more", claim=status.ref, err=error)
        except PermissionMissing as error:
            self._count("forbidden")
            self._tell("claims get no device status", error.reason, error)
            return _Again(_PERMISSION_PAUSE, for_all=False)
        except TryAgain as error:
            self._count("unavailable")
            self._tell("claims get their device status late", error.reason, error)
            asked = error.retry_after if isinstance(error, ApiBusy) else 0.0
            return _Again(asked, for_all=True)
        except DriverError as error:
            self._count("refused")
            log.warning("a claim's device status is refused", claim=status.ref, err=error)
        except Exception:  # the thread must outlive our own mistakes
            self._count("refused")
            log.exception("a claim's device status cannot be written", claim=status.ref)
        else:
            self._count("written" if is_kept else "ignored")
            log.debug("a claim's device status is written", claim=status.ref, kept=is_kept)
            if not is_kept:
                gate = "DRAResourceClaimDeviceStatus"
                self._tell("the API server keeps no device status of claims", gate, "it is off")
        return None

    def _apply(self, status: ClaimStatus) -> bool:
        if not self._still_holds(status):
            raise ClaimChanged(f"claim {status.ref} was prepared anew, or is not any more")
        return self._kube.apply_claim_status(status)

    def _tell(self, what: str, reason: str, error: object) -> None:
        """Log a trouble that may concern every claim once in an hour, however many it meets."""
        now = time.monotonic()
        if now - self._told.get(reason, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._told[reason] = now
            log.warning(what, reason=reason, err=error)

    def _count(self, result: str) -> None:
        self._metrics.count(_METRIC, result=result)
