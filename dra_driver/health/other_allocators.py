"""Whether a device plugin on this Node gives out the GPUs that this driver publishes.

The kubelet writes what device plugins offer into the Node's `status.allocatable`. Extended
resources that the scheduler serves from DeviceClasses are not counted there, so an amount above
zero is a second allocator, which knows nothing of claims as we know nothing of its Pods.
"""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.kube import KubeClient
from dra_driver.model import DriverError, Inventory, Quantity
from dra_driver.telemetry import Event, EventQueue, Metrics, logger

# What NVIDIA's device plugin calls GPUs and partitions, as our own `resourceName`; `nvidia.com/` is
# also in front of network devices and of GPUs for virtual machines.
_GPUS: Final = re.compile(r"nvidia\.com/(gpu|mig-[a-z0-9.-]+)")
_METRIC: Final = "gpu_dra_driver_other_allocator"
_STOP_SECONDS: Final = 1.0

log = logger(__name__)


class OtherAllocators:
    """Judges every answer about the Node, and asks for one where nobody else has of late.

    It is told and not acted upon: claims that run must go on, and this driver can't know which of
    the two is meant to stay. So the plugin stays ready, or an update would hang on such a node.
    """

    def __init__(
        self,
        kube: KubeClient,
        current: Callable[[], Inventory | None],
        metrics: Metrics,
        events: EventQueue,
        seconds: float,
    ) -> None:
        """Look each `seconds`; `current` gives the last snapshot of the GPUs."""
        self._kube = kube
        self._current = current
        self._metrics = metrics
        self._events = events
        self._seconds = seconds
        self._guard = threading.Lock()  # of the text
        self._note = ""
        self._stopping = threading.Event()
        self._seen = threading.Event()  # since the last look
        self._thread = threading.Thread(target=self._run, name="other-allocators", daemon=True)
        kube.on_allocatable = self._judge

    def start(self) -> None:
        """Begin to look. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; waits a second at most."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def note(self) -> str:
        """Say who else gives out the GPUs, in one line; empty: nobody."""
        return self._note

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            if not self._seen.is_set() and self._has_gpus():
                self._ask()
            self._seen.clear()

    def _ask(self) -> None:
        try:
            self._kube.node_labels()  # the answer comes to `_judge`
        except DriverError as error:
            log.debug("what else the Node offers is not known now", err=error)
        except Exception:  # the thread must outlive our own mistakes
            log.exception("looking for other allocators failed")

    def _has_gpus(self) -> bool:
        inventory = self._current()
        return inventory is not None and bool(inventory.gpus)

    def _judge(self, allocatable: Mapping[str, Any]) -> None:
        self._seen.set()
        found = [
            f"{name}={amount}"
            for name, amount in sorted(allocatable.items())
            if _is_given(name, amount)
        ]
        note = _words(found) if found and self._has_gpus() else ""
        with self._guard:
            before, self._note = self._note, note
        self._metrics.set(_METRIC, 1 if note else 0)
        if note and note != before:
            log.warning("there is a second allocator", err=note)
            self._events.add(Event("OtherAllocator", note, warning=True))
        elif before and not note:
            words = "no device plugin gives out GPUs of this Node any more"
            log.info("the second allocator is gone")
            self._events.add(Event("OtherAllocatorGone", words, warning=False))


def _is_given(name: str, amount: object) -> bool:
    if not _GPUS.fullmatch(name):
        return False
    try:
        return Quantity.parse(str(amount)).value > 0
    except ValueError:
        return False


def _words(found: list[str]) -> str:
    return (
        f"a device plugin gives out GPUs of this Node too ({', '.join(found)} in "
        "status.allocatable), so one GPU may be given to two Pods; remove the device plugin from "
        "this Node"
    )
