"""Flags that become fields of `Settings`, one definition for all commands that share them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from dra_driver.cli.option_types import Duration, Level, Strategies, Xids
from dra_driver.config import Settings

_PATH: Final = click.Path(path_type=Path)
_IN_CONTAINER: Final = Path("/driver-root")  # where published manifests mount the driver root
_Command = TypeVar("_Command", bound=Callable[..., Any])


def settings_options(*fields: str) -> Callable[[_Command], _Command]:
    """Give a command the flags of these fields, or of all when none is named."""

    def add(command: _Command) -> _Command:
        for flag in reversed(_FLAGS):
            if not fields or flag.field in fields:
                command = flag.add(command)
        return command

    return add


def make_settings(flags: Mapping[str, Any]) -> Settings:
    """Turn the values of such flags into settings; the rest has its defaults."""
    values = dict(flags)
    values["given"] = frozenset(field for field in flags if _is_given(field))
    if "container_driver_root" in values and values["container_driver_root"] is None:
        seen = _IN_CONTAINER if _IN_CONTAINER.is_dir() else values["driver_root"]
        values["container_driver_root"] = seen
    return Settings(**values)


def _is_given(field: str) -> bool:
    """Whether the running command was told this field by a flag or a variable."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source(field) if context else None
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class _Flag:
    """The flag of one field of Settings."""

    field: str
    add: Callable[[Any], Any]  # to a command


def _flag(
    names: str,
    field: str,
    variables: str,
    what: str,
    **more: Any,  # noqa: ANN401 - click's own
) -> _Flag:
    """Make a flag that shows the field's default unless told otherwise."""
    more.setdefault("default", Settings.__dataclass_fields__[field].default)
    more.setdefault("show_default", bool(more["default"]))
    if isinstance(more["default"], Path):
        more["type"] = _PATH
    option = click.option(*names.split(), field, envvar=variables.split(), help=what, **more)
    return _Flag(field, option)


_FLAGS: Final = (
    _flag(
        "--node-name", "node_name", "NODE_NAME", "Name of this Node.", required=True, default=None
    ),
    _flag("--driver-name", "driver_name", "DRIVER_NAME", "Name of the driver everywhere."),
    _flag("--pool-name", "pool_name", "POOL_NAME", "Name of the pool.  [default: the Node's]"),
    _flag(
        "--config",
        "config_file",
        "CONFIG_FILE",
        "File of the node configuration, or a folder of several, of which the Node's label "
        "nvidia.com/dra.config names one; read again when it changes.  [default: none]",
        type=_PATH,
    ),
    _flag(
        "--default-config",
        "default_config",
        "DEFAULT_CONFIG",
        "Which of them Nodes without label have.",
    ),
    _flag(
        "--fallback-strategies",
        "fallback_strategies",
        "FALLBACK_STRATEGIES",
        "Which they have without --default-config; the first that finds one counts: named (the "
        "one called default), single (the only one), empty (none).  [default: named,single]",
        type=Strategies(),
        show_default=False,
    ),
    _flag(
        "--kubeconfig",
        "kubeconfig",
        "KUBECONFIG",
        "How to reach the API server.  [default: the Pod's service account]",
        type=_PATH,
    ),
    _flag("--cdi-root", "cdi_root", "CDI_ROOT", "Folder of the claims' CDI files."),
    _flag(
        "--nvidia-driver-root",
        "driver_root",
        "NVIDIA_DRIVER_ROOT HOST_DRIVER_ROOT",
        "Root of the GPU driver's files on the host.",
    ),
    _flag(
        "--container-driver-root",
        "container_driver_root",
        "CONTAINER_DRIVER_ROOT DRIVER_ROOT_CTR_PATH",
        "The same folder as this process sees it.  [default: /driver-root where it exists, else "
        "the driver root]",
        default=None,
        type=_PATH,
    ),
    _flag(
        "--nvidia-dev-root",
        "dev_root",
        "NVIDIA_DEV_ROOT",
        "Folder on the host that holds dev/.  [default: the driver root where it has device "
        "nodes, else /]",
        type=_PATH,
    ),
    _flag(
        "--container-dev-root",
        "container_dev_root",
        "CONTAINER_DEV_ROOT",
        "The same folder as this process sees it.",
        type=_PATH,
    ),
    _flag("--host-root", "host_root", "HOST_ROOT", "Where the host's /proc and /sys are seen."),
    _flag("--hook-folder", "hook_folder", "HOOK_FOLDER", "Folder on the host for the CDI hook."),
    _flag(
        "--kubelet-plugins-directory-path",
        "plugins_folder",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "The kubelet's folder of plugins' sockets and data.",
    ),
    _flag(
        "--kubelet-registrar-directory-path",
        "registrar_folder",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "The kubelet's folder of registration sockets.",
    ),
    _flag(
        "--pod-uid",
        "pod_uid",
        "POD_UID",
        "UID of this Pod: gives this instance sockets of its own, for rolling updates.",
    ),
    _flag(
        "--healthcheck-port",
        "health_port",
        "HEALTHCHECK_PORT",
        "TCP port of the gRPC health service; negative: none.",
        type=click.IntRange(-1, 65535),
    ),
    _flag(
        "--http-endpoint",
        "http_endpoint",
        "HTTP_ENDPOINT",
        "Address of /metrics, /healthz and /readyz, such as :8080; empty: none.",
    ),
    _flag(
        "--poll-interval",
        "poll_seconds",
        "POLL_INTERVAL",
        "Time between two looks at the hardware.  [default: 30s]",
        type=Duration(),
        show_default=False,
    ),
    _flag(
        "--additional-xids-to-ignore",
        "ignored_xids",
        "ADDITIONAL_XIDS_TO_IGNORE",
        "XIDs, with commas between, that do not make a device unhealthy, beside 13, 31, 43, 45, "
        "68, 109.",
        type=Xids(),
    ),
    _flag(
        "--health-clear-after",
        "health_clear_seconds",
        "HEALTH_CLEAR_AFTER",
        "Time after which a device is healthy again when no further XID came and the GPU itself "
        "reports nothing wrong.  [default: 5m]",
        type=Duration(),
        show_default=False,
    ),
    _flag(
        "--prepare-retry",
        "retry_seconds",
        "PREPARE_RETRY",
        "Time for which one Prepare goes on trying after a trouble that may pass; the kubelet "
        "waits 45s.  [default: 30s]",
        type=Duration(),
        show_default=False,
    ),
    _flag(
        "--sweep-interval",
        "sweep_seconds",
        "SWEEP_INTERVAL",
        "Time between two looks for claims that nobody will unprepare, files that went missing, "
        "and device plugins beside this driver.  [default: 60s]",
        type=Duration(),
        show_default=False,
    ),
    _flag(
        "--mig-config-label/--no-mig-config-label",
        "mig_config_label",
        "MIG_CONFIG_LABEL",
        "Let the Node's label nvidia.com/mig.config name the layout of its GPUs, and tell how far "
        "it is in nvidia.com/mig.config.state; needs the right to patch nodes.",
    ),
    _flag(
        "--log-format --logging-format",
        "log_format",
        "LOG_FORMAT",
        "Form of the log.",
        type=click.Choice(["text", "json"]),
    ),
    _flag(
        "-v --log-level",
        "log_level",
        "LOG_LEVEL LOG_VERBOSITY",
        "From which level on: debug, info, warning, error, or klog's number.",
        type=Level(),
    ),
)
