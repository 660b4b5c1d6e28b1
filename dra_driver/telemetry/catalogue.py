"""The metric catalogue of the node plugin, declared once as data.

What starts with `nvidia_dra_` has the names, labels and meaning of the peer driver's metrics, so
that what people built on those works; what it can't say is told by metrics of our own. Label sets
are closed and all series exist from the start, so that a first failure shows as an increase. Only
metrics with `comes_and_goes` name claims or entries; each has few series.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, TypeAlias

from dra_driver.model import DriverError
from dra_driver.model.errors import Bug

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Zero: TypeAlias = tuple[Mapping[str, str], ...]

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_PEER_SECONDS: Final = tuple(0.05 * 2**power for power in range(9))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, kind, meaning and labels."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    zero: Zero = ()  # series that exist from the start, but for labels `driver` and `node`
    buckets: tuple[float, ...] = _SECONDS  # of a histogram
    comes_and_goes: bool = False  # a gauge whose series are set all together


def series(**values: tuple[str, ...]) -> Zero:
    """All combinations of these labels' values."""
    return tuple(dict(zip(values, each, strict=True)) for each in product(*values.values()))


def _reasons(branch: type[DriverError]) -> Iterator[str]:
    """Yield the reason words of the errors that `model` has, in the order of the tree."""
    yield branch.reason
    for leaf in branch.__subclasses__():
        if leaf.__module__ == Bug.__module__:
            yield from _reasons(leaf)


OPERATIONS: Final = ("prepare", "unprepare")
RESULTS: Final = ("ok", "error")
DEVICE_TYPES: Final = ("gpu", "mig")
DEVICE_STATES: Final = ("free", "prepared", "overlapped", "held")

_BY_OPERATION: Final = series(operation=OPERATIONS)
_STEPS: Final = (
    *series(
        operation=("prepare",),
        step=("read", "resolve", "reserve", "mig", "sharing", "cdi", "commit"),
        result=RESULTS,
    ),
    *series(operation=("unprepare",), step=("cdi", "sharing", "mig", "forget"), result=RESULTS),
)

_OF_THE_PEER: Final = (
    Metric(
        "nvidia_dra_requests_total",
        "counter",
        "Claims that were prepared or unprepared for the kubelet; only successes, as in the peer.",
        ("driver", "operation"),
        _BY_OPERATION,
    ),
    Metric(
        "nvidia_dra_request_duration_seconds",
        "histogram",
        "Time from the kubelet's call to the answer; only of successes, as in the peer.",
        ("driver", "operation"),
        _BY_OPERATION,
        _PEER_SECONDS,
    ),
    Metric(
        "nvidia_dra_requests_inflight",
        "gauge",
        "Claims that the kubelet has asked for and that are not answered yet.",
        ("driver", "operation"),
        _BY_OPERATION,
    ),
    Metric(
        "nvidia_dra_prepared_devices",
        "gauge",
        "Devices that claims hold on this node, by type; a device counts once for each claim.",
        ("node", "driver", "device_type"),
        series(device_type=DEVICE_TYPES),
    ),
    Metric(
        "nvidia_dra_node_prepare_errors_total",
        "counter",
        "Claims that could not be prepared; all under the peer's word prepare_devices.",
        ("driver", "error_type"),
        series(error_type=("lock_acquire", "prepare_devices", "publish_resources")),
    ),
    Metric(
        "nvidia_dra_node_unprepare_errors_total",
        "counter",
        "Claims that could not be unprepared; all under the peer's word unprepare_devices.",
        ("driver", "error_type"),
        series(error_type=("lock_acquire", "unprepare_devices", "publish_resources")),
    ),
)

_CLAIMS: Final = (
    Metric(
        "gpu_dra_driver_request_duration_seconds",
        "histogram",
        "Time from the kubelet's call to the answer for a claim, by result.",
        ("operation", "result"),
        series(operation=OPERATIONS, result=RESULTS),
    ),
    Metric(
        "gpu_dra_driver_step_duration_seconds",
        "histogram",
        "Time that one step of Prepare or Unprepare took, by result.",
        ("operation", "step", "result"),
        _STEPS,
    ),
    Metric(
        "gpu_dra_driver_claim_errors_total",
        "counter",
        "Failures of Prepare and Unprepare, by reason word.",
        ("operation", "reason"),
        series(operation=OPERATIONS, reason=tuple(_reasons(DriverError))),
    ),
    Metric(
        "gpu_dra_driver_prepared_device_info",
        "gauge",
        "1 for each device that a claim holds on this node: names to join other metrics with.",
        (
            "dra_claim_namespace",
            "dra_claim_name",
            "dra_driver_name",
            "dra_pool_name",
            "dra_device_name",
            "dra_mig_profile",
            "device_type",
            "uuid",
        ),
        comes_and_goes=True,
    ),
    Metric(
        "gpu_dra_driver_claim_status_writes_total",
        "counter",
        "Tries to write what was made for a claim into its status, by result.",
        ("result",),
        series(
            result=(
                "written",
                "gone",
                "forbidden",
                "unavailable",
                "refused",
                "ignored",
                "dropped",
            )
        ),
    ),
    Metric(
        "gpu_dra_driver_records_set_aside",
        "gauge",
        "Damaged claim records that were kept aside and need a look.",
    ),
)

