"""What becomes of the control daemons that claims have, told to the people who have the claims.

A daemon that ends takes its programs' GPU away: each claim that has it gets an Event, its devices
are unhealthy for the kubelet until clients can attach again, and metrics say how many sets are
concerned. When the agent ends, all its daemons do.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.config import Settings
from dra_driver.model import ClaimRef, Gpu, Health, HealthState, Inventory, combined
from dra_driver.model.errors import DriverError
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing.mps_client import AgentAway, MpsAgent
from dra_driver.sharing.mps_notes import MpsFolders, SetNotes
from dra_driver.state import Holding, Place
from dra_driver.telemetry import Event, EventQueue, Metrics, logger

_log = logger(__name__)

_AGAIN_SECONDS: Final = 0.5  # between two tries to reach the agent that claims need
_IDLE_SECONDS: Final = 2.0  # ... or that none needs
_SOON_SECONDS: Final = 0.05  # ... or that was there a moment ago
_NEWS_SECONDS: Final = 300  # an interruption so long ago was told by the process before
_MPS_DOWN: Final = "mps-down"
_READY, _DOWN = "ready", "down"
_WORDS: Final = {pb.STARTING: "starting", pb.READY: _READY, pb.SILENT: "silent", pb.DOWN: _DOWN}


@dataclass(frozen=True, slots=True)
class _Daemon:
    """What matters of a set's daemon to those who have the set."""

    state: str
    words: str  # why it is not ready
    interruptions: int
    interrupted_at: int  # Unix seconds

    @classmethod
    def of(cls, found: pb.SetState) -> "_Daemon":
        state = _WORDS.get(found.state, _DOWN)
        return cls(state, found.words, found.interruptions, found.interrupted_at)


@dataclass(frozen=True, slots=True)
class _View:
    """What is known of the sets."""

    away: str = ""  # why the agent does not answer; empty: it does
    agent_id: str = ""
    sets: Mapping[str, _Daemon] = field(default_factory=dict)

    def trouble(self, mps_set: str) -> str:
        """Why programs can't attach to a set's daemon; empty: they can, or never could."""
        if self.away:
            return self.away
        found = self.sets.get(mps_set)
        if found is None or found.state == _READY:
            return ""
        return found.words or f"the control daemon is {found.state}"


