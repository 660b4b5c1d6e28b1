"""A certificate that somebody else looks after: cert-manager, or a person with a Secret."""

import threading
from pathlib import Path
from typing import Final

from dra_driver.admission.served import Served
from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry import logger

_log = logger(__name__)
_SECONDS: Final = 5.0  # between two looks at the files
_STOP_SECONDS: Final = 1.0


class CertificateFiles:
    """Reads both files again and again; what can't be used leaves the former content in use."""

    def __init__(self, certificate: Path, key: Path, served: Served) -> None:
        """Name the files; nothing is read yet."""
        self._files = (certificate, key)
        self._served = served
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificate-files", daemon=True)

    def start(self) -> None:
        """Read them and go on in a thread. Raises SettingInvalid when they can't be used."""
        try:
            self.look()
        except (OSError, ValueError) as error:
            certificate, key = self._files
            raise SettingInvalid(
                f"--tls-cert-file {certificate}, --tls-private-key-file {key}: {error}"
            ) from error
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def look(self) -> None:
        """Use what the files have now. Raises OSError and ValueError.

        Read in the middle of a change the two don't belong together; the next look finds both.
        """
        certificate, key = (path.read_bytes() for path in self._files)
        if not self._served.shows(certificate):
            self._served.use(certificate, key)
        self._served.went_well()

    def _run(self) -> None:
        while not self._stopping.wait(_SECONDS):
            try:
                self.look()
            except (OSError, ValueError) as error:
                self._served.failed(error)
            except Exception:  # noqa: BLE001 - the thread must outlive our own mistakes
                _log.exception("looking after the certificate failed")
