"""Settings of the plugin process: where things are and how it is called."""

import base64
import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dra_driver.config.node import NodeConfig
from dra_driver.model.errors import SettingInvalid

DEFAULT_DRIVER_NAME: Final = "gpu.nvidia.com"
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SOCKET_PATH_MAX: Final = 107  # bytes; bind(2) takes one less than sockaddr_un holds


@dataclass(frozen=True, slots=True)
class Settings:
    """All flags of `dra-driver serve`.

    Two views of the GPU driver's files: `driver_root` is their place on the host, as CDI must
    name it; `container_driver_root` is the same folder as this process sees it. `dev_root`
    (host) and `container_dev_root` (here) hold `dev/`. For a process on the host both views are
    equal.
    """

    node_name: str
    driver_name: str = DEFAULT_DRIVER_NAME
    pool_name: str = ""  # empty: the node's name
    config_file: Path | None = None  # the node configuration, or a folder; None: its defaults
    default_config: str = ""  # entry of the folder for Nodes without label; empty: by strategy
    fallback_strategies: tuple[str, ...] = ("named", "single")
    kubeconfig: Path | None = None  # None: the Pod's own service account
    cdi_root: Path = Path("/var/run/cdi")
    driver_root: Path = Path("/")
    container_driver_root: Path = Path("/")
    dev_root: Path | None = None  # None: the driver root where it has device nodes, else `/`
    container_dev_root: Path | None = None
    host_root: Path = Path("/")
    hook_folder: Path = Path("/var/lib/gpu-dra-driver")  # on the host, for the CDI hook
    plugins_folder: Path = Path("/var/lib/kubelet/plugins")
    registrar_folder: Path = Path("/var/lib/kubelet/plugins_registry")
    pod_uid: str = ""  # set: sockets of this instance only, for rolling updates
    health_port: int = -1  # gRPC health service; negative: none
    http_endpoint: str = ""  # `:8080`; empty: none
    log_format: str = "text"
    log_level: str = "info"
    poll_seconds: float = 30.0  # between two looks at the hardware
    ignored_xids: frozenset[int] = frozenset()  # beside those that are always a program's fault
    health_clear_seconds: float = 300.0  # after which an XID that nothing confirms is forgotten
    retry_seconds: float = 30.0  # that one Prepare goes on trying; the kubelet waits 45 s
    sweep_seconds: float = 60.0  # between two looks for leftovers, and for device plugins
    mig_config_label: bool = False  # the Node's label nvidia.com/mig.config names a layout
    given: frozenset[str] = field(default=frozenset(), compare=False)  # fields set by a flag

    def under(self, config: NodeConfig) -> "Settings":
        """Take this configuration's values where no flag was given: flags win."""
        values: dict[str, Any] = {
            "poll_seconds": config.inventory.seconds,
            "ignored_xids": frozenset(config.health.ignore_xids),
        }
        return replace(self, **{name: values[name] for name in values.keys() - self.given})

    @property
    def pool(self) -> str:
        """Name of this node's resource pool."""
        return self.pool_name or self.node_name

    @property
    def driver_root_shown(self) -> str:
        """The driver root as messages name it: as the administrator knows it, and as it is here."""
        if self.container_driver_root == self.driver_root:
            return str(self.driver_root)
        return f"{self.driver_root} (here {self.container_driver_root})"

    @property
    def data_folder(self) -> Path:
        """Folder of sockets and records: `<plugins>/<driver>`."""
        return self.plugins_folder / self.driver_name

    @property
    def records_folder(self) -> Path:
        """Folder of claim records."""
        return self.data_folder / "claims"

    @property
    def service_socket(self) -> Path:
        """Socket on which the kubelet calls Prepare and Unprepare."""
        if not self.pod_uid:
            return self.data_folder / "dra.sock"
        parts = (self.pod_uid, _short_hash(self.pod_uid, 8))
        return _first_that_fits(self.data_folder, [f"dra-{part}.sock" for part in parts])

    @property
    def pod_resources_socket(self) -> Path:
        """Socket on which the kubelet tells of containers: beside its folder of plugins."""
        return self.plugins_folder.parent / "pod-resources" / "kubelet.sock"

    @property
    def registration_socket(self) -> Path:
        """Socket in the kubelet's registry folder by which it finds this plugin."""
        return _first_that_fits(self.registrar_folder, self._registration_names())

    def _registration_names(self) -> list[str]:
        """Names from the readable to the short one, as the Go helper makes them (kubeletplugin)."""
        if not self.pod_uid:
            return [f"{self.driver_name}-reg.sock"]
        short = _short_hash(self.pod_uid, 8)
        shortest = _short_hash(f"{self.driver_name}\0{self.pod_uid}", 16)
        return [
            f"{self.driver_name}-{self.pod_uid}-reg.sock",
            f"{self.driver_name}-{short}-reg.sock",
            f"dra-{shortest}-reg.sock",
        ]

    def check(self) -> None:
        """Raise SettingInvalid that names the flag when something can't work.

        Names become parts of paths and of Kubernetes objects: they are checked before any use.
        """
        if not self.node_name:
            raise SettingInvalid("--node-name is empty; set it or the variable NODE_NAME")
        _check_name("--node-name", self.node_name, 253)
        for part in self.pool.split("/"):
            _check_name("--pool-name", part, 253)
        _check_name("--pod-uid", self.pod_uid or "none", 63)
        self.check_folders()
        self._check_sockets()

    def check_folders(self) -> None:
        """Raise SettingInvalid that names the flag when a folder of the driver can't be used."""
        _check_name("--driver-name", self.driver_name, 63)
        for flag, path in self._paths().items():
            if path is not None and not path.is_absolute():
                raise SettingInvalid(f"{flag}: {path} is not an absolute path")

    def _paths(self) -> dict[str, Path | None]:
        return {
            "--cdi-root": self.cdi_root,
            "--nvidia-driver-root": self.driver_root,
            "--container-driver-root": self.container_driver_root,
            "--nvidia-dev-root": self.dev_root,
            "--container-dev-root": self.container_dev_root,
            "--host-root": self.host_root,
            "--hook-folder": self.hook_folder,
            "--kubelet-plugins-directory-path": self.plugins_folder,
            "--kubelet-registrar-directory-path": self.registrar_folder,
        }

    def _check_sockets(self) -> None:
        for flag, path in (
            ("--kubelet-plugins-directory-path", self.service_socket),
            ("--kubelet-registrar-directory-path", self.registration_socket),
        ):
            if not _fits(path):
                raise SettingInvalid(
                    f"{flag} makes the socket path {path} {len(os.fsencode(path))} bytes long; "
                    f"unix sockets take {_SOCKET_PATH_MAX}: use a shorter folder"
                )


def _check_name(flag: str, name: str, longest: int) -> None:
    if len(name) > longest or not _SUBDOMAIN.fullmatch(name):
        raise SettingInvalid(
            f"{flag}: {name!r} is not a name of lower-case letters, digits, '-' and '.', "
            f"of at most {longest} characters"
        )


def _first_that_fits(folder: Path, names: list[str]) -> Path:
    """Path of the first name that is short enough there, or of the last."""
    paths = [folder / name for name in names]
    return next((path for path in paths if _fits(path)), paths[-1])


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _SOCKET_PATH_MAX


def _short_hash(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
