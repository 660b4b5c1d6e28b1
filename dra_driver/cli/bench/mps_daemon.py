"""What a control daemon of MPS takes to start, whoever starts it."""

import tempfile
import time
from pathlib import Path
from typing import Final

from dra_driver.host import run_program
from dra_driver.model.errors import HardwareFailed
from dra_driver.mps_agent.programs import Programs

_SECONDS: Final = 10.0
_ASK: Final = "get_server_list\n"
_QUIT: Final = "quit\n"


def seconds_to_start(root: Path, folder: Path, uuid: str) -> float:
    """Start one for a GPU in the background, ask it, and end it; gives the seconds to its answer.

    Nothing of the agent is in it but how the program is found. Raises DriverError.
    """
    program = Programs(root, folder / "mps-libraries").find()
    with tempfile.TemporaryDirectory(prefix="daemon-", dir=folder) as scratch:
        environment = program.environment | {
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_MPS_PIPE_DIRECTORY": scratch,
            "CUDA_MPS_LOG_DIRECTORY": scratch,
        }
        begin = time.perf_counter()
        started = run_program([str(program.path), "-d"], environment, _SECONDS)
        asked = run_program([str(program.path)], environment, _SECONDS, _ASK)
        seconds = time.perf_counter() - begin
        ended = run_program([str(program.path)], environment, _SECONDS, _QUIT)
    for done in (started, asked, ended):
        if done.status:
            raise HardwareFailed(f"{program.path.name}: {done.words}")
    return seconds
