"""What the API server has of our slices, kept up to date by LIST and WATCH in a thread."""

import random
import threading
import time
from typing import Final, Protocol

from dra_driver.kube import ApiBusy, Gone, JsonObject, KubeClient, SliceList, SliceWatch, WatchEvent
from dra_driver.model import DriverError
from dra_driver.slices.backoff import Backoff
from dra_driver.telemetry import logger

log = logger(__name__)

_WATCH_SECONDS: Final = (300, 600)  # how long one watch lasts, different on each node
_SILENCE: Final = 150.0  # the server sends a bookmark each minute; longer silence is a dead line
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_SOON: Final = 5.0  # seconds; a watch that ended earlier than this did not work
_JOIN_SECONDS: Final = 2.0


class Notify(Protocol):
    """Hears that the copy has changed."""

    def __call__(self, *, others_changed: bool) -> None:
        """Take note; must not block."""


class SliceMirror:
    """Copy of this driver's slices on this node.

    `on_change` is called from the mirror's thread when a list came in, and with `others_changed`
    when somebody else changed a slice. `epoch` grows with every list: the server may be another
    one since.
    """

    def __init__(self, kube: KubeClient, on_change: Notify) -> None:
        """Keep the parts; nothing runs before `start`."""
        self._kube = kube
        self._on_change = on_change
        self._lock = threading.Lock()
        self._slices: dict[str, JsonObject] = {}
        self._gone: dict[str, int] = {}  # versions at which slices were deleted since the list
        self._own: set[str] = set()  # names of own writes since the list was asked for
        self._listed = 0  # version of the list
        self._epoch = 0
        self._problem = "the API server has not been asked yet"
        self._watch: SliceWatch | None = None
        self._stopping = threading.Event()
        self._refresh = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slice-mirror", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch and the thread."""
        self._stopping.set()
        self.refresh()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def refresh(self) -> None:
        """List again now, without waiting for the watch or for a pause to end."""
        self._refresh.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    @property
    def epoch(self) -> int:
        """Number of the last list, 0 before the first."""
        with self._lock:
            return self._epoch

    def problem(self) -> str:
        """Why there is no up-to-date copy; empty while the watch works."""
        with self._lock:
            return self._problem

    def slices(self) -> tuple[JsonObject, ...]:
        """Slices as last seen, by name."""
        with self._lock:
            return tuple(self._slices[name] for name in sorted(self._slices))

    def put(self, obj: JsonObject) -> None:
        """Note what an own write was answered with, before the watch tells."""
        with self._lock:
            self._own.add(obj["metadata"]["name"])
            self._store(obj)

    def forget(self, obj: JsonObject) -> None:
        """Note an own delete, before the watch tells."""
        with self._lock:
            name = obj["metadata"]["name"]
            self._slices.pop(name, None)
            self._gone[name] = max(_number(obj), self._gone.get(name, 0))

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._stopping.is_set():
            self._refresh.clear()
            began = time.monotonic()
            pause = 0.0
            try:
                listed = self._list()
                self._replace(listed)
                self._follow(listed.resource_version)
            except Gone as error:
                log.debug("list again", err=error)
                if self.epoch == 0:  # no watch has begun: it was the list that was refused
                    self._fail(str(error))
            except DriverError as error:
                pause = error.retry_after if isinstance(error, ApiBusy) else 0.0
                self._fail(str(error))
            except Exception as error:
                log.exception("unexpected failure of the watch")
                self._fail(f"unexpected failure of the watch: {error!r}")
            if self._refresh.is_set():
                continue
            if time.monotonic() - began > _SOON:
                backoff.reset()
            self._refresh.wait(max(pause, backoff.pause()))

    def _follow(self, version: str) -> None:
        """Watch from there on, until the connection breaks or a refresh is wanted."""
        while not (self._refresh.is_set() or self._stopping.is_set()):
            seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - not for secrets
            ends = time.monotonic() + seconds - _SOON
            watch = self._kube.watch_slices(version, seconds, _SILENCE)
            with self._lock:
                self._watch = watch
            try:
                if self._refresh.is_set() or self._stopping.is_set():
                    return
                for event in watch:
                    version = self._take(event) or version
            finally:
                with self._lock:
                    self._watch = None
                watch.close()
            if time.monotonic() < ends:
                return  # cut off: whoever answers next may be another server

    def _take(self, event: WatchEvent) -> str:
        """Apply an event; answers its resourceVersion."""
        version = str(event.object.get("metadata", {}).get("resourceVersion", ""))
        if event.kind == "BOOKMARK":
            return version
        with self._lock:
            changed = (
                self._drop(event.object) if event.kind == "DELETED" else self._store(event.object)
            )
        if changed:
            self._on_change(others_changed=True)
        return version

    def _list(self) -> SliceList:
        """List; what was known before that is in it, or is not there any more."""
        with self._lock:
            self._own.clear()
        return self._kube.list_slices()

    def _replace(self, listed: SliceList) -> None:
        """Take over a list; own writes that were made meanwhile and are newer than it stay.

        Nothing else does: versions of a server that was restored from a backup begin earlier.
        """
        with self._lock:
            self._listed = _as_number(listed.resource_version)
            own = (obj for name, obj in self._slices.items() if name in self._own)
            newer = [obj for obj in own if _number(obj) > self._listed]
            self._slices = {obj["metadata"]["name"]: obj for obj in (*listed.items, *newer)}
            self._gone.clear()
            self._epoch += 1
            self._problem = ""
        self._on_change(others_changed=False)

    def _store(self, obj: JsonObject) -> bool:
        """Keep an object unless it is old news: the watch may overtake the answer to a write."""
        name = obj["metadata"]["name"]
        known = self._slices.get(name)
        seen = max(self._listed, self._gone.get(name, 0), _number(known) if known else 0)
        if _number(obj) <= seen:
            return False
        self._slices[name] = obj
        return True

    def _drop(self, obj: JsonObject) -> bool:
        name = obj["metadata"]["name"]
        self._gone[name] = max(_number(obj), self._gone.get(name, 0))
        known = self._slices.get(name)
        if known is None or _number(known) > _number(obj):
            return False
        del self._slices[name]
        return True

    def _fail(self, problem: str) -> None:
        with self._lock:
            is_new = problem != self._problem
            self._problem = problem
        if is_new and not self._stopping.is_set():
            log.warning("slices cannot be watched; tried again", err=problem)


def _number(obj: JsonObject) -> int:
    return _as_number(obj["metadata"].get("resourceVersion", ""))


def _as_number(version: str) -> int:
    """Give an order to resourceVersions, which are numbers (KEP-5504)."""
    return int(version) if version.isdigit() else 0