_HARDWARE: Final = (
    Metric(
        "gpu_dra_driver_devices",
        "gauge",
        "Devices that this node can give to claims, by type, by who has them, and by health.",
        ("device_type", "state", "health"),
        series(
            device_type=DEVICE_TYPES,
            state=DEVICE_STATES,
            health=("healthy", "unhealthy", "unknown"),
        ),
    ),
    Metric(
        "gpu_dra_driver_hardware_events_total",
        "counter",
        "Events that NVML told of, by kind, and whether the hardware was to blame.",
        ("kind", "fatal"),
        series(kind=("xid", "ecc", "other"), fatal=("true", "false")),
    ),
    Metric(
        "gpu_dra_driver_discovery_problems",
        "gauge",
        "Things that the last look at the hardware could not find out.",
    ),
    Metric(
        "gpu_dra_driver_nvml_ready",
        "gauge",
        "1 while NVML answers, 0 while it is looked for.",
    ),
    Metric(
        "gpu_dra_driver_layouts",
        "gauge",
        "GPUs that a layout concerns, by how far it is.",
        ("state",),
        series(state=("applied", "waiting", "failed")),
    ),
    Metric(
        "gpu_dra_driver_mps_sets",
        "gauge",
        "Sets of devices that claims share by MPS, by how their control daemon is.",
        ("state",),
        series(state=("starting", "ready", "silent", "down")),
    ),
    Metric(
        "gpu_dra_driver_mps_interruptions_total",
        "counter",
        "Control daemons of MPS that ended while claims had them.",
    ),
    Metric(
        "gpu_dra_driver_other_allocator",
        "gauge",
        "1 while a device plugin on this Node gives out GPUs too, else 0.",
    ),
)

_PUBLISHING: Final = (
    Metric(
        "gpu_dra_driver_published",
        "gauge",
        "1 while the API server has the slices that this node wants, else 0.",
    ),
    Metric(
        "gpu_dra_driver_publisher",
        "gauge",
        "1 after this instance has published, 0 while a newer one on this node does.",
    ),
    Metric(
        "gpu_dra_driver_publish_writes_total",
        "counter",
        "Writes of ResourceSlices, by verb and result.",
        ("verb", "result"),
        series(verb=("create", "update", "delete"), result=RESULTS),
    ),
    Metric(
        "gpu_dra_driver_left_out",
        "gauge",
        "Devices and values of devices that are not published, by reason.",
        ("reason",),
        series(
            reason=(
                "invalid",
                "refused",
                "unhealthy",
                "held",
                "held-back",
                "no-counters",
                "foreign",
                "not-shared",
            )
        ),
    ),
)

_PROCESS: Final = (
    Metric(
        "gpu_dra_driver_registered",
        "gauge",
        "1 after the kubelet has accepted this plugin, else 0.",
    ),
    Metric(
        "gpu_dra_driver_config_valid",
        "gauge",
        "1 while the configuration counts as it stands, 0 while an earlier content or entry does.",
    ),
    Metric(
        "gpu_dra_driver_config_chosen",
        "gauge",
        "1 for the entry of the configuration that is in force and that by which it was chosen.",
        ("by", "entry"),
        comes_and_goes=True,
    ),
    Metric(
        "gpu_dra_driver_fsyncs_total",
        "counter",
        "Times that this process waited for the disk.",
    ),
    Metric(
        "gpu_dra_driver_programs_total",
        "counter",
        "Programs of the GPU driver that this process ran, such as nvidia-smi.",
    ),
)

GROUPS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "peer": _OF_THE_PEER,
    "claims": _CLAIMS,
    "devices": _HARDWARE,
    "publishing": _PUBLISHING,
    "process": _PROCESS,
}
CATALOGUE: Final = tuple(metric for group in GROUPS.values() for metric in group)
