"""Keeps the ResourceSlices of this node as they should be, whatever happens to them.

One thread compares, each time something changed: what should be there (pure builder) with what is
there (mirror of the API server), and does the fewest writes in between. Nothing is written while
nothing changes, and nothing is deleted when the driver stops: the kubelet does that, after a while.

Of several instances on one node, as during an update, the newest publishes. An older one makes no
further write, and takes over again when the newer ones are gone.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.config import Settings
from dra_driver.host.succession import Succession
from dra_driver.kube import ApiBusy, KubeClient
from dra_driver.model import DriverError, Inventory
from dra_driver.model.errors import ApiUnavailable
from dra_driver.slices.backoff import Backoff
from dra_driver.slices.left_out import LeftOut, Why
from dra_driver.slices.mirror import SliceMirror
from dra_driver.slices.reconcile import Outcome, Reconciler, Superseded
from dra_driver.telemetry import Event, EventQueue, Metrics, logger, operation

log = logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between attempts that fail
_FIRST_REPAIR, _LONGEST_REPAIR = 0.05, 4.0  # seconds before what others changed is put right
_CALM: Final = 30.0  # seconds without a repair after which the next one is quick again
_JOIN_SECONDS: Final = 2.0
_STANDBY: Final = 1.0  # seconds between two looks whether the newer instances are gone
_HELD_LOOK: Final = 2.0  # seconds between two looks whether a claim that holds a GPU up is gone


class Publisher:
    """Reconciles the slices of one node with the newest snapshot of its hardware."""

    def __init__(
        self,
        kube: KubeClient,
        settings: Settings,
        metrics: Metrics,
        events: EventQueue,
        held: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Keep the parts; nothing runs before `start`.

        `held` says which claims hold partitions, by GPU UUID; it may raise DriverError.
        """
        self._metrics = metrics
        self._events = events
        self._mirror = SliceMirror(kube, self._look_soon)
        self._instances = Succession(settings.data_folder / "publisher.lock")
        self._reconciler = Reconciler(kube, settings, self._mirror, metrics, self._instances, held)
        self._wake = threading.Condition()
        self._inventory: Inventory | None = None
        self._published: Inventory | None = None
        self._is_due = False
        self._is_running = False
        self._stands_by = False
        self._waits_for_server = False
        self._not_before = 0.0
        self._problem = "the hardware has not been looked at yet"  # empty: complete
        self._stopping = False
        self._retry = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._repair_pause = _FIRST_REPAIR
        self._last_repair = 0.0
        self._left_out: tuple[LeftOut, ...] = ()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to watch and to publish."""
        self._mirror.start()
        self._thread.start()

    def stop(self) -> None:
        """End the threads; the slices stay, and an older instance may take over."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._mirror.stop()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self._instances.leave()

    def publish(self, inventory: Inventory) -> None:
        """Set what should be there; the newest call counts. Never blocks."""
        with self._wake:
            self._inventory = inventory
            if inventory != self._published and not self._stands_by:
                self._note("the newest snapshot of the hardware is not published yet")
            self._is_due = True
            self._wake.notify_all()

    def poke(self) -> None:
        """Look at the API server again now, as when the kubelet has just wiped the slices."""
        with self._wake:
            self._not_before = 0.0
        self._mirror.refresh()

    def complete(self) -> bool:
        """Whether the API server has the slices of the newest snapshot, as far as is known."""
        return not self.problem()

    def problem(self) -> str:
        """Why it is not complete, in one line; empty when it is, or a newer instance's business."""
        with self._wake:
            if self._inventory is not None and self._mirror.epoch == 0:
                return self._mirror.problem()
            return self._problem

    def _look_soon(self, *, others_changed: bool) -> None:
        """Note that the mirror has changed; whoever undoes our work at once does not busy us."""
        with self._wake:
            if others_changed and not (self._is_due or self._is_running):
                now = time.monotonic()
                if now - self._last_repair > _CALM:
                    self._repair_pause = _FIRST_REPAIR
                self._not_before = max(self._not_before, now + self._repair_pause)
                self._note(self._problem or "somebody else has changed the slices")
            elif not others_changed and self._waits_for_server:
                self._not_before = 0.0  # it has just answered
            self._is_due = True  # while a pass runs this may be an echo of its own writes
            self._wake.notify_all()

    def _note(self, problem: str) -> None:
        """Set what keeps the slices from being complete; empty: they are. Under the lock."""
        self._problem = problem
        self._metrics.set("gpu_dra_driver_published", float(not problem))

    def _run(self) -> None:
        while (inventory := self._next()) is not None:
            with operation():
                try:
                    outcome = self._reconciler.run(inventory)
                except Superseded:
                    self._stand_by()
                except DriverError as error:
                    self._fail(error)
                except Exception as error:
                    log.exception("unexpected failure of publishing")
                    self._fail(error)
                else:
                    self._succeed(inventory, outcome)

    def _next(self) -> Inventory | None:
        """Wait until something is to be done; None when the publisher stops."""
        with self._wake:
            while not self._stopping:
                left = self._not_before - time.monotonic()
                is_possible = self._inventory is not None and self._mirror.epoch > 0
                if self._is_due and is_possible and left <= 0:
                    self._is_due, self._is_running = False, True
                    return self._inventory
                pause = _HELD_LOOK if self._waits_for_claims() else None
                if not self._wake.wait(left if self._is_due and left > 0 else pause):
                    self._is_due = True
        return None

    def _waits_for_claims(self) -> bool:
        """Whether a GPU is left out because of a claim; nobody tells when that claim is gone."""
        return any(entry.why is Why.HELD for entry in self._left_out)

    def _succeed(self, inventory: Inventory, outcome: Outcome) -> None:
        self._take_part(stands_by=False)
        self._tell(outcome.left_out)  # first: complete is also that
        with self._wake:
            self._is_running = False
            self._retry.reset()
            if outcome.writes and inventory == self._published:
                self._last_repair = time.monotonic()
                self._not_before = self._last_repair + self._repair_pause
                self._repair_pause = min(2 * self._repair_pause, _LONGEST_REPAIR)
            self._published = inventory
            if inventory is self._inventory and not self._is_due:
                self._note("")
        if outcome.writes:
            log.info("slices are published", writes=outcome.writes)

    def _stand_by(self) -> None:
        """Leave the slices to the newer instance, and look regularly whether it is still there."""
        self._take_part(stands_by=True)
        with self._wake:
            self._is_running = False
            self._retry.reset()
            self._not_before = time.monotonic() + _STANDBY
            self._is_due = True
            self._note("")

    def _take_part(self, *, stands_by: bool) -> None:
        self._metrics.set("gpu_dra_driver_publisher", float(not stands_by))
        if stands_by != self._stands_by:
            self._stands_by = stands_by
            log.info("a newer instance publishes" if stands_by else "publishing again")

    def _fail(self, error: Exception) -> None:
        """Try again after a pause that grows; the server may ask for a longer one."""
        asked = error.retry_after if isinstance(error, ApiBusy) else 0.0
        problem = str(error) or type(error).__name__
        with self._wake:
            self._is_running = False
            pause = max(self._retry.pause(), asked)
            self._not_before = time.monotonic() + pause
            self._waits_for_server = isinstance(error, ApiUnavailable) and not asked
            self._is_due = True
            is_new = problem != self._problem
            self._note(problem)
        if is_new:
            log.warning("slices are not published; tried again", pause=round(pause, 2), err=error)

    def _tell(self, left_out: tuple[LeftOut, ...]) -> None:
        """Report what is not published, once each time it changes."""
        for why in Why:
            count = sum(entry.why is why for entry in left_out)
            self._metrics.set("gpu_dra_driver_left_out", count, reason=why.value)
        for entry in left_out:
            if entry in self._left_out:
                continue
            log.warning("left out", device=entry.device, field=entry.field, err=entry)
            if entry.why is Why.NOT_SHARED:
                self._events.add(Event("DeviceNotShared", str(entry), warning=True))
            elif not entry.field:
                self._events.add(Event("DeviceNotPublished", str(entry), warning=True))
        self._left_out = left_out
