"""The node plugin put together: build, start, stop."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims import (
    Engine,
    GpuEffects,
    Janitor,
    LayoutLabel,
    LayoutReports,
    Layouts,
    WaitingPolicies,
)
from dra_driver.config import CONFIG_LABEL, NodeConfig, Settings
from dra_driver.health import Hardware, OtherAllocators
from dra_driver.host import fsyncs, programs_run
from dra_driver.kube import ClaimStatusSender, EventSender, KubeClient, NodeLabels
from dra_driver.mig import MigEffect
from dra_driver.model import ClaimStatus, DriverError, Inventory, Problem
from dra_driver.plugin.config_file import ConfigFile
from dra_driver.plugin.kubelet_services import KubeletServices
from dra_driver.plugin.probes import HealthPort
from dra_driver.sharing import MpsWatch, SharingEffect
from dra_driver.slices import Publisher
from dra_driver.state import Holding
from dra_driver.telemetry import EventQueue, Metrics, logger
from dra_driver.telemetry.http_server import HttpServer, watched

_log = logger(__name__)
_GRACE_SECONDS: Final = 10.0  # that calls in progress have when this process is told to stop


class NodePlugin:
    """All parts of `dra-driver serve`. Building it starts nothing."""

    def __init__(self, settings: Settings) -> None:
        """Put the parts together; raises SettingInvalid."""
        settings.check()
        self._settings = settings
        metrics = Metrics(driver=settings.driver_name, node=settings.node_name)
        events = EventQueue()
        metrics.follow("gpu_dra_driver_fsyncs_total", fsyncs)
        metrics.follow("gpu_dra_driver_programs_total", programs_run)
        self._kube = KubeClient(settings)
        self._events = EventSender(self._kube, settings, events)
        self._config = ConfigFile(settings, metrics, events, self._reconfigured, self._node_labels)
        self._hardware = Hardware(
            settings.under(self._config.current()),
            metrics,
            events,
            self._hardware_changed,
            self._configured,
            self._holdings,
        )
        self._others = OtherAllocators(
            self._kube, self._hardware.current, metrics, events, settings.sweep_seconds
        )
        self._labels = NodeLabels(self._kube, self._needs_labels, self._labels_changed)
        self._specs = ClaimSpecs(settings)
        self._statuses = ClaimStatusSender(self._kube, metrics, self._still_holds)
        self._engine = Engine(
            settings,
            self._kube,
            self._hardware,
            GpuEffects(
                MigEffect(self._hardware, settings, self._holdings),
                SharingEffect(self._hardware, settings, self._holdings, self._in_doubt),
            ),
            self._specs,
            self._statuses,
            metrics,
            events,
        )
        self._layouts = Layouts(
            settings,
            self._newest_config,
            LayoutLabel(self._labels, events, enabled=settings.mig_config_label),
            self._hardware,
            self._engine.records,
            self._specs.undo_common,
            LayoutReports(metrics, events),
        )
        self._policies = WaitingPolicies(self._holdings, events)
        self._mps = MpsWatch(settings, self._holdings, metrics, events, self._mps_changed)
        self._publisher = Publisher(
            self._kube, settings, metrics, events, self._engine.records.partitions_held
        )
        self._janitor = Janitor(
            self._engine,
            self._specs,
            self._kube,
            settings.pod_resources_socket,
            settings.sweep_seconds,
        )
        self._kubelet = KubeletServices(
            settings,
            self._engine,
            metrics,
            self._reported,
            self._hardware.not_ready,
            self._publisher.poke,
        )
        checks = self._kubelet.checks(
            self._hardware.not_ready,
            self._publisher.problem,
            lambda: self._config.problem() or self._unknown(),
            self._engine.not_taken_over,
        )
        self._health_port: HealthPort | None = None
        if settings.health_port >= 0:
            self._health_port = HealthPort(settings.health_port, checks.alive)
        self._http: HttpServer | None = None
        if settings.http_endpoint:
            pages = watched(metrics, checks.alive, checks.ready, self._notes)
            self._http = HttpServer(settings.http_endpoint, pages)

    def start(self) -> None:
        """Serve the kubelet. Raises SettingInvalid or StorageFailed; `stop` is due even then.

        Waits for neither NVML nor the API server: both may come much later, and Unprepare needs
        neither.
        """
        self._engine.start()
        if self._http:
            self._http.start()
        if self._health_port:
            self._health_port.start()
        self._kubelet.start()
        self._install_hook()
        self._events.start()
        self._statuses.start()
        self._publisher.start()
        self._labels.start()
        self._others.start()
        self._hardware.start()
        self._config.start()
        self._layouts.start()
        self._janitor.start()
        self._mps.start()

    def stop(self) -> None:
        """Leave the kubelet, then end all parts; bounded, and harmless where nothing was started.

        Slices stay: the kubelet removes them when no instance comes back within 30 seconds.
        """
        self._kubelet.leave(_GRACE_SECONDS)
        self._config.stop()
        self._mps.stop()
        self._labels.stop()
        self._others.stop()
        self._layouts.stop()
        self._janitor.stop()
        self._publisher.stop()
        if not self._kubelet.wait_idle(_GRACE_SECONDS + 1.0):
            _log.warning("calls of the kubelet are cut off", seconds=_GRACE_SECONDS)
        self._hardware.stop()
        if self._http:
            self._http.stop()
        if self._health_port:
            self._health_port.stop()
        self._statuses.stop()
        self._events.stop()
        self._kubelet.close()
        self._kube.close()

    def _hardware_changed(self, inventory: Inventory) -> None:
        # Published under the wrong configuration, devices would be taken as they must not be.
        if not any(problem.subject == CONFIG_LABEL for problem in inventory.problems):
            self._publisher.publish(inventory)
        self._janitor.poke()
        self._layouts.poke()
        self._kubelet.health_changed()

    def _reported(self) -> Inventory | None:
        """Devices as the kubelet is told of them: as well as those who have them find them."""
        inventory = self._hardware.current()
        return self._mps.with_troubles(inventory) if inventory else None

    def _notes(self) -> list[str]:
        return [note for note in (self._others.note(),) if note]

    def _mps_changed(self) -> None:
        self._kubelet.health_changed()
        self._janitor.poke()

    def _holdings(self) -> Iterable[Holding]:
        return self._engine.records.holdings()

    def _in_doubt(self) -> set[str]:
        return self._engine.records.unknown()

    def _still_holds(self, status: ClaimStatus) -> bool:
        """Whether a claim is prepared as its status tells, whichever instance has done it."""
        try:
            record = self._engine.records.get(status.ref.uid)
        except DriverError:
            return True  # nobody knows better
        return record is not None and record.planned == status.since

    def _configured(self, inventory: Inventory) -> Inventory:
        self._config.follow_labels()
        self._labels.current()  # waits for them once; what follows finds them known, or is held
        if why := self._unknown():
            # When that is over the snapshot is another one, so that it is told of.
            problems = (*inventory.problems, Problem(CONFIG_LABEL, why))
            inventory = replace(inventory, problems=problems)
        inventory = self._policies.applied(self._layouts.configured(inventory))
        if not why:
            self._engine.take_over(inventory)
        return inventory

    def _unknown(self) -> str:
        """Why it is not known how this Node is to be published; empty when it is."""
        if why := self._config.unknown():
            return why
        if self._labels.are_known:
            return ""
        return "labels of the Node, for which the configuration asks, could not be read yet"

    def _newest_config(self) -> NodeConfig:
        self._config.follow_labels()
        return self._config.current()

    def _node_labels(self) -> Mapping[str, str] | None:
        labels = self._labels.current()
        return labels if self._labels.are_known else None

    def _reconfigured(self, config: NodeConfig) -> None:
        self._labels.poke()
        self._hardware.reconfigured(self._settings.under(config))
        self._layouts.poke()

    def _needs_labels(self) -> bool:
        return (
            self._settings.mig_config_label
            or self._config.needs_labels
            or self._config.current().needs_node_labels
        )

    def _labels_changed(self) -> None:
        self._config.follow_labels()
        self._hardware.reconfigured(self._settings.under(self._config.current()))
        self._layouts.poke()

    def _install_hook(self) -> None:
        """Install the CDI hook; a failure costs the claims that need it, not the plugin."""
        try:
            self._specs.install_hook()
        except DriverError as error:
            _log.error("the CDI hook cannot be installed", err=error)
