"""`dra-driver serve`: the node plugin, with the flags and variables of the driver it replaces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from dra_driver.config import Settings
from dra_driver.plugin.process import run

_PATH: Final = click.Path(path_type=Path)
_IN_CONTAINER: Final = Path("/driver-root")  # where published manifests mount the driver root
_DEBUG_VERBOSITY: Final = 6  # klog's number from which requests and answers are shown
_LEVELS: Final = ("debug", "info", "warning", "error")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class _Duration(click.ParamType[float]):
    """Seconds, or a number with ms, s, m or h."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
        try:
            seconds = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
        except ValueError:
            self.fail(f"{text!r} is not a duration such as 30s", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{text!r} is not a positive duration", param, ctx)
        return seconds


class _Xids(click.ParamType[frozenset[int]]):
    """Numbers with commas between them."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        for part in parts:
            if part and not (part.isascii() and part.isdecimal()):
                self.fail(f"{part!r} is not an XID; give numbers such as 61,62", param, ctx)
        return frozenset(int(part) for part in parts if part)


class _Level(click.ParamType[str]):
    """A level by name, or klog's number for it."""

    name = "level"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value).lower().removeprefix("=")  # klog's -v=4
        if text.isdecimal():
            return "debug" if int(text) >= _DEBUG_VERBOSITY else "info"
        if text not in _LEVELS:
            self.fail(f"{text!r} is none of {', '.join(_LEVELS)} or a number", param, ctx)
        return text


def _option(
    flag: str,
    field: str,
    variables: str,
    what: str,
    **more: Any,  # noqa: ANN401 - click's own
) -> Callable[[_Command], _Command]:
    """Flag for one field of Settings, whose default it shows unless told otherwise."""
    more.setdefault("default", Settings.__dataclass_fields__[field].default)
    more.setdefault("show_default", bool(more["default"]))
    if isinstance(more["default"], Path):
        more["type"] = _PATH
    names = flag.split()
    return click.option(*names, field, envvar=variables.split(), help=what, **more)


_OPTIONS: Final = (
    _option(
        "--node-name", "node_name", "NODE_NAME", "Name of this Node.", required=True, default=None
    ),
    _option("--driver-name", "driver_name", "DRIVER_NAME", "Name of the driver everywhere."),
    _option("--pool-name", "pool_name", "POOL_NAME", "Name of the pool.  [default: the Node's]"),
    _option(
        "--kubeconfig",
        "kubeconfig",
        "KUBECONFIG",
        "How to reach the API server.  [default: the Pod's service account]",
        type=_PATH,
    ),
    _option("--cdi-root", "cdi_root", "CDI_ROOT", "Folder of the claims' CDI files."),
    _option(
        "--nvidia-driver-root",
        "driver_root",
        "NVIDIA_DRIVER_ROOT HOST_DRIVER_ROOT",
        "Root of the GPU driver's files on the host.",
    ),
    _option(
        "--container-driver-root",
        "container_driver_root",
        "CONTAINER_DRIVER_ROOT DRIVER_ROOT_CTR_PATH",
        "The same folder as this process sees it.  [default: /driver-root where it exists, else "
        "the driver root]",
        default=None,
        type=_PATH,
    ),
    _option(
        "--nvidia-dev-root",
        "dev_root",
        "NVIDIA_DEV_ROOT",
        "Folder on the host that holds dev/.  [default: the driver root where it has device "
        "nodes, else /]",
        type=_PATH,
    ),
    _option(
        "--container-dev-root",
        "container_dev_root",
        "CONTAINER_DEV_ROOT",
        "The same folder as this process sees it.",
        type=_PATH,
    ),
    _option("--host-root", "host_root", "HOST_ROOT", "Where the host's /proc and /sys are seen."),
    _option("--hook-folder", "hook_folder", "HOOK_FOLDER", "Folder on the host for the CDI hook."),
    _option(
        "--kubelet-plugins-directory-path",
        "plugins_folder",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "The kubelet's folder of plugins' sockets and data.",
    ),
    _option(
        "--kubelet-registrar-directory-path",
        "registrar_folder",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "The kubelet's folder of registration sockets.",
    ),
    _option(
        "--pod-uid",
        "pod_uid",
        "POD_UID",
        "UID of this Pod: gives this instance sockets of its own, for rolling updates.",
    ),
    _option(
        "--healthcheck-port",
        "health_port",
        "HEALTHCHECK_PORT",
        "TCP port of the gRPC health service; negative: none.",
        type=click.IntRange(-1, 65535),
    ),
    _option(
        "--http-endpoint",
        "http_endpoint",
        "HTTP_ENDPOINT",
        "Address of /metrics, /healthz and /readyz, such as :8080; empty: none.",
    ),
    _option(
        "--poll-interval",
        "poll_seconds",
        "POLL_INTERVAL",
        "Time between two looks at the hardware.  [default: 30s]",
        type=_Duration(),
        show_default=False,
    ),
    _option(
        "--additional-xids-to-ignore",
        "ignored_xids",
        "ADDITIONAL_XIDS_TO_IGNORE",
        "XIDs, with commas between, that do not make a device unhealthy, beside 13, 31, 43, 45, "
        "68, 109.",
        type=_Xids(),
    ),
    _option(
        "--health-clear-after",
        "health_clear_seconds",
        "HEALTH_CLEAR_AFTER",
        "Time after which a device is healthy again when no further XID came and the GPU itself "
        "reports nothing wrong.  [default: 5m]",
        type=_Duration(),
        show_default=False,
    ),
    _option(
        "--prepare-retry",
        "retry_seconds",
        "PREPARE_RETRY",
        "Time for which one Prepare goes on trying after a trouble that may pass; the kubelet "
        "waits 45s.  [default: 30s]",
        type=_Duration(),
        show_default=False,
    ),
    _option(
        "--sweep-interval",
        "sweep_seconds",
        "SWEEP_INTERVAL",
        "Time between two looks for claims that nobody will unprepare and files that went "
        "missing.  [default: 60s]",
        type=_Duration(),
        show_default=False,
    ),
    _option(
        "--log-format --logging-format",
        "log_format",
        "LOG_FORMAT",
        "Form of the log.",
        type=click.Choice(["text", "json"]),
    ),
    _option(
        "-v --log-level",
        "log_level",
        "LOG_LEVEL LOG_VERBOSITY",
        "From which level on: debug, info, warning, error, or klog's number.",
        type=_Level(),
    ),
)


@click.command()
def serve(**flags: Any) -> None:  # noqa: ANN401 - one field of Settings each
    """Run the node plugin: publish this node's GPUs and prepare claims for the kubelet.

    SIGTERM and SIGINT stop it; SIGUSR2 writes the stacks of all threads to standard error.
    """
    if flags["container_driver_root"] is None:
        seen = _IN_CONTAINER if _IN_CONTAINER.is_dir() else flags["driver_root"]
        flags["container_driver_root"] = seen
    run(Settings(**flags))


for _add in _OPTIONS:
    _add(serve)
