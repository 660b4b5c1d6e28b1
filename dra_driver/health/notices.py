"""What people are told: NVML's events as they come, and devices that get ill or well."""

import time
from collections.abc import Iterator
from typing import Final

from dra_driver.health.xids import meaning
from dra_driver.model import Health, HealthState, Inventory, PublishedDevice
from dra_driver.nvml import EventKind, HardwareEvent
from dra_driver.telemetry import Event, Metrics, logger

_QUIET_SECONDS: Final = 60.0  # a program that fails over and over is logged once in this time

_log = logger(__name__)


class EventLog:
    """Counts every event of NVML, and logs each that is news."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: dict[HardwareEvent, float] = {}

    def add(self, event: HardwareEvent, *, fatal: bool) -> None:
        """Take note of an event; `fatal`: the hardware is to blame."""
        self._metrics.count(
            "gpu_dra_driver_hardware_events_total",
            kind=event.kind.value,
            fatal=str(fatal).lower(),
        )
        now = time.monotonic()
        self._said = {e: at for e, at in self._said.items() if now - at < _QUIET_SECONDS}
        if event in self._said:
            return
        self._said[event] = now
        say = _log.warning if fatal else _log.info
        say(
            "GPU event",
            gpu=event.gpu_uuid or "unknown",
            event=meaning(event.xid) if event.kind is EventKind.XID else event.kind.value,
            gi=event.gi_id,
            ci=event.ci_id,
            fatal=fatal,
        )


def notices(before: Inventory | None, now: Inventory) -> Iterator[Event]:
    """Yield one event for all devices of a GPU to which the same has happened; log each device."""
    known = {device.name: device.health for device in before.devices()} if before else {}
    told: dict[tuple[str, HealthState, str], list[str]] = {}
    for device in now.devices():
        health, old = device.health, known.get(device.name, Health())
        if (health.state, health.words) == (old.state, old.words):
            continue
        _write(device, health)
        if health.state is not old.state or not health.usable:
            told.setdefault((device.gpu.uuid, health.state, health.words), []).append(device.name)
    for (uuid, state, words), names in told.items():
        yield _event(state, f"{' '.join(names)} of GPU {uuid}", words)


def _write(device: PublishedDevice, health: Health) -> None:
    if health.state is HealthState.HEALTHY:
        _log.info("device is healthy", device=device.name, uuid=device.uuid, note=health.words)
        return
    _log.warning(
        f"device is {health.state.value}",
        device=device.name,
        uuid=device.uuid,
        reason=health.reason,
        err=health.words,
    )


def _event(state: HealthState, subject: str, words: str) -> Event:
    if state is HealthState.UNHEALTHY:
        message = f"{subject}: {words}; new claims do not get it until it is well again"
        return Event("DeviceUnhealthy", message, warning=True)
    if state is HealthState.UNKNOWN:
        return Event("DeviceNotAnswering", f"{subject}: {words}", warning=True)
    return Event("DeviceHealthy", f"{subject}: healthy again", warning=False)
