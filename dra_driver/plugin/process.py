"""The plugin as a process: signals, logs, and an end in bounded time."""

import faulthandler
import gc
import os
import signal

from dra_driver.config import Settings
from dra_driver.host import give_large_blocks_back, told_to_stop
from dra_driver.plugin.node_plugin import NodePlugin
from dra_driver.serving import leave
from dra_driver.telemetry import logger, set_up_logging

_log = logger(__name__)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingInvalid or StorageFailed.

    SIGUSR2 writes the stacks of all threads to standard error. Does not return when a call hangs
    that nobody can end: then the process goes without it.
    """
    give_large_blocks_back()
    os.umask(0o022)  # whatever the caller's: sockets begin with this, files get their own modes
    set_up_logging(settings.log_format, settings.log_level)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    stop = told_to_stop()
    plugin = NodePlugin(settings)
    try:
        plugin.start()
        gc.freeze()  # a full collection would go through all modules while a call waits: 40 ms
        _log.info("serving", node=settings.node_name, driver=settings.driver_name)
        os.read(stop, 1)
        _log.info("stopping")
    finally:
        plugin.stop()
    _log.info("stopped")
    leave()