class MpsWatch:
    """Watches the agent in a thread of its own, while some claim has a set."""

    def __init__(
        self,
        settings: Settings,
        holdings: Callable[[], Iterable[Holding]],
        metrics: Metrics,
        events: EventQueue,
        changed: Callable[[], None],
    ) -> None:
        """Start nothing yet. `changed` is told when `with_troubles` may give something else."""
        folders = MpsFolders(settings)
        self._agent = MpsAgent(folders.socket)
        self._notes = SetNotes(folders)
        self._holdings = holdings
        self._metrics = metrics
        self._events = events
        self._changed = changed
        self._view = _View()
        self._told: set[str] = set()  # sets whose claims were told that they are interrupted
        self._began = time.time()
        self._stopping = threading.Event()
        self._end_stream: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="mps-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._metrics.before_exposition(self._count)
        self._thread.start()

    def stop(self) -> None:
        """End; waits a second at most."""
        self._stopping.set()
        self._end_stream()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def with_troubles(self, inventory: Inventory) -> Inventory:
        """Snapshot in which devices whose daemon is not there are unhealthy, for who has them."""
        troubles = dict(self._troubles())
        if not troubles:
            return inventory
        return replace(inventory, gpus=tuple(_marked(gpu, troubles) for gpu in inventory.gpus))

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = _AGAIN_SECONDS if self._told else _IDLE_SECONDS
            try:
                if self._follow():
                    pause = _SOON_SECONDS
            except DriverError as error:
                _log.warning("the MPS agent can't be watched", err=error)
            except Exception:  # noqa: BLE001 - the thread must outlive our own mistakes
                _log.exception("watching the MPS agent failed")
            self._stopping.wait(pause)

    def _follow(self) -> bool:
        """See what the agent tells until the connection ends; gives whether it told anything.

        An agent whose connection ended may be there still, having made its socket anew; only one
        that can't be reached is away. Raises DriverError, also when nobody knows who has the sets:
        then nothing counts as seen, so that it is told when that is known.
        """
        has_told = False
        # While it is away: an agent that came and went since the last look has left notes of its
        # sets. They are looked at first, since one that comes now has lost nothing.
        noted = self._notes.ids() if self._view.away else None
        try:
            for sets in self._agent.watch(self._ends_with):
                has_told = True
                self._see(sets)
        except AgentAway as error:
            if not has_told:
                self._lose(str(error), noted)
        return has_told

    def _ends_with(self, end: Callable[[], object]) -> None:
        self._end_stream = end
        if self._stopping.is_set():
            end()

    def _see(self, sets: pb.Sets) -> None:
        if not self._view.away and self._view.agent_id not in ("", sets.agent_id):
            why = "another MPS agent has taken the place of the one before"
            self._lose(why, self._view.sets)  # others are of the one that is there now
        before, now = self._view, {each.set.id: _Daemon.of(each) for each in sets.sets}
        claims = _claims(self._holdings())
        for mps_set, daemon in now.items():
            if self._is_interrupted(before.sets.get(mps_set), daemon):
                self._metrics.count("gpu_dra_driver_mps_interruptions_total")
                if mps_set not in self._told:
                    self._tell_interrupted(claims.get(mps_set, {}), daemon.words)
                self._told.add(mps_set)
            if mps_set in self._told and daemon.state == _READY:
                self._tell_restored(claims.get(mps_set, {}))
                self._told.discard(mps_set)
        self._told &= claims.keys()
        if before.away:
            _log.info("the MPS agent answers", sets=len(now))
        self._become(_View("", sets.agent_id, now))

    def _is_interrupted(self, before: _Daemon | None, now: _Daemon) -> bool:
        if before is None:
            return now.interrupted_at > self._began - _NEWS_SECONDS
        return now.interruptions > before.interruptions

    def _lose(self, why: str, among: Iterable[str] | None = None) -> None:
        """Take note that the agent is away, unless this process is about to end.

        It had these sets, or if that is not known, all that claims have.
        """
        if self._stopping.is_set():
            return
        claims = _claims(self._holdings())
        lost = claims.keys() - self._told
        if among is not None:
            lost &= set(among)
        for mps_set in lost:
            self._tell_interrupted(claims[mps_set], why)
            self._told.add(mps_set)
        if lost:
            _log.error("the MPS agent is away, and with it all control daemons", err=why)
        self._become(replace(self._view, away=why))

    def _become(self, view: _View) -> None:
        is_news, self._view = view != self._view, view
        if is_news:
            self._changed()

    def _count(self) -> None:
        claims = _claims(self._held())
        counts = dict.fromkeys(_WORDS.values(), 0)
        for mps_set in claims:
            found = self._view.sets.get(mps_set)
            counts[_DOWN if found is None or self._view.away else found.state] += 1
        for state, count in counts.items():
            self._metrics.set("gpu_dra_driver_mps_sets", count, state=state)

    def _tell_interrupted(self, claims: Mapping[ClaimRef, list[str]], why: str) -> None:
        for claim, devices in claims.items():
            message = (
                f"the programs of this claim have lost {', '.join(devices)}: the control daemon of "
                "MPS has ended; start them anew when there is another"
            )
            message = f"{message}; {why}" if why else message
            _log.warning("a claim has lost its control daemon of MPS", claim=claim, err=why)
            self._events.add(Event("MpsInterrupted", message, warning=True, claim=claim))

    def _tell_restored(self, claims: Mapping[ClaimRef, list[str]]) -> None:
        for claim, devices in claims.items():
            message = f"a new control daemon of MPS serves {', '.join(devices)}"
            self._events.add(Event("MpsRestored", message, warning=False, claim=claim))

    def _held(self) -> Iterable[Holding]:
        try:
            return self._holdings()
        except DriverError as error:
            _log.warning("who has MPS is not known now", err=error)
            return ()

    def _troubles(self) -> Iterator[tuple[Place, Health]]:
        view = self._view
        if not view.away and all(daemon.state == _READY for daemon in view.sets.values()):
            return
        for held in self._held():
            why = view.trouble(held.mps_set) if held.mps_set is not None else ""
            if why:
                health = Health(HealthState.UNHEALTHY, _MPS_DOWN, f"MPS: {why}")
                yield held.place, health


def _claims(holdings: Iterable[Holding]) -> dict[str, dict[ClaimRef, list[str]]]:
    """Claims that have each set, with their devices in it."""
    found: dict[str, dict[ClaimRef, list[str]]] = {}
    for held in holdings:
        if held.mps_set is not None:
            found.setdefault(held.mps_set, {}).setdefault(held.claim, []).append(held.device)
    return found


def _marked(gpu: Gpu, troubles: Mapping[Place, Health]) -> Gpu:
    whole = troubles.get((gpu.uuid, None))
    parts = tuple(
        replace(part, health=combined((part.health, found)))
        if (found := troubles.get((gpu.uuid, part.placement))) is not None
        else part
        for part in gpu.partitions
    )
    health = gpu.health if whole is None else combined((gpu.health, whole))
    return replace(gpu, health=health, partitions=parts)
