"""Keeps a snapshot of the node's GPUs up to date, whatever they and their driver do."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dra_driver.config import Settings
from dra_driver.host import HostRoot
from dra_driver.model import (
    DriverError,
    Gpu,
    Health,
    HealthState,
    Inventory,
    Problem,
    combined,
)
from dra_driver.model.errors import DriverNotReady, HardwareBusy
from dra_driver.nvml import session as sessions
from dra_driver.nvml.errors import CallFailed, GpuAbsent
from dra_driver.nvml.gpu import Reading, normal_pci_bus_id
from dra_driver.nvml.library import LibraryFile, find_library
from dra_driver.nvml.listener import Tell
from dra_driver.nvml.session import Job, Outcome, Session, System
from dra_driver.nvml.snapshot import changes, next_inventory, next_places
from dra_driver.nvml.worker import Superseded
from dra_driver.telemetry import Metrics, logger

T = TypeVar("T")

_FIRST_RETRY_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0
_REOPEN_SECONDS: Final = 5.0  # that a call waits for a look which initialises NVML anew

_NO_EVENTS: Final = Health(
    HealthState.HEALTHY,
    "no-events",
    "XID events of this GPU can't be had; only polling tells of its health",
)

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the hardware gave; the very same inventory while nothing has changed."""

    inventory: Inventory
    began: float  # monotonic seconds
    driver_loads: int  # grows when the GPU driver was found loaded anew


