"""The webhook put together: build, start, stop."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from dra_driver.admission.from_files import CertificateFiles
from dra_driver.admission.metrics import CATALOGUE
from dra_driver.admission.reviewer import Reviewer
from dra_driver.admission.self_made import SelfMade
from dra_driver.admission.served import Served
from dra_driver.config import DEFAULT_DRIVER_NAME
from dra_driver.host import told_to_stop
from dra_driver.kube.webhook import WebhookClient
from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry import Metrics, logger, set_up_logging
from dra_driver.telemetry.http_server import HttpServer, Question, watched

_log = logger(__name__)
PATH: Final = "/validate"
_LONGEST: Final = 4 << 20  # bytes; the API server takes 3 MiB at most
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SHORTEST_LIFETIME: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """All flags of `dra-driver webhook`."""

    driver_name: str = DEFAULT_DRIVER_NAME
    https_endpoint: str = ":8443"
    http_endpoint: str = ""  # of metrics and probes; empty: none
    certificate_file: Path | None = None
    key_file: Path | None = None
    self_signed: bool = False  # instead of files
    lifetime_seconds: float = 365 * 86400.0  # of a self-made certificate
    namespace: str = "gpu-dra-driver"
    name: str = "gpu-dra-driver-webhook"  # of Service, Secret and ValidatingWebhookConfiguration
    kubeconfig: Path | None = None  # None: the Pod's own service account
    log_format: str = "text"
    log_level: str = "info"

    def check(self) -> None:
        """Raise SettingInvalid that names the flag when something can't work."""
        has_files = self.certificate_file is not None and self.key_file is not None
        has_one = self.certificate_file is not None or self.key_file is not None
        if self.self_signed == has_one or has_one != has_files:
            raise SettingInvalid(
                "where is the certificate from? allowed: --self-signed, or --tls-cert-file and "
                "--tls-private-key-file together"
            )
        for flag, name in (("--namespace", self.namespace), ("--name", self.name)):
            if not _LABEL.fullmatch(name):
                raise SettingInvalid(
                    f"{flag}: {name!r} is not a name of lower-case letters, digits and '-', of at "
                    "most 63 characters"
                )
        if self.lifetime_seconds < _SHORTEST_LIFETIME:
            raise SettingInvalid(
                f"--self-signed-lifetime: {self.lifetime_seconds:g} s; allowed: 10s or more"
            )

    @property
    def dns_names(self) -> tuple[str, ...]:
        """Names by which the API server knows the Service."""
        return (f"{self.name}.{self.namespace}.svc",)


class Webhook:
    """All parts of `dra-driver webhook`. Building it starts nothing."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Put the parts together; raises SettingInvalid."""
        settings.check()
        metrics = Metrics(CATALOGUE)
        served = Served(metrics)
        question = Question(Reviewer(settings.driver_name, metrics), "application/json", _LONGEST)
        self._https = HttpServer(
            settings.https_endpoint,
            {PATH: question},
            flag="--https-endpoint",
            tls=served.context,
        )
        self._http: HttpServer | None = None
        if settings.http_endpoint:
            pages = watched(metrics, list, served.reasons)
            self._http = HttpServer(settings.http_endpoint, pages)
        self._client: WebhookClient | None = None
        self._certificates: CertificateFiles | SelfMade
        if settings.certificate_file is not None and settings.key_file is not None:
            files = (settings.certificate_file, settings.key_file)
            self._certificates = CertificateFiles(*files, served)
        else:
            self._client = WebhookClient(settings, settings.namespace, settings.name)
            lifetime = timedelta(seconds=settings.lifetime_seconds)
            self._certificates = SelfMade(self._client, settings.dns_names, lifetime, served)

    def start(self) -> None:
        """Serve. Raises SettingInvalid; `stop` is due even then."""
        self._certificates.start()
        self._https.start()
        if self._http is not None:
            self._http.start()

    def stop(self) -> None:
        """Stop; requests in progress end by themselves."""
        stops: list[Callable[[], None]] = [self._https.stop, self._certificates.stop]
        if self._http is not None:
            stops.append(self._http.stop)
        if self._client is not None:
            stops.append(self._client.close)
        for stop in stops:
            stop()


def run(settings: WebhookSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingInvalid."""
    set_up_logging(settings.log_format, settings.log_level)
    stop = told_to_stop()
    webhook = Webhook(settings)
    try:
        webhook.start()
        _log.info("serving", endpoint=settings.https_endpoint, driver=settings.driver_name)
        os.read(stop, 1)
        _log.info("stopping")
    finally:
        webhook.stop()
