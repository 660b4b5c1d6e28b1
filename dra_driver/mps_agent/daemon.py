"""One control daemon of MPS, from its start to its end."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.host import Child, end_strays
from dra_driver.model import DriverError
from dra_driver.model.errors import HardwareBusy, HardwareFailed
from dra_driver.mps_agent.control import Control, Limits
from dra_driver.mps_agent.programs import KERNEL_NAME, Program
from dra_driver.mps_agent.set_folders import SetFolders
from dra_driver.sharing.mps_spec import MpsSpec
from dra_driver.telemetry import logger

log = logger(__name__)

PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
_OWN_LOG: Final = "control.log"  # that the daemon keeps in its log folder
_OUTPUT: Final = "output.log"
_QUIT_SECONDS: Final = 2.0
_TERM_SECONDS: Final = 5.0
_WORDS: Final = 3  # lines


class Daemon:
    """A daemon that was started; it ends with the thread that makes it."""

    def __init__(self, spec: MpsSpec, folders: SetFolders, program: Program) -> None:
        """Start it in the foreground. Raises HardwareFailed when there is no process to be had."""
        environment = program.environment | {
            "CUDA_VISIBLE_DEVICES": ",".join(spec.uuids),
            "CUDA_MPS_LOG_DIRECTORY": str(folders.log),
            PIPE_VARIABLE: str(folders.pipe),
        }
        options = ["-f", "-multiuser-server"] if spec.multi_user else ["-f"]
        self._folders = folders
        self._control = Control(program, folders.pipe)
        self._told: Limits | None = None  # limits that it has taken
        self._output = folders.log / _OUTPUT
        for path in (self._output, folders.log / _OWN_LOG):
            path.unlink(missing_ok=True)  # what one before it had to say
        try:
            command = [str(program.path), *options]
            self._child = Child(command, self._output, environment, folders.own_shm)
        except OSError as error:
            raise HardwareFailed(f"no process can be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """Process id, as the node counts."""
        return self._child.pid

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._child.ended() is not None

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from another thread, when it has ended."""
        self._child.when_ended(tell)

    def is_ready(self) -> bool:
        """Whether clients can attach. Raises HardwareFailed when it has ended."""
        if self.ended:
            raise HardwareFailed(f"the control daemon ended {self.last_words()}")
        if not (self._folders.pipe / "control").exists():
            return False
        with suppress(HardwareBusy):
            self._control.servers()
            return True
        return False

    def clients(self) -> int:
        """Clients that are attached. Raises HardwareBusy when it does not answer."""
        return self._control.clients()

    def holds(self, spec: MpsSpec) -> bool:
        """Whether it has taken these limits, as far as is known without asking it."""
        return self._told == Limits.of(spec)

    def hold_limits(self, spec: MpsSpec, *, is_new: bool = False) -> None:
        """Set the limits that are not as they should be, and read them back.

        A new daemon has no limits and no servers yet. Raises HardwareBusy when it does not answer,
        HardwareFailed when they do not stay.
        """
        wanted = Limits.of(spec)
        missing = wanted  # of limits that were changed a daemon shows too little to see it
        if not is_new and wanted == self._told:
            missing = wanted.without(self._control.limits(wanted))
        if not missing:
            self._told = wanted
            return
        servers = [] if is_new else self._control.servers()
        said = self._control.set_limits(missing, servers)
        if not is_new and (later := set(self._control.servers()) - set(servers)):
            said += self._control.set_limits(missing, sorted(later))  # had the old defaults
        found = self._control.limits(wanted)
        if wanted.without(found):
            raise HardwareFailed(
                f"limits are {found} after they were set to {wanted}; the daemon says: {said}"
            )
        self._told = wanted

    def stop(self) -> None:
        """End it and its servers, whatever state they are in."""
        if not self.ended:
            with suppress(DriverError):
                self._control.quit()
            if self._child.wait(_QUIT_SECONDS) is None:
                self._child.stop(_TERM_SECONDS)
        end_servers(self._folders.pipe)

    def last_words(self) -> str:
        """How it ended, or what it waits for, in its own words: one line."""
        status = self._child.ended()
        told = [line for path in self._logs() for line in _last_lines(path)]
        how = "" if status is None else f"with status {status}"
        said = "; ".join(told[-_WORDS:]) or "it said nothing"
        return f"{how}: {said}" if how else said

    def _logs(self) -> tuple[Path, ...]:
        return (self._folders.log / _OWN_LOG, self._output)


def end_servers(folder: Path) -> None:
    """End what still runs of daemons with that pipe folder, or one below it."""
    for process in end_strays(KERNEL_NAME, PIPE_VARIABLE, folder, _TERM_SECONDS):
        log.warning("a process of MPS was left and is ended", pid=process.pid)


def _last_lines(path: Path) -> list[str]:
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()][-_WORDS:]
    return []
