"""Layouts: brings each GPU of mode Static to its layout, and keeps it so.

`layout_plan` decides what a GPU lacks and for whom that waits, `layout_change` makes it,
`layout_status` tells how far it is, `layout_label` is the interface by a label of the Node.

Nothing is changed while somebody uses the GPU: a claim, a process, or a partition that this driver
did not make. Meanwhile the GPU is held back from new claims, by the snapshot that slices are made
of. After a reboot or a reload of the GPU driver the same partitions are made again, also while
claims hold them. Of several instances on a node the newest does the work.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from dra_driver.claims.layout_case import Case, Cases
from dra_driver.claims.layout_change import LayoutChange
from dra_driver.claims.layout_label import LayoutLabel
from dra_driver.claims.layout_plan import (
    Obstacles,
    Target,
    lost_by_claims,
    noted,
    users,
    why_impossible,
)
from dra_driver.claims.layout_status import LayoutReports, LayoutState, LayoutStatus
from dra_driver.claims.layout_tries import Outcome, Tries
from dra_driver.config import NodeConfig, Settings
from dra_driver.host.succession import Succession
from dra_driver.mig import Gpus, LayoutEffect
from dra_driver.model import BadNode, DriverError, Gpu, Inventory
from dra_driver.model.errors import HardwareBusy, StorageFailed
from dra_driver.state import Holding, LayoutNotes, Records
from dra_driver.telemetry import logger, operation

log = logger(__name__)

_POLL_SECONDS: Final = 2.0  # while a change waits: nothing tells that a claim or process has ended
_LOOK_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 3.0  # from allocation of a claim to its Prepare, mostly


class Hardware(Gpus, Protocol):
    """What layouts need of the hardware."""

    def current(self) -> Inventory | None:
        """Last snapshot; None until the hardware has been looked at once."""

    def look(self, timeout: float) -> Inventory:
        """Snapshot of a look that begins now; raises DriverNotReady after `timeout` seconds."""


class Layouts:
    """Applies layouts in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        config: Callable[[], NodeConfig],
        label: LayoutLabel,
        hardware: Hardware,
        records: Records,
        when_none_left: Callable[[], None],
        reports: LayoutReports,
    ) -> None:
        """Keep the parts; nothing is read or changed before `start`.

        `when_none_left` is called when the last record is forgotten, as by `Records.forget`.
        """
        self._config = config
        self._label = label
        self._hardware = hardware
        self._records = records
        self._reports = reports
        self._notes = LayoutNotes(settings.data_folder)
        self._cases = Cases(self._notes)
        effect = LayoutEffect(hardware, settings)
        self._change = LayoutChange(records, self._notes, effect, when_none_left)
        self._succession = Succession(settings.data_folder / "layouts.lock")
        self._tries = Tries()
        self._done: dict[str, Target | None] = {}  # by GPU: what was made and not seen yet
        self._held_since: dict[str, float] = {}  # by GPU: monotonic seconds
        self._pause = _POLL_SECONDS
        self._is_busy = False  # something waits
        self._led = False
        self._said = ""
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="layouts", daemon=True)

    def configured(self, inventory: Inventory) -> Inventory:
        """Snapshot in which each GPU has its policy, and is held back while a change is due."""
        config = self._config()
        inventory = self._label.configured(inventory, config)
        try:
            cases = self._cases.of(inventory, config)
        except StorageFailed as error:
            log.warning("which layouts were begun is not known now", err=error)
            return inventory
        return replace(inventory, gpus=tuple(self._hold_back(case) for case in cases))

    def start(self) -> None:
        """Begin to bring GPUs to their layouts. Raises StorageFailed."""
        self._notes.load()
        self._thread.start()

    def poke(self) -> None:
        """Look at everything soon: something has changed. Returns at once."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no further change; waits three seconds at most for the one in hand.

        One that is cut off by the end of the process is gone on with at the next start.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        self._succession.leave()

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_poked = self._wake.wait(self._pause)
            self._wake.clear()
            self._pause = _POLL_SECONDS
            try:
                with operation():
                    self._look_after(is_poked=is_poked)
            except DriverError as error:
                self._is_busy = True  # what it was poked for is not done
                if self._said != str(error):
                    log.warning("layouts can't be looked after", err=error)
                self._said = str(error)
            except Exception:  # the thread must outlive our own mistakes
                self._is_busy = True
                log.exception("looking after layouts failed")
            else:
                self._said = ""

    def _look_after(self, *, is_poked: bool) -> None:
        """Look at all GPUs if there is a reason to. Only the newest instance does."""
        current = self._hardware.current()
        if current is None or not self._label.is_known:
            return  # a poke comes with the first snapshot, and with the labels
        self._succession.join()
        leads = self._succession.is_last()
        if not leads:
            self._reports.tell((), ())
            self._label.stand_by()
        elif is_poked or self._is_busy or not self._led:
            self._attend(current)
        self._led = leads

    def _attend(self, current: Inventory) -> None:
        config = self._config()
        inventory = self._label.configured(current, config)
        holdings, done = self._records.holdings(), set(self._done)
        statuses: list[LayoutStatus] = []
        for case in self._cases.of(inventory, config):
            if not self._stopping.is_set():
                status = self._attend_to(case, users(holdings, case.gpu.uuid))
                statuses += [status] if status is not None else []
        is_reserved = self._change.drop_stale()
        present = {gpu.uuid for gpu in inventory.gpus}
        self._tries.keep_only(present)
        self._done = {uuid: made for uuid, made in self._done.items() if uuid in present}
        waits = any(each.state is LayoutState.WAITING for each in statuses)
        self._reports.tell(statuses, done - self._done.keys())
        is_owed = self._label.report(inventory, statuses)
        self._is_busy = waits or is_reserved or is_owed or bool(self._done or self._tries)

    def _attend_to(self, case: Case, held: Sequence[Holding]) -> LayoutStatus | None:
        """Do for a GPU what can be done now; None when no layout concerns it."""
        uuid, target = case.gpu.uuid, case.target
        is_lost = lost_by_claims(case.gpu, case.note, held)
        if target is None and not is_lost:
            self._tries.forget(uuid)
            self._done.pop(uuid, None)
            return self._settled(case)
        why = why_impossible(case.gpu, target) if target is not None else ""
        if why:
            if is_lost:
                self._try(case, None, held, is_urgent=True)
            return case.status(LayoutState.FAILED, why)
        return self._try(case, target, held, is_urgent=is_lost)

    def _settled(self, case: Case) -> LayoutStatus | None:
        """Keep in mind where the partitions of the layout are; there is nothing else to do."""
        if case.misfit:
            return case.status(LayoutState.FAILED, case.misfit)
        if case.wanted is None:
            return None
        self._notes.keep(case.gpu.uuid, case.gpu.policy.layout, noted(case.gpu, case.note))
        return case.status(LayoutState.APPLIED)

    def _try(
        self, case: Case, target: Target | None, held: Sequence[Holding], *, is_urgent: bool
    ) -> LayoutStatus:
        """Make a change, unless it has failed a moment ago or somebody uses the GPU."""
        uuid = case.gpu.uuid
        known = self._tries.known(uuid, target, held)
        if known is not None and not (is_urgent and isinstance(known, Obstacles)):
            return _unfinished(case, known)
        rest = 0.0 if is_urgent or target is None else self._not_free_for(case)
        may_begin = rest <= 0
        try:
            make = self._made if may_begin else self._change.obstacles
            obstacles = make(case.gpu, target)
        except DriverError as error:
            self._tries.failed(uuid, target, error)
            self._look_again()  # what is left, and whether it is still to be held back
            return _unfinished(case, error)
        if obstacles is not None:
            self._tries.waits(uuid, target, held, obstacles)
            return _unfinished(case, obstacles)
        if may_begin:
            self._tries.forget(uuid)
            self._done[uuid] = target
            self._wake.set()
            self._look_again()
        else:
            self._pause = min(self._pause, rest)
        return case.status(LayoutState.WAITING)

    def _look_again(self) -> None:
        with suppress(DriverError):
            self._hardware.look(_LOOK_SECONDS)

    def _not_free_for(self, case: Case) -> float:
        """Seconds until claims that were allocated before the GPU was held back have come.

        One that comes later finds its device gone, and somebody has to delete it. Those that have
        lost their partitions are not kept waiting, nor is a change that was begun.
        """
        since = self._held_since.get(case.gpu.uuid)
        if case.target and self._tries.is_hopeless(case.gpu.uuid, case.target):
            return 0.0  # not held back any more
        if since is None:  # nor yet
            return _SETTLE_SECONDS
        return 0.0 if case.is_begun else since + _SETTLE_SECONDS - time.monotonic()

    def _made(self, gpu: Gpu, target: Target | None) -> Obstacles | None:
        """Make the change; raises HardwareBusy when it was made and does not show."""
        if gpu.uuid in self._done and self._done.pop(gpu.uuid) == target:
            raise HardwareBusy(
                f"GPU {gpu.uuid} does not show what was made of it; look at the kernel log"
            )
        return self._change.make(gpu, target)

    def _hold_back(self, case: Case) -> Gpu:
        """Give the GPU with why no new claim may have it, and note since when."""
        why = self._held_back(case)
        if not why:
            self._held_since.pop(case.gpu.uuid, None)
        else:
            self._held_since.setdefault(case.gpu.uuid, time.monotonic())
        return replace(case.gpu, held_back=why)

    def _held_back(self, case: Case) -> str:
        """Say why no new claim may have the GPU; empty: it may.

        A change that nobody here can make does not take the GPU out of use, unless it was begun.
        """
        target = case.target
        if target is None or why_impossible(case.gpu, target):
            return ""
        if self._tries.is_hopeless(case.gpu.uuid, target):
            return str(target) if case.is_begun else ""
        return f"{target} as soon as nobody uses the GPU"


def _unfinished(case: Case, outcome: Outcome) -> LayoutStatus:
    if isinstance(outcome, Obstacles):
        return case.status(LayoutState.WAITING, f"waits for {outcome}")
    is_lasting = isinstance(outcome, BadNode)
    return case.status(LayoutState.FAILED if is_lasting else LayoutState.WAITING, str(outcome))
