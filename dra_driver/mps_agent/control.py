"""What a control daemon of MPS is asked and told, by the GPU driver's own program.

Commands and their answers are those of NVIDIA's "Multi-Process Service", appendix "Tools and
Interface Reference". The program reads commands and writes answers; it can't tell which answer is
whose, so one call asks only what has one line for each command, or one thing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.host import run_program
from dra_driver.model.errors import HardwareBusy, HardwareFailed
from dra_driver.mps_agent.programs import Program
from dra_driver.sharing.mps_spec import MpsSpec

_SECONDS: Final = 5.0  # for all commands of one call
_QUIT_SECONDS: Final = 2.0
_AMOUNT: Final = re.compile(r"(\d+)\s*([MG])B?")
_MIB_OF: Final = {"M": 1, "G": 1024}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a daemon tells every client; without entry: nothing."""

    thread_percentage: int | None
    mib: Mapping[int, int]  # by ordinal

    @classmethod
    def of(cls, spec: MpsSpec) -> "Limits":
        """Limits that a set is to have."""
        amounts = enumerate(device.limit_mib for device in spec.devices)
        mib = {ordinal: amount for ordinal, amount in amounts if amount is not None}
        return cls(spec.thread_percentage, mib)

    def without(self, other: "Limits") -> "Limits":
        """Leave out what `other` has alike."""
        same = self.thread_percentage == other.thread_percentage
        mib = {place: mib for place, mib in self.mib.items() if other.mib.get(place) != mib}
        return Limits(None if same else self.thread_percentage, mib)

    def __bool__(self) -> bool:
        return self.thread_percentage is not None or bool(self.mib)


class Control:
    """Talks to the daemon of one pipe folder. Raises HardwareBusy where it does not answer."""

    def __init__(self, program: Program, pipe: Path) -> None:
        self._program = program
        self._environment = program.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}

    def servers(self) -> list[int]:
        """PIDs of the servers, of which there is none before the first client."""
        return [_number(line) for line in self._ask("get_server_list")]

    def clients(self) -> int:
        """Clients that are attached now."""
        return sum(len(self._ask(f"get_client_list {server}")) for server in self.servers())

    def limits(self, wanted: Limits) -> Limits:
        """Read back those limits that are wanted. Raises HardwareFailed for another answer.

        Daemons show limits of 1 GiB and more in whole GiB, which stands for what is wanted then.
        """
        commands = [f"get_default_device_pinned_mem_limit {place}" for place in wanted.mib]
        if wanted.thread_percentage is not None:
            commands.append("get_default_active_thread_percentage")
        if not commands:
            return Limits(None, {})
        lines = self._ask(*commands)
        if len(lines) != len(commands):
            raise HardwareFailed(f"{len(commands)} limits were asked for, answered was {lines!r}")
        percentage = None
        if wanted.thread_percentage is not None:
            percentage = round(_decimal(lines.pop()))
        shown = zip(wanted.mib.items(), lines, strict=True)
        return Limits(percentage, {place: _mib(line, mib) for (place, mib), line in shown})

    def set_limits(self, limits: Limits, servers: Sequence[int]) -> str:
        """Set limits of new clients, those of `servers` that run already too; gives what is said.

        Defaults are for servers to come (same reference). Clients keep what they began with.
        """
        commands = list(_commands(limits, "default_", ""))
        for server in servers:
            commands += _commands(limits, "", f"{server} ")
        return "; ".join(self._ask(*commands))

    def quit(self) -> None:
        """Let the daemon end, whether it has clients or not."""
        self._ask("quit -t 1", seconds=_QUIT_SECONDS)

    def _ask(self, *commands: str, seconds: float = _SECONDS) -> list[str]:
        """Give the lines that are answered to these commands."""
        said = "".join(f"{command}\n" for command in commands)
        done = run_program([str(self._program.path)], self._environment, seconds, said)
        if done.status:
            raise HardwareBusy(f"{commands[0]}: {done.words}")
        return [line.strip() for line in done.output.splitlines() if line.strip()]


def _commands(limits: Limits, kind: str, whose: str) -> Sequence[str]:
    found = [
        f"set_{kind}device_pinned_mem_limit {whose}{place} {mib}M"
        for place, mib in limits.mib.items()
    ]
    if limits.thread_percentage is not None:
        found.append(f"set_{kind}active_thread_percentage {whose}{limits.thread_percentage}")
    return found


def _number(line: str) -> int:
    if not line.isdecimal():
        raise HardwareFailed(f"a process id was expected, answered was {line!r}")
    return int(line)


def _decimal(line: str) -> float:
    try:
        return float(line)
    except ValueError:
        raise HardwareFailed(f"a percentage was expected, answered was {line!r}") from None


def _mib(line: str, wanted: int) -> int:
    """Read an amount such as `512M` or, cut to whole GiB, `3G`; -1 where there is no limit."""
    found = _AMOUNT.fullmatch(line)
    if found is None:
        return -1
    amount = int(found[1]) * _MIB_OF[found[2]]
    return wanted if found[2] == "G" and amount == wanted // 1024 * 1024 else amount
