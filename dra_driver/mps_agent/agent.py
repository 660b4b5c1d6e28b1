"""The agent put together: build, start, stop."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from dra_driver.host import ensure_folder
from dra_driver.model import DriverError
from dra_driver.model.errors import SettingInvalid, StorageFailed
from dra_driver.mps_agent.keeper import Tools
from dra_driver.mps_agent.options import Options
from dra_driver.mps_agent.programs import Programs
from dra_driver.mps_agent.service import MpsService
from dra_driver.mps_agent.sets import Sets
from dra_driver.serving import SocketServer
from dra_driver.sharing.mps_notes import MpsFolders, SetNotes
from dra_driver.telemetry import logger

_log = logger(__name__)

_LOCK_SECONDS: Final = 5.0  # that a plugin may take which puts things right meanwhile
_LOCK_PAUSE: Final = 0.05
_LONGEST_SET: Final = "/sets/0123456789abcdef/pipe/control_privileged"  # of a daemon's sockets
_SOCKET_PATH_MAX: Final = 107
_GRACE_SECONDS: Final = 1.0


class Agent:
    """All parts of `dra-driver mps-agent`. Building it starts nothing."""

    def __init__(self, options: Options) -> None:
        """Put the parts together. Raises SettingInvalid."""
        settings = options.settings
        self._folders = MpsFolders(settings)
        if len(str(self._folders.top)) + len(_LONGEST_SET) > _SOCKET_PATH_MAX:
            raise SettingInvalid(
                f"--kubelet-plugins-directory-path makes the sockets of MPS in {self._folders.top} "
                f"longer than {_SOCKET_PATH_MAX} bytes: use a shorter folder"
            )
        self._settings = settings
        self._lock = self._folders.lock(0)
        tools = Tools(
            options,
            self._folders,
            SetNotes(self._folders),
            Programs(
                settings.container_driver_root,
                self._folders.top / "lib",
                settings.driver_root_shown,
            ),
        )
        self._sets = Sets(tools)
        self._service = MpsService(self._sets, tools.programs.client_limit)
        self._threads = ThreadPoolExecutor(1, "unused")  # every method has a pool of its own
        self._server = SocketServer(self._folders.socket, self._build_server)

    def start(self) -> None:
        """Serve, and begin anew for sets that claims have. Raises StorageFailed."""
        ensure_folder(self._settings.data_folder)
        ensure_folder(self._folders.top)
        self._be_the_only_one()
        self._sets.begin()
        self._server.start()

    def look(self) -> None:
        """Offer the socket anew when somebody took it away."""
        if self._server.present():
            return
        try:
            self._server.renew()
            _log.warning("the socket was gone and is made anew", path=self._server.path)
        except DriverError as error:
            _log.error("the socket is gone and can't be offered anew", err=error)

    def stop(self) -> None:
        """End the service and all daemons; harmless where nothing was started."""
        self._service.end_streams()
        self._server.stop(_GRACE_SECONDS).wait(2 * _GRACE_SECONDS)
        self._sets.stop()
        self._service.close()
        self._threads.shutdown(wait=False)
        self._lock.release()

    def _be_the_only_one(self) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self._lock.try_acquire():
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"another MPS agent serves {self._folders.socket}: stop it first"
                )
            time.sleep(_LOCK_PAUSE)

    def _build_server(self) -> grpc.Server:
        server = grpc.server(self._threads)
        server.add_generic_rpc_handlers((self._service.service(),))
        return server
