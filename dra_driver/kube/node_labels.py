"""The labels of this Node, asked for while somebody needs them."""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.kube.client import KubeClient
from dra_driver.model import DriverError
from dra_driver.telemetry import logger

log = logger(__name__)

_SECONDS: Final = 10.0  # between two requests
_FIRST_SECONDS: Final = 1.0  # until there was a first answer
_PATIENCE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 1.0


class NodeLabels:
    """Polls the Node in a thread of its own; a node at rest sends no request.

    A watch would tell within a second, but needs another right, and labels of a Node change by the
    hand of a person.
    """

    def __init__(
        self, kube: KubeClient, needed: Callable[[], bool], on_change: Callable[[], None]
    ) -> None:
        """Ask only while `needed`; `on_change` is called by the own thread."""
        self._kube = kube
        self._needed = needed
        self._on_change = on_change
        self._guard = threading.Lock()  # of changes of the next four
        self._labels: Mapping[str, str] = {}
        self._writes = 0
        self._known = threading.Event()
        self._patient = True
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="node-labels", daemon=True)

    def start(self) -> None:
        """Begin to ask. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; waits a second at most."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def poke(self) -> None:
        """Ask soon: they may be needed from now on. Returns at once."""
        self._wake.set()

    @property
    def are_known(self) -> bool:
        """Whether they were read once, or nobody needs them."""
        return self._known.is_set() or not self._needed()

    def current(self) -> Mapping[str, str]:
        """Labels as last read; none while nobody needs them.

        The first answer is waited for once, two seconds at most.
        """
        if not self._needed():
            return {}
        if self._patient and self._thread.is_alive():
            self._patient = False
            self._wake.set()
            self._known.wait(_PATIENCE_SECONDS)
        return self._labels

    def write(self, key: str, value: str) -> None:
        """Set one label. Raises DriverError, PermissionMissing without the right to patch nodes."""
        self._kube.label_node(key, value)
        with self._guard:
            self._labels = {**self._labels, key: value}
            self._writes += 1

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._needed():
                    self._ask()
                else:
                    self._forget()
            except Exception:  # the thread must outlive our own mistakes
                log.exception("following the labels of the Node failed")
            self._wake.wait(_SECONDS if self.are_known else _FIRST_SECONDS)
            self._wake.clear()  # here: a wish to stop or to ask that came before is seen above

    def _forget(self) -> None:
        """Begin anew when they are needed again: what was read by then may be days old."""
        with self._guard:
            self._labels = {}
            self._known.clear()
            self._patient = True

    def _ask(self) -> None:
        before = self._writes
        try:
            labels = self._kube.node_labels()
        except DriverError as error:
            if self._said != str(error):
                log.warning("the labels of the Node are not known", err=error)
            self._said = str(error)
            return
        self._said = ""
        with self._guard:
            if self._writes != before:
                return  # the answer may be older than what was written
            is_news = labels != self._labels or not self._known.is_set()
            self._labels = labels
            self._known.set()
        if is_news:
            self._on_change()
