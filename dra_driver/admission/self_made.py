"""A certificate that the webhook makes for itself, without cert-manager.

It lies in a Secret, so that all instances show the same one and a restart finds it again. Its
authorities stand in the ValidatingWebhookConfiguration before anybody shows it: an instance changes
over when two of its looks have found them there, whoever wrote them, so that every API server has
heard. Two instances that make one at the same time: the second write is refused as a conflict,
and its author reads what the first has written.
"""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from dra_driver.admission.certificates import Pair, make_pair, now, problem
from dra_driver.admission.served import Served
from dra_driver.kube.errors import Conflict, NotFound
from dra_driver.kube.webhook import (
    WebhookClient,
    ca_bundles,
    secret_data,
    with_ca_bundle,
    with_secret_data,
)
from dra_driver.model import DriverError
from dra_driver.telemetry import logger

_log = logger(__name__)
_CERTIFICATE: Final = "tls.crt"  # the names of Secrets of type kubernetes.io/tls
_KEY: Final = "tls.key"
_AUTHORITIES: Final = "ca.crt"
_SECONDS: Final = 10.0  # between two looks, while all is well
_TROUBLE_SECONDS: Final = 2.0
_LOOKS_IN_A_LIFE: Final = 20  # at least
_STOP_SECONDS: Final = 1.0


class SelfMade:
    """Looks after the certificate in a thread of its own."""

    def __init__(
        self, client: WebhookClient, names: Sequence[str], lifetime: timedelta, served: Served
    ) -> None:
        """Make certificates for these DNS names; nothing is asked yet."""
        self._client = client
        self._names = names
        self._lifetime = lifetime
        self._served = served
        self._known = b""  # authorities that the API server knew at the last look
        self._pause = min(_SECONDS, lifetime.total_seconds() / _LOOKS_IN_A_LIFE)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="self-made", daemon=True)

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; waits a second at most."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def look(self) -> bool:
        """Bring Secret, configuration and what is shown together; false: look again soon.

        Raises DriverError.
        """
        pair = self._stored()
        was_known = self._known == pair.authorities
        is_known = self._is_known(pair.authorities)
        self._known = pair.authorities if is_known else b""
        if self._served.shows(pair.certificate):
            return True
        if (is_known and was_known) or self._served.is_empty:
            self._served.use(pair.certificate, pair.key)
            return True
        return False

    def _stored(self) -> Pair:
        """Pair in the Secret, a new one if that can't be used."""
        secret = self._client.read_secret()
        data = secret_data(secret)
        pair = Pair(*(data.get(key, b"") for key in (_CERTIFICATE, _KEY, _AUTHORITIES)))
        why = problem(pair, self._names, now()) if any(data.values()) else "there is none yet"
        if not why:
            return pair
        pair = make_pair(self._names, self._lifetime, now(), pair.authorities)
        values = (pair.certificate, pair.key, pair.authorities)
        new = dict(zip((_CERTIFICATE, _KEY, _AUTHORITIES), values, strict=True))
        self._client.replace_secret(with_secret_data(secret, new))
        _log.info("a certificate was made", because=why)
        return pair

    def _is_known(self, authorities: bytes) -> bool:
        """Whether the API server knew the authorities; if not, it is told."""
        try:
            configuration = self._client.read_webhooks()
        except NotFound as error:
            # Nobody calls us yet; whoever makes the configuration finds us ready.
            _log.debug("there is no webhook configuration", err=error)
            return True
        if all(bundle == authorities for bundle in ca_bundles(configuration)):
            return True
        self._client.replace_webhooks(with_ca_bundle(configuration, authorities))
        _log.info("the API server was told the authorities of the certificate")
        return False

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = min(self._pause, _TROUBLE_SECONDS)
            try:
                if self.look():
                    pause = self._pause
                self._served.went_well()
            except Conflict:
                continue  # another instance was faster: read what it has written
            except (DriverError, ValueError) as error:
                self._served.failed(error)
            except Exception:  # noqa: BLE001 - the thread must outlive our own mistakes
                _log.exception("looking after the certificate failed")
