"""The agent as a process: signals, logs, and an end in bounded time."""

import faulthandler
import os
import select
import signal
from typing import Final

from dra_driver.host import give_large_blocks_back, told_to_stop
from dra_driver.mps_agent.agent import Agent
from dra_driver.mps_agent.options import Options
from dra_driver.serving import leave
from dra_driver.telemetry import logger, set_up_logging

log = logger(__name__)
_LOOK_SECONDS: Final = 5.0


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingInvalid or StorageFailed.

    SIGUSR2 writes the stacks of all threads to standard error.
    """
    settings = options.settings
    give_large_blocks_back()
    os.umask(0o022)
    set_up_logging(settings.log_format, settings.log_level)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    stop = told_to_stop()
    agent = Agent(options)
    try:
        agent.start()
        log.info("serving control daemons of MPS", driver=settings.driver_name)
        while not select.select([stop], [], [], _LOOK_SECONDS)[0]:
            agent.look()
        log.info("stopping")
    finally:
        agent.stop()
    log.info("stopped")
    leave()
