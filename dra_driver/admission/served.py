"""The certificate in use: swapped while connections come and go."""

import ssl
import threading
from datetime import datetime

from dra_driver.admission.certificates import context_for, expiry, now
from dra_driver.model.errors import TryAgain
from dra_driver.telemetry import Metrics, logger

_log = logger(__name__)


class Served:
    """What new connections show, and until when it holds; safe to use from many threads."""

    def __init__(self, metrics: Metrics) -> None:
        """Begin without a certificate."""
        self._metrics = metrics
        self._guard = threading.Lock()
        self._certificate = b""
        self._context: ssl.SSLContext | None = None
        self._ends: datetime | None = None
        self._trouble = "there is no certificate yet"

    def context(self) -> ssl.SSLContext:
        """Give what a new connection shows; raises TryAgain without a certificate."""
        with self._guard:
            if self._context is None:
                raise TryAgain(self._trouble)
            return self._context

    def shows(self, certificate: bytes) -> bool:
        """Whether this certificate is in use."""
        with self._guard:
            return self._certificate == certificate

    @property
    def is_empty(self) -> bool:
        """Whether there is no certificate yet."""
        with self._guard:
            return self._context is None

    def use(self, certificate: bytes, key: bytes) -> None:
        """Show this one from now on; raises ValueError and keeps the other one if it can't be."""
        context, ends = context_for(certificate, key), expiry(certificate)
        with self._guard:
            self._certificate, self._context, self._ends = certificate, context, ends
            self._trouble = ""
        name = "gpu_dra_driver_certificate_expiry_timestamp_seconds"
        self._metrics.set(name, ends.timestamp())
        self._metrics.count("gpu_dra_driver_certificate_changes_total", result="ok")
        _log.info("a certificate is in use", ends=ends.isoformat())

    def failed(self, why: Exception) -> None:
        """Note that no other certificate could be taken into use; says it once in the log."""
        self._metrics.count("gpu_dra_driver_certificate_changes_total", result="error")
        with self._guard:
            is_news = self._trouble != str(why)
            self._trouble = str(why)
        if is_news:
            _log.warning("the certificate could not be looked after", err=why)

    def went_well(self) -> None:
        """Note that there is nothing to complain about."""
        with self._guard:
            self._trouble = ""

    def reasons(self) -> list[str]:
        """Say why the API server will not talk to this process; nothing if it will."""
        with self._guard:
            if self._context is None:
                return [self._trouble]
            if self._ends is not None and self._ends <= now():
                return [
                    f"the certificate has ended {self._ends.isoformat()} {self._trouble}".strip()
                ]
        return []
