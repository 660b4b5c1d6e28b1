"""What the API stand-in was asked, and where it shall fail."""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_WRITES: Final = frozenset(("create", "update", "patch", "delete", "deletecollection"))
_FOR_EVER: Final = 1 << 30


@dataclass(slots=True)
class LoggedRequest:
    """One request: verb as RBAC calls it, plural name or path, answer (0: none yet, -1: cut)."""

    verb: str
    resource: str
    url: str
    time: float  # Unix seconds
    status: int = 0


class RequestLog:
    """All requests so far, oldest first."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._entries: list[LoggedRequest] = []

    def begin(self, verb: str, resource: str, url: str) -> LoggedRequest:
        """Log a request whose answer is filled in later."""
        entry = LoggedRequest(verb, resource, url, time.time())
        with self._lock:
            self._entries.append(entry)
        return entry

    def all(self) -> list[LoggedRequest]:
        """Copy of the log."""
        with self._lock:
            return list(self._entries)

    def count(self, verb: str = "", resource: str = "") -> int:
        """How many requests had that verb and that resource; empty: any."""
        return sum(
            verb in ("", entry.verb) and resource in ("", entry.resource) for entry in self.all()
        )

    def writes(self, resource: str = "resourceslices") -> list[LoggedRequest]:
        """List the requests that change something for good: dry runs do not."""
        return [
            entry
            for entry in self.all()
            if entry.resource == resource
            and entry.verb in _WRITES
            and "dryRun=All" not in entry.url
        ]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._entries.clear()


@dataclass(slots=True)
class Fault:
    """What to do instead of answering, or before it."""

    verb: str  # empty: any
    url: re.Pattern[str]
    status: int  # answer with it; 0: cut the connection; negative: answer as usual
    times: int
    seconds: float = 0.0  # wait before
    done: bool = False  # a cut comes after the request was carried out
    headers: Mapping[str, str] = field(default_factory=dict)


class Faults:
    """Faults that wait for matching requests; the first that matches is used up."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def fail(
        self,
        verb: str,
        url: str,
        *,
        status: int,
        times: int = _FOR_EVER,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests whose URL matches the pattern with an error status."""
        self._add(Fault(verb, re.compile(url), status, times, headers=headers or {}))

    def hang(self, verb: str, url: str, *, seconds: float, times: int = _FOR_EVER) -> None:
        """Answer late."""
        self._add(Fault(verb, re.compile(url), -1, times, seconds))

    def cut(self, verb: str, url: str, *, times: int = _FOR_EVER, after: bool = False) -> None:
        """Close the connection without an answer, before or after doing what was asked."""
        self._add(Fault(verb, re.compile(url), 0, times, done=after))

    def clear(self) -> None:
        """Be well again."""
        with self._lock:
            self._faults.clear()

    def take(self, verb: str, url: str) -> Fault | None:
        """Fault for this request, used up once."""
        with self._lock:
            for fault in self._faults:
                if fault.verb in ("", verb) and fault.url.search(url):
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                    return fault
        return None

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)
