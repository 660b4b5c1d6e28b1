"""How to reach the API server: the Pod's service account, or a kubeconfig file.

Tokens that stand in files are read again for every request, since the kubelet replaces them
(about hourly) and a request with the old one is refused. The library's own reader of kubeconfig
files does not do that and takes 5 MB, so it serves only users that need more than a token or
certificate files.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from dra_driver.kube.library import load
from dra_driver.model.errors import SettingInvalid

if TYPE_CHECKING:
    from kubernetes.client.configuration import Configuration

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_KEY: Final = "BearerToken"  # noqa: S105 - name of the library's slot, not a secret
_CONNECTIONS: Final = 32  # kept open at once: Prepare calls run in parallel
_PLAIN_CLUSTER: Final = frozenset(
    ("server", "certificate-authority", "insecure-skip-tls-verify", "tls-server-name")
)
_PLAIN_USER: Final = frozenset(("token", "tokenFile", "client-certificate", "client-key"))


class Reached(Protocol):
    """Settings of a program that talks to the API server."""

    @property
    def kubeconfig(self) -> Path | None:
        """File that says how; None: the Pod's service account."""


def configure(
    settings: Reached,
    environment: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> "Configuration":
    """Make the connection's configuration; raises SettingInvalid that says what is missing."""
    _, configuration_type = load()
    configuration = configuration_type()
    if settings.kubeconfig is not None:
        _use_kubeconfig(configuration, settings.kubeconfig)
    else:
        _use_service_account(configuration, environment, account)
    configuration.keep_alive = True  # a server that vanished silently is noticed
    configuration.retries = False  # callers retry, and know for how long
    configuration.connection_pool_maxsize = _CONNECTIONS
    return configuration


def _use_service_account(
    configuration: "Configuration", environment: Mapping[str, str], account: Path
) -> None:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise SettingInvalid(
            "no API server: --kubeconfig is not given and KUBERNETES_SERVICE_HOST and "
            "KUBERNETES_SERVICE_PORT are not set, as they are in a Pod"
        )
    token, authority = account / "token", account / "ca.crt"
    for path in (token, authority):
        if not path.is_file():
            raise SettingInvalid(f"no API server: the service account file {path} does not exist")
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = str(authority)
    _use_token_file(configuration, token)


def _use_kubeconfig(configuration: "Configuration", path: Path) -> None:
    cluster, user = _current_context(path)
    if not (cluster.keys() <= _PLAIN_CLUSTER and user.keys() <= _PLAIN_USER):
        _use_library(configuration, path)
        return
    configuration.host = str(cluster.get("server", "")).rstrip("/")
    if not configuration.host:
        raise SettingInvalid(f"--kubeconfig {path}: the current context's cluster has no server")
    configuration.ssl_ca_cert = _beside(path, cluster.get("certificate-authority"))
    configuration.verify_ssl = not cluster.get("insecure-skip-tls-verify", False)
    configuration.tls_server_name = cluster.get("tls-server-name")
    configuration.cert_file = _beside(path, user.get("client-certificate"))
    configuration.key_file = _beside(path, user.get("client-key"))
    token_file = _beside(path, user.get("tokenFile"))
    if token_file is not None:
        _use_token_file(configuration, Path(token_file))
    elif user.get("token"):
        configuration.api_key[_TOKEN_KEY] = f"Bearer {user['token']}"


def _use_library(configuration: "Configuration", path: Path) -> None:
    from kubernetes.config import kube_config  # noqa: PLC0415 - heavy, and rarely needed

    read: Any = kube_config.load_kube_config  # untyped
    try:
        read(str(path), client_configuration=configuration)
    except Exception as error:  # the library raises whatever it runs into
        raise SettingInvalid(f"--kubeconfig {path} can't be used: {error}") from error


def _current_context(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Cluster and user of the current context; raises SettingInvalid."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingInvalid(f"--kubeconfig {path} can't be read: {error}") from error
    if not isinstance(document, dict):
        raise SettingInvalid(f"--kubeconfig {path} is not a kubeconfig file")
    context = _named(path, document, "context", document.get("current-context"))
    return (
        _named(path, document, "cluster", context.get("cluster")),
        _named(path, document, "user", context.get("user")),
    )


def _named(path: Path, document: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    for entry in document.get(f"{kind}s") or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(kind)
            return found if isinstance(found, dict) else {}
    raise SettingInvalid(f"--kubeconfig {path} has no {kind} {name!r}, which its context names")


def _beside(kubeconfig: Path, name: object) -> str | None:
    """Path in a kubeconfig: relative ones start at the file's own folder."""
    return str(kubeconfig.parent / str(name)) if name else None


def _use_token_file(configuration: Any, path: Path) -> None:  # noqa: ANN401 - its hook is mistyped
    def read_again(target: "Configuration") -> None:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except OSError:
            return  # being replaced: the token of the last request still holds
        if token:
            target.api_key[_TOKEN_KEY] = f"Bearer {token}"

    configuration.refresh_api_key_hook = read_again
    configuration.api_key[_TOKEN_KEY] = ""  # the slot must exist for the hook to be asked
    read_again(configuration)
    if not configuration.api_key[_TOKEN_KEY]:
        raise SettingInvalid(f"no API server: the token file {path} is empty or unreadable")
