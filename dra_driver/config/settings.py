"""Settings of the plugin process: where things are and how it is called."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model.errors import SettingInvalid

DEFAULT_DRIVER_NAME: Final = "gpu.nvidia.com"
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
    retry_seconds: float = 30.0  # that one Prepare goes on trying; the kubelet waits 45 s

    @property
    def pool(self) -> str:
        """Name of this node's resource pool."""
        return self.pool_name or self.node_name

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
        return self.data_folder / (f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock")

    @property
    def registration_socket(self) -> Path:
        """Socket in the kubelet's registry folder by which it finds this plugin."""
        instance = f"-{self.pod_uid}" if self.pod_uid else ""
        return self.registrar_folder / f"{self.driver_name}{instance}-reg.sock"

    def check(self) -> None:
        """Raise SettingInvalid that names the flag when something can't work."""
        if not self.node_name:
            raise SettingInvalid("--node-name is empty; set it or the variable NODE_NAME")
        for flag, path in (
            ("--kubelet-plugins-directory-path", self.service_socket),
            ("--kubelet-registrar-directory-path", self.registration_socket),
        ):
            size = len(str(path).encode())
            if size > _SOCKET_PATH_MAX:
                raise SettingInvalid(
                    f"{flag} makes the socket path {path} {size} bytes long; unix sockets take "
                    f"{_SOCKET_PATH_MAX}: use a shorter folder"
                )
