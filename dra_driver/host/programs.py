"""Programs of the host that are run once, to their end."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.host.tally import Tally
from dra_driver.model.errors import DriverFilesMissing, HardwareBusy

_runs: Final = Tally()


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended."""

    status: int  # exit status; negative: the signal that ended it
    output: str  # standard output and error together

    @property
    def words(self) -> str:
        """Last line that it wrote, for a message."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {self.status}"


def programs_run() -> int:
    """How many programs this process has run so far."""
    return _runs.total


def run_program(
    arguments: Sequence[str], environment: Mapping[str, str], timeout: float, said: str = ""
) -> Finished:
    """Run a program without a shell; after `timeout` seconds it is killed.

    `said` is what it reads from its standard input. Raises HardwareBusy when its time is up,
    DriverFilesMissing when it can't be started.
    """
    _runs.add()
    try:
        done = subprocess.run(
            list(arguments),
            input=said.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HardwareBusy(f"{arguments[0]} did not end within {timeout:g} s") from error
    except OSError as error:
        raise DriverFilesMissing(f"{arguments[0]} can't be run: {error.strerror}") from error
    return Finished(done.returncode, done.stdout.decode(errors="replace"))
