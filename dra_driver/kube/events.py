"""Delivers queued events to the API server, in a thread of its own that holds nobody up."""

import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Final

from dra_driver.config import Settings
from dra_driver.kube.client import KubeClient
from dra_driver.kube.connection import JsonObject
from dra_driver.kube.errors import ApiBusy, Conflict, NotFound
from dra_driver.model import DriverError, TryAgain
from dra_driver.telemetry import Event, EventQueue, logger

log = logger(__name__)

_LONGEST_MESSAGE: Final = 1024  # bytes; the API server refuses more
_ATTEMPTS: Final = 14  # in four minutes and a half: an upgrade of the API server takes less
_FIRST_PAUSE: Final = 0.5  # seconds, doubled each time
_LONGEST_PAUSE: Final = 30.0
_LAST_SECONDS: Final = 2.0  # for what is still queued at the stop
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_NODE_NAMESPACE: Final = "default"  # events on objects without namespace stand there


class EventSender:
    """Takes events from the queue and posts them; what can't be delivered is dropped and logged."""

    def __init__(self, kube: KubeClient, settings: Settings, queue: EventQueue) -> None:
        """Keep the parts; nothing runs before `start`."""
        self._kube = kube
        self._driver = settings.driver_name
        self._node = settings.node_name
        self._queue = queue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-sender", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def stop(self) -> None:
        """Deliver what is queued, for two seconds at most, and end."""
        self._stopping.set()
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join(2 * _LAST_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            event = self._queue.take()
            if event is not None:
                self._deliver(event)
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline:
            event = self._queue.take(0)
            if event is None:
                return
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        namespace, obj = event_object(event, self._driver, self._node)
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._kube.create_event(namespace, obj)
            except Conflict:
                return  # an earlier attempt got there, and only its answer did not come back
            except TryAgain as error:
                is_last = attempt == _ATTEMPTS or self._stopping.is_set()
                if is_last or isinstance(error, NotFound):  # the namespace is gone
                    log.warning("event is dropped", reason=event.reason, err=error)
                    return
                asked = error.retry_after if isinstance(error, ApiBusy) else 0.0
                self._stopping.wait(min(max(pause, asked), _LONGEST_PAUSE))
                pause *= 2
            except DriverError as error:
                log.warning("event is dropped", reason=event.reason, err=error)
                return
            except Exception:
                log.exception("event is dropped", reason=event.reason)
                return
            else:
                return


def event_object(event: Event, driver: str, node: str) -> tuple[str, JsonObject]:
    """Namespace and core/v1 Event for an event of this driver on this node.

    On a Node the event carries the node's name as UID, as the kubelet's own do, so that `kubectl
    describe node` finds it (kubelet/kubelet.go, nodeRef).
    """
    now = datetime.now(tz=UTC)
    first = datetime.fromtimestamp(event.since, tz=UTC) if event.since else now
    involved: JsonObject
    if event.claim is None:
        namespace = _NODE_NAMESPACE
        involved = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    else:
        namespace = event.claim.namespace
        involved = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": namespace,
            "name": event.claim.name,
            "uid": event.claim.uid,
        }
    return namespace, {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": _event_name(involved["name"]), "namespace": namespace},
        "involvedObject": involved,
        "reason": event.reason,
        "message": _shortened(event.message),
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": driver, "host": node},
        "reportingComponent": driver,
        "reportingInstance": node,
        "firstTimestamp": first.strftime(_TIME),
        "lastTimestamp": now.strftime(_TIME),
        "count": event.times,
    }


def _event_name(about: str) -> str:
    """Make a unique name that starts with the object's and has at most 253 characters."""
    return f"{about[:230].rstrip('.-')}.{secrets.token_hex(8)}"


def _shortened(message: str) -> str:
    """Message cut to what the API server takes."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= _LONGEST_MESSAGE:
        return message
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
