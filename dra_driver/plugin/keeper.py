"""Keeps the plugin reachable when somebody takes its sockets away, or the kubelet refuses it.

It also removes the sockets of other instances that were killed: nobody else may ever come to do it.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from dra_driver.plugin.registration import Registration
from dra_driver.serving import SocketServer
from dra_driver.telemetry import logger

_log = logger(__name__)
_LOOK_SECONDS: Final = 2.0
_REFUSAL_SECONDS: Final = 30.0  # kubelets up to 1.35 never try a refused socket again
_SILENCE_SECONDS: Final = 60.0
_SWEEP_SECONDS: Final = 60.0


class Keeper:
    """Looks at both sockets every two seconds, and sweeps every minute."""

    def __init__(
        self,
        service: SocketServer,
        registrar: SocketServer,
        registration: Registration,
        sweep: Callable[[], None],
    ) -> None:
        self._service = service
        self._registrar = registrar
        self._registration = registration
        self._sweep = sweep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why a socket could not be offered anew; empty when both are in place."""
        return self._problem

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more: the sockets may now go away for good."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)

    def look(self) -> None:
        """Offer anew what is gone or was refused."""
        try:
            self._restore()
        except Exception as error:  # noqa: BLE001 - the thread must outlive our own mistakes
            if str(error) != self._problem:
                _log.error("a socket is gone and cannot be offered anew", err=error)
            self._problem = str(error)
        else:
            self._problem = ""

    def _restore(self) -> None:
        if not self._service.present():
            self._service.renew()
            _log.warning("the service socket was gone and is made anew", path=self._service.path)
        if self._stopped.is_set():
            return  # while the other one was looked at: the registration is gone for good
        gone = not self._registrar.present()
        if gone or self._registration.refused_for(_REFUSAL_SECONDS):
            self._registration.offered_anew()
            self._registrar.renew()
            _log.warning("registering again", path=self._registrar.path, socket_was_gone=gone)

    def _run(self) -> None:
        silent_at = time.monotonic() + _SILENCE_SECONDS
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        while not self._stopped.wait(_LOOK_SECONDS):
            self.look()
            if time.monotonic() >= sweep_at:
                self._sweep()
                sweep_at = time.monotonic() + _SWEEP_SECONDS
            if time.monotonic() >= silent_at and not self._registration.asked:
                silent_at = float("inf")
                _log.error(
                    "no kubelet has asked for this plugin: is it running, and is "
                    "--kubelet-registrar-directory-path its plugins_registry folder?",
                    path=self._registrar.path,
                )
