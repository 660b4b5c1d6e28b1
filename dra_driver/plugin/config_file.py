"""The node configuration: read at the start, and again whenever file, folder or label changes."""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.config import CONFIG_LABEL, DEFAULT_CONFIG, NodeConfig, Settings
from dra_driver.model.errors import SettingInvalid
from dra_driver.plugin.config_source import Folder, Found, OneFile, Source, folder_of, label_of
from dra_driver.plugin.last_good import LastGood, LastGoodFile
from dra_driver.telemetry import Event, EventQueue, Metrics, logger

_log = logger(__name__)
_LOOK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 2.0
_VALID: Final = "gpu_dra_driver_config_valid"
_CHOSEN: Final = "gpu_dra_driver_config_chosen"


class ConfigFile:
    """The configuration as its place has it now; what is wrong keeps the last that was right.

    The content is compared, not the time of change: a ConfigMap's files are links that are moved
    to another folder. What is new counts when two looks have found the same, so that a file that
    is being written is not taken for a short one; it counts within a second or so. A label that
    has changed counts at once.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        events: EventQueue,
        on_change: Callable[[NodeConfig], None],
        labels: Callable[[], Mapping[str, str] | None] = dict,
    ) -> None:
        """Read the file. Raises SettingInvalid when it is missing or wrong. None: the defaults.

        Of a folder, what the last run had counts until `labels` of the Node are known (not None).
        `on_change` is called by a thread of its own or by that which calls `follow_labels`, and
        only for another configuration.
        """
        self._metrics = metrics
        self._events = events
        self._on_change = on_change
        self._labels = labels
        self._lock = threading.Lock()  # of what follows
        self._source: Source | None = None
        self._folder: Folder | None = None
        self._last_good = LastGoodFile(settings.data_folder)
        self._wanted: str | None = ""  # value of the label; None: not known yet
        self._seen: Found | None = None  # at the last look
        self._found: Found | None = None  # what counts, unless it is wrong
        self._problem = ""
        self._said = ""
        self._holds = ""  # name of the entry in force
        self._by = "empty"
        self._config = DEFAULT_CONFIG
        self._begin(settings)
        metrics.set(_VALID, 0 if self.unknown() else 1)
        self._set_chosen()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)

    def current(self) -> NodeConfig:
        """Last configuration that was right."""
        return self._config

    @property
    def needs_labels(self) -> bool:
        """Whether a label of the Node says which entry counts."""
        return self._folder is not None

    def problem(self) -> str:
        """Why the configuration does not count as it stands: one line; empty when it does."""
        return self.unknown() or self._problem

    def unknown(self) -> str:
        """Why it is not known which configuration this Node is to have; empty when it is."""
        if self._wanted is not None:
            return ""
        return (
            f"which entry of the configuration counts is not known: label {CONFIG_LABEL} of the "
            f"Node could not be read yet; {self._in_force()}"
        )

    def start(self) -> None:
        """Begin to look for changes. Returns at once."""
        if self._source is not None:
            self._thread.start()

    def stop(self) -> None:
        """Look no more; bounded, and harmless when nothing was started."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def follow_labels(self) -> None:
        """Let the entry count which the Node's label names now.

        May wait two seconds for the first answer, and as long for a folder that is slow to read;
        then the own thread goes on with it.
        """
        if self._folder is not None and self._lock.acquire(timeout=_PATIENCE_SECONDS):
            try:
                self._follow_label(self._folder)
            finally:
                self._lock.release()

    def _begin(self, settings: Settings) -> None:
        if settings.config_file is None:
            return
        self._folder = folder_of(settings)
        if self._folder is None:
            self._source = OneFile(settings.config_file)
            self._found = self._seen = self._source.look("")
            self._config, self._by = self._found.config(), "file"
            return
        self._source, self._wanted = self._folder, None
        kept = self._last_good.read() or _for_unlabelled(self._folder)
        if kept is not None:
            self._config, self._holds, self._by = kept.config(), kept.entry, "kept"

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            try:
                with self._lock:
                    if self._folder is not None:
                        self._follow_label(self._folder)
                    self._look()
            except Exception:  # noqa: BLE001 - the thread must outlive our own mistakes
                _log.exception("a change of the configuration could not be followed")

    def _follow_label(self, folder: Folder) -> None:
        labels = self._labels()
        if labels is None or label_of(labels) == self._wanted:
            return
        wanted = label_of(labels)
        self._found = self._seen = folder.look(wanted)
        try:
            self._follow(self._found)
        finally:
            self._wanted = wanted

    def _look(self) -> None:
        if self._source is None or self._wanted is None:
            return
        before, self._seen = self._seen, self._source.look(self._wanted)
        if self._seen == before and self._seen != self._found:
            self._found = self._seen
            self._follow(self._found)

    def _follow(self, found: Found) -> None:
        """Let what was found count, if it is right."""
        try:
            config = found.config()
        except SettingInvalid as error:
            self._refuse(f"{error}; {self._in_force()}" if self._folder else str(error))
            return
        self._metrics.set(_VALID, 1)
        self._problem = ""
        self._take(found)
        if config != self._config:
            self._config = config
            _log.info("the configuration has changed", path=found.path)
            self._on_change(config)
        if self._folder is not None:
            self._last_good.keep(self._holds, found.text)

    def _refuse(self, problem: str) -> None:
        self._metrics.set(_VALID, 0)
        self._problem = problem
        _log.error("the configuration is not followed; the last good one holds", err=problem)
        self._events.add(Event("ConfigurationInvalid", problem, warning=True))
        self._said = ""

    def _take(self, found: Found) -> None:
        """Note which entry counts from now on, and say so once."""
        choice = found.choice
        if choice is None or self._folder is None:
            return
        self._by, self._holds = choice.by, choice.name
        self._set_chosen()
        told = f"{self._in_force()}: {choice.why}"
        if told != self._said:
            self._said = told
            _log.info("the configuration is chosen", entry=choice.name, why=choice.why)
            self._events.add(Event("ConfigurationChosen", told, warning=False))

    def _set_chosen(self) -> None:
        self._metrics.set_all(_CHOSEN, {(self._by, self._holds): 1})

    def _in_force(self) -> str:
        if self._holds:
            return f"entry {self._holds!r} is in force"
        return "the defaults of the driver are in force"


def _for_unlabelled(folder: Folder) -> LastGood | None:
    """Entry for Nodes without label; None when there is none, or it is wrong."""
    found = folder.look("")
    try:
        found.config()
    except SettingInvalid:
        return None
    return LastGood(found.choice.name if found.choice else "", found.text)