class Discovery:
    """One thread that looks at the hardware every `poll_seconds`, or when asked to.

    It alone opens and closes NVML. While there is no driver or no GPU it looks more often at
    first, then at the usual pace, for as long as it takes.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        on_look: Callable[[Look], None],
        on_events: Tell,
    ) -> None:
        """Start nothing yet. The callbacks come from two threads and must not block.

        `on_look` is told of every look that was answered, `on_events` of NVML's events.
        """
        self._settings = settings
        self._metrics = metrics
        self._on_look = on_look
        self._on_events = on_events
        self._host = HostRoot(settings.host_root)
        self._change = threading.Condition()  # guards the next five; never held over a call
        self._inventory: Inventory | None = None
        self._reason = "NVML has not answered yet"
        self._asked = 0  # looks asked for so far
        self._done = 0  # ... and answered: a look serves all who asked before it began
        self._stopped = False
        self._session: Session | None = None  # the rest is the thread's own
        self._opened_with: frozenset[str] = frozenset()
        self._driver_loads = 0
        self._places: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def start(self) -> None:
        """Begin to look. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End within seconds, even when NVML hangs; lets go of the GPUs if it does not."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        if self._session is not None:
            self._session.close(_STOP_SECONDS)

    def current(self) -> Inventory | None:
        """Last snapshot; None until NVML has answered once."""
        return self._inventory

    def not_ready(self) -> str:
        """Why there is no snapshot or only an old one: one line; empty when all is well."""
        return self._reason

    def follow(self, settings: Settings) -> None:
        """Go on under these settings, whose paths are the same, with a look soon."""
        self._settings = settings
        self.refresh()

    def refresh(self) -> None:
        """Look again soon. Returns at once."""
        with self._change:
            self._asked += 1
            self._change.notify_all()

    def look(self, timeout: float) -> Inventory:
        """Give the snapshot of a look that begins now.

        Raises DriverNotReady when that takes longer than `timeout` seconds, or NVML is not there.
        """
        with self._change:
            self._asked += 1
            ticket = self._asked
            self._change.notify_all()
            self._change.wait_for(lambda: self._done >= ticket or self._stopped, timeout)
            if self._reason:
                raise DriverNotReady(self._reason)
            if self._done < ticket or self._inventory is None:
                raise DriverNotReady(f"the GPUs could not be looked at within {timeout:g} s")
            return self._inventory

    def on_gpu(self, uuid: str, job: Job[T], timeout: float) -> T:
        """Run `job` alone with the GPU of that UUID, on its own thread; gives what it gives.

        Raises what the job raises; GpuAbsent when the node has no such GPU, GpuLost when it has and
        can't use it any more, HardwareBusy when it does not answer within `timeout` seconds (the
        job goes on until its call returns) or not at all now, DriverNotReady without NVML.
        """
        try:
            return self._on_gpu(uuid, job, timeout)
        except (DriverNotReady, Superseded):  # the GPU driver was loaded anew, perhaps
            self.look(_REOPEN_SECONDS)
            return self._on_gpu(uuid, job, timeout)

    def _on_gpu(self, uuid: str, job: Job[T], timeout: float) -> T:
        session, inventory = self._session, self._inventory
        if session is not None:
            return session.on_gpu(uuid, job, timeout)
        if inventory is not None and not inventory.gpus and not self._reason:
            raise GpuAbsent(f"GPU {uuid} is not on this node any more: there are no GPUs")
        raise DriverNotReady(self._reason or "NVML is not open")

    def _run(self) -> None:
        pause = _FIRST_RETRY_SECONDS
        while not self._stopped:
            with self._change:
                ticket = self._asked
            settled = self._look_once()
            longest = self._settings.poll_seconds
            pause = longest if settled else min(pause, longest)
            with self._change:
                self._done = ticket
                self._change.notify_all()
                self._change.wait_for(lambda: self._asked > self._done or self._stopped, pause)
            pause = _FIRST_RETRY_SECONDS if settled else pause * 2

    def _look_once(self) -> bool:
        """Look, and keep what comes out; gives whether GPUs were found: then there is no haste."""
        try:
            return self._look()
        except Exception as error:  # noqa: BLE001 - the thread must outlive our own mistakes
            _log.exception("looking at the hardware failed")
            self._not_ready(f"looking at the hardware failed: {error}")
            return False

    def _look(self) -> bool:
        began = time.monotonic()
        try:
            system, outcomes = self._ask_anew_if_needed()
            outcomes = self._listen(outcomes)
        except DriverError as error:
            self._not_ready(str(error))
            if not isinstance(error, HardwareBusy):
                self._driver_is_gone()
            return False
        self._keep(system, outcomes, began)
        if system.gpu_count == 0:
            self._close_session()  # NVML lists what was there when it was initialised
        return system.gpu_count > 0

    def _ask_anew_if_needed(self) -> tuple[System, tuple[Outcome, ...]]:
        """Ask; when the driver was reloaded since the last look, initialise and ask once more."""
        held = self._session
        try:
            return self._ask()
        except DriverNotReady:
            if held is None or self._session is not held:
                raise
            self._driver_is_gone()
            return self._ask()

    def _ask(self) -> tuple[System, tuple[Outcome, ...]]:
        of_host = self._gpus_of_host()
        settings = self._settings
        file = find_library(settings.container_driver_root, settings.driver_root_shown)
        session = self._current_session(file, of_host)
        system = _with_missing_gpus(session.open(sessions.OPEN_SECONDS), of_host)
        known = {gpu.uuid: gpu for gpu in self._inventory.gpus} if self._inventory else {}
        outcomes = session.read(system.gpu_count, known, sessions.READ_SECONDS)
        gone = [o for o in outcomes if isinstance(o, CallFailed) and o.driver_gone]
        if gone and not any(isinstance(outcome, Reading) for outcome in outcomes):
            raise gone[0].explained(f"the GPU driver by {session.file.path}")
        return system, outcomes

    def _listen(self, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Listen to the GPUs that answered; one whose events can't be had says so."""
        if self._session is None:
            return outcomes
        heard = self._session.listen(
            {i: o.gpu.uuid for i, o in enumerate(outcomes) if isinstance(o, Reading)}
        )
        return tuple(
            replace(o, gpu=_without_events(o.gpu))
            if isinstance(o, Reading) and o.gpu.uuid not in heard
            else o
            for o in outcomes
        )

    def _current_session(self, file: LibraryFile, of_host: frozenset[str]) -> Session:
        """Session of that library; a new one when its file changed or the host has a new GPU."""
        session = self._session
        if session is not None and session.file != file:
            _log.info("GPU driver changed: loading NVML anew", library=file.path)
            self._driver_is_gone()
        elif session is not None and not of_host <= self._opened_with | self._listed():
            _log.info("there are new GPUs: initialising NVML anew", gpus=len(of_host))
            self._close_session()
        if self._session is None:
            self._session = Session(file, self._host, self._on_events, self.refresh)
            self._opened_with = of_host
        return self._session

    def _driver_is_gone(self) -> None:
        """Begin anew with whatever driver comes: what the old one said of the GPUs is void."""
        self._driver_loads += 1
        self._close_session()

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close(sessions.READ_SECONDS)
            self._session = None

    def _listed(self) -> frozenset[str]:
        """PCI addresses of the GPUs that NVML gave: for those it need not be initialised anew.

        Events that come between the end of one session and the next one's set are lost.
        """
        gpus = self._inventory.gpus if self._inventory else ()
        return frozenset(gpu.pci_bus_id for gpu in gpus if gpu.pci_bus_id)

    def _gpus_of_host(self) -> frozenset[str]:
        """PCI addresses of the GPUs that the kernel driver has; NVML misses later ones."""
        folder = self._settings.host_root / "proc/driver/nvidia/gpus"
        with suppress(OSError):
            names = [normal_pci_bus_id(entry.name) for entry in folder.iterdir()]
            return frozenset(name for name in names if name)
        return frozenset()

    def _not_ready(self, reason: str) -> None:
        self._metrics.set("gpu_dra_driver_nvml_ready", 0)
        with self._change:
            new, self._reason = reason != self._reason, reason
        if new:
            _log.warning("no answer from the GPU driver; looking again and again", err=reason)

    def _keep(self, system: System, outcomes: tuple[Outcome, ...], began: float) -> None:
        previous = self._inventory
        inventory = next_inventory(previous, self._places, system, outcomes, time.time())
        self._places = next_places(self._places, outcomes)
        with self._change:
            recovered, self._reason = bool(self._reason), ""
            self._inventory = inventory
        self._metrics.set("gpu_dra_driver_nvml_ready", 1)
        self._metrics.set("gpu_dra_driver_discovery_problems", len(inventory.problems))
        if recovered:
            _log.info("the GPU driver answers", driver=system.driver_version, gpus=system.gpu_count)
        for message, fields in changes(previous, inventory):
            say = _log.warning if "err" in fields else _log.info
            say(message, **fields)
        self._tell(Look(inventory, began, self._driver_loads))

    def _tell(self, look: Look) -> None:
        if self._stopped:
            return
        try:
            self._on_look(look)
        except Exception:  # noqa: BLE001 - whoever listens must not end discovery
            _log.exception("a listener failed on a look at the hardware")


def _with_missing_gpus(system: System, of_host: frozenset[str]) -> System:
    """Note GPUs that the kernel driver has and NVML does not list: mostly a matter of /dev."""
    system = replace(system, kernel_gpus=of_host)
    if system.gpu_count >= len(of_host):
        return system
    message = (
        f"NVML lists {system.gpu_count} of the {len(of_host)} GPUs that the kernel driver has; "
        "the others are left out; check /dev/nvidia* and that the plugin is privileged"
    )
    return replace(system, problems=(*system.problems, Problem("node", message)))


def _without_events(gpu: Gpu) -> Gpu:
    return replace(gpu, health=combined((gpu.health, _NO_EVENTS)))
