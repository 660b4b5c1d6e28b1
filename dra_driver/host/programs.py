"""Programs of the host that are run once, to their end."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from dra_driver.host.tally import Tally
from dra_driver.model.errors import DriverFilesMissing, HardwareBusy

_Order: TypeAlias = tuple[tuple[str, ...], frozenset[tuple[str, str]]]  # arguments, environment

_KILL_SECONDS: Final = 2.0  # that the kernel takes to end what is killed, unless it hangs itself
_ADVICE: Final = "it hangs in the kernel: look at the kernel log"

_runs: Final = Tally()
_hanging: Final[dict[_Order, "subprocess.Popen[bytes]"]] = {}  # killed, and have not ended


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
    DriverFilesMissing when it can't be started. One that hangs in the kernel, as programs do on a
    GPU that does not answer, can't be killed: it is left, and not run again until it has ended.
    """
    order = (tuple(arguments), frozenset(environment.items()))
    _refuse_another(order)
    _runs.add()
    try:
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
        )
    except OSError as error:
        raise DriverFilesMissing(f"{arguments[0]} can't be run: {error.strerror}") from error
    try:
        output, _ = process.communicate(said.encode(), timeout)
    except subprocess.TimeoutExpired as error:
        told = f"{arguments[0]} did not end within {timeout:g} s"
        if not _killed(process):
            _hanging[order] = process
            told = f"{told} and can't be killed; {_ADVICE}"
        raise HardwareBusy(told) from error
    return Finished(process.returncode, output.decode(errors="replace"))


def _refuse_another(order: _Order) -> None:
    """Raise HardwareBusy while the same program hangs that was run before."""
    before = _hanging.get(order)
    if before is None:
        return
    if before.poll() is None:
        raise HardwareBusy(
            f"{order[0][0]} (PID {before.pid}) was run before and has not ended; {_ADVICE}"
        )
    _hanging.pop(order, None)


def _killed(process: "subprocess.Popen[bytes]") -> bool:
    """End a process that takes too long; gives whether it has ended."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
