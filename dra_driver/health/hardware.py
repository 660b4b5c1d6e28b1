"""The snapshot of the node's GPUs with how well each is: all that slices and claims see of them."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from dra_driver.config import Settings
from dra_driver.health.findings import Findings, applied, located, settled, since, with_event
from dra_driver.health.foreign import ForeignPartitions
from dra_driver.health.notices import EventLog, notices
from dra_driver.health.paced import Paced
from dra_driver.health.xids import ANNOUNCEMENT, APPLICATION
from dra_driver.model import Gpu, Health, Inventory, dated
from dra_driver.model.errors import DriverNotReady
from dra_driver.nvml import Discovery, EventKind, HardwareEvent, Look, MigGpu
from dra_driver.state import Holding
from dra_driver.telemetry import EventQueue, Metrics

T = TypeVar("T")

_LOOK_SECONDS: Final = 5.0  # between two looks for events that tell nothing new
_DOUBT_SECONDS: Final = 1.0  # between two looks for partitions that nobody knows


class Hardware:
    """Discovery, and the findings that NVML's events leave behind.

    An event changes the snapshot at once, without a look: other GPUs may hang. A look follows, to
    find out what the GPU itself says.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        events: EventQueue,
        on_change: Callable[[Inventory], None],
        configured: Callable[[Inventory], Inventory] = lambda inventory: inventory,
        holdings: Callable[[], Iterable[Holding]] = tuple,
    ) -> None:
        """Start nothing yet. `on_change` comes from two threads, never at once; must not block.

        `configured` lays the node configuration over a snapshot, `holdings` says what claims hold.
        """
        self._configured = configured
        self._foreign = ForeignPartitions(holdings)
        self._events = events
        self._event_log = EventLog(metrics)
        self._on_change = on_change
        self._ignored = APPLICATION | settings.ignored_xids
        self._quiet_seconds = settings.health_clear_seconds
        self._discovery = Discovery(settings, metrics, self._looked, self._heard)
        self._lock = (
            threading.Lock()
        )  # guards the rest; no call that may take long is made under it
        self._look: Look | None = None
        self._findings: Findings = {}
        self._inventory: Inventory | None = None
        self._event_looks = Paced(self._discovery.refresh, _LOOK_SECONDS)
        self._doubt_looks = Paced(self._discovery.refresh, _DOUBT_SECONDS)

    def start(self) -> None:
        """Begin to look and to listen. Returns at once."""
        self._discovery.start()

    def stop(self) -> None:
        """End within seconds, even when NVML hangs."""
        self._event_looks.stop()
        self._doubt_looks.stop()
        self._discovery.stop()

    def current(self) -> Inventory | None:
        """Last snapshot; None until NVML has answered once."""
        return self._inventory

    def not_ready(self) -> str:
        """Why there is no snapshot or only an old one: one line; empty when all is well."""
        return self._discovery.not_ready()

    def look(self, timeout: float) -> Inventory:
        """Give the snapshot of a look that begins now; raises DriverNotReady as Discovery does."""
        self._discovery.look(timeout)
        if self._inventory is None:
            raise DriverNotReady("the GPUs have not been looked at yet")
        return self._inventory

    def on_gpu(self, uuid: str, job: Callable[[MigGpu], T], timeout: float) -> T:
        """Run a job alone with one GPU, as `Discovery.on_gpu` does."""
        return self._discovery.on_gpu(uuid, job, timeout)

    def refresh(self) -> None:
        """Look again soon. Returns at once."""
        self._discovery.refresh()

    def reconfigured(self, settings: Settings) -> None:
        """Go on under a new configuration, with a look soon. Returns at once."""
        self._ignored = APPLICATION | settings.ignored_xids
        self._discovery.follow(settings)

    def _looked(self, look: Look) -> None:
        inventory, is_unsure = self._foreign.mark(self._configured(look.inventory))
        look = replace(look, inventory=inventory)
        if is_unsure:
            self._doubt_looks.ask()
        with self._lock:
            if self._look is not None and look.driver_loads != self._look.driver_loads:
                self._findings = since(self._findings, look.began)
            self._findings = settled(self._findings, look, self._quiet_seconds)
            self._look = look
            self._renew()

    def _heard(self, batch: tuple[HardwareEvent, ...]) -> None:
        now, moment = time.time(), time.monotonic()
        with self._lock:
            known = len(self._findings)
            for event in batch:
                is_fault = self._blames_hardware(event)
                self._event_log.add(event, fatal=is_fault)
                if is_fault and event.gpu_uuid:
                    self._findings = with_event(self._findings, event, now, moment)
            is_news = len(self._findings) > known
            if self._look is not None:
                self._findings = located(self._findings, self._look.inventory)
                self._renew()
            if any(self._is_worth_a_look(event) for event in batch):
                self._event_looks.ask(at_once=is_news)

    def _blames_hardware(self, event: HardwareEvent) -> bool:
        if event.kind is EventKind.XID:
            return event.xid not in self._ignored and event.xid != ANNOUNCEMENT
        if event.kind is not EventKind.ECC:
            return False
        # With MIG the XID that comes along says which partition; the ECC event itself does not.
        gpu = self._look.inventory.gpu(event.gpu_uuid) if self._look else None
        return gpu is None or not gpu.mig_enabled

    def _is_worth_a_look(self, event: HardwareEvent) -> bool:
        return event.kind is not EventKind.XID or event.xid not in self._ignored

    def _renew(self) -> None:
        """Make the snapshot of what is known now; tell when it is another. Under the lock."""
        if self._look is None:
            return
        before = self._inventory
        generation = before.generation if before else 0
        found = applied(self._findings, self._look.inventory)
        found = _dated(replace(found, generation=generation), before, time.time())
        if found == before:
            return
        self._inventory = replace(found, generation=generation + 1)
        for event in notices(before, self._inventory):
            self._events.add(event)
        self._on_change(self._inventory)


def _dated(inventory: Inventory, before: Inventory | None, now: float) -> Inventory:
    """Give every device's health its time; what did not change keeps it."""
    old = {gpu.uuid: gpu for gpu in before.gpus} if before else {}
    return replace(
        inventory, gpus=tuple(_dated_gpu(gpu, old.get(gpu.uuid), now) for gpu in inventory.gpus)
    )


def _dated_gpu(gpu: Gpu, old: Gpu | None, now: float) -> Gpu:
    parts = {part.gi_id: part.health for part in old.partitions} if old else {}
    return replace(
        gpu,
        health=dated(gpu.health, old.health if old else Health(), now),
        partitions=tuple(
            replace(part, health=dated(part.health, parts.get(part.gi_id, Health()), now))
            for part in gpu.partitions
        ),
    )
