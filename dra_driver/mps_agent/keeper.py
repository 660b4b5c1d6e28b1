"""Keeps one control daemon for one set of devices, from the first claim to the last.

A daemon that ends is told of and followed by another, for new clients: those that it had are lost.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dra_driver.host import failpoint
from dra_driver.model import Bug, DriverError
from dra_driver.model.errors import HardwareBusy
from dra_driver.mps_agent.daemon import Daemon
from dra_driver.mps_agent.options import Options
from dra_driver.mps_agent.programs import Programs
from dra_driver.mps_agent.set_folders import SetFolders
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing.mps_notes import MpsFolders, SetNote, SetNotes
from dra_driver.sharing.mps_spec import MpsSpec, to_message
from dra_driver.telemetry import logger

log = logger(__name__)

_LONGEST_PAUSE: Final = 60.0
_STEADY_SECONDS: Final = 60.0  # a daemon that lived so long is followed by the next at once
_LOOK, _LONGEST_LOOK = 0.002, 0.25  # between two looks whether it answers already
_HASTE_SECONDS: Final = 0.5  # after which looks become rarer
_END_SECONDS: Final = 30.0
_LONGEST_LOG: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Tools:
    """What all sets have in common."""

    options: Options
    folders: MpsFolders
    notes: SetNotes
    programs: Programs


class SetKeeper:
    """One set. Its thread starts, watches and ends its daemons, which end with the thread."""

    def __init__(self, note: SetNote, tools: Tools, changed: Callable[[], None]) -> None:
        """Do nothing yet. `changed` is told, from any thread, when `state` gives something else."""
        self._note = note
        self._tools = tools
        self._tell = changed
        folder, host = tools.folders.of_set(note.spec.id), tools.options.settings.host_root
        self.folders = SetFolders(folder, host, tmpfs=tools.options.tmpfs)
        self._asking = threading.Lock()  # one talk with the daemon at a time
        self._releasing = threading.Lock()
        self._is_released = False
        self._change = threading.Condition()  # guards the rest
        self._wanted = True
        self._poked = False
        self._attempts = 0  # starts that have come to an end
        self._error: DriverError | None = None  # of the last one
        self._state = pb.STARTING
        self._words = ""
        self._since = int(time.time())
        self._clients = 0
        self._daemon: Daemon | None = None
        self._thread = threading.Thread(target=self._run, name=f"MPS {note.spec.id}", daemon=True)

    @property
    def spec(self) -> MpsSpec:
        """Set that it keeps."""
        return self._note.spec

    @property
    def is_wanted(self) -> bool:
        """Whether nobody has released it."""
        return self._wanted

    def start(self) -> None:
        """Begin to keep. Returns at once."""
        self._thread.start()

    def state(self) -> pb.SetState:
        """Tell how it is."""
        with self._change:
            return pb.SetState(
                set=to_message(self.spec),
                state=self._state,
                words=self._words,
                since=self._since,
                pid=self._daemon.pid if self._daemon else 0,
                interruptions=self._note.interruptions,
                interrupted_at=self._note.interrupted_at,
                clients=self._clients,
                pipe_folder=str(self.folders.pipe),
                shm_folder=str(self.folders.shm),
            )

    def wait_ready(self, seconds: float) -> None:
        """Wait until clients can attach; where there is no daemon another is tried at once.

        Raises what the start failed with, HardwareBusy when it takes longer or does not answer.
        """
        with self._change:
            seen = self._attempts
            self._poked = self._state == pb.DOWN
            self._change.notify_all()
            self._change.wait_for(lambda: self._is_settled(seen), seconds)
            if not self._wanted:
                raise HardwareBusy(f"{self.spec} was released meanwhile")
            if self._state == pb.SILENT:
                raise HardwareBusy(f"{self.spec}: {self._words}")
            if self._state == pb.READY:
                return
            if self._attempts > seen and self._error is not None:
                raise self._error
            raise HardwareBusy(f"{self.spec}: the control daemon is still being started")

    def adjust(self, spec: MpsSpec) -> None:
        """Take other limits, for clients that attach from now on. Raises DriverError.

        They are noted first: when the daemon does not take them, it is told them again with the
        next call, and by those who watch it.
        """
        with self._change:
            if not self._wanted:  # its note is gone, or about to go
                raise HardwareBusy(f"{self.spec} was released meanwhile")
            daemon = self._daemon
            if spec != self.spec:
                note = self._note.model_copy(update={"spec": spec})
                self._tools.notes.write(note)
                self._note = note
            elif daemon is None or daemon.holds(spec):
                return
        if daemon is not None:
            with self._asking:
                daemon.hold_limits(self.spec)  # those of a later call, if there was one
        log.info("limits are adjusted", set=spec)
        self._tell()

    def release(self) -> None:
        """End the daemon and take all back. Raises DriverError; then it is to be called again.

        Once: a call that comes late does not take what another keeper of the set has made since.
        """
        self.halt()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            raise HardwareBusy(f"{self.spec}: the control daemon does not end")
        with self._releasing:
            if self._is_released:
                return
            failpoint("before-release")
            self.folders.remove()
            self._tools.notes.remove(self.spec.id)
            failpoint("after-release")
            self._is_released = True

    def halt(self) -> None:
        """Let the daemon end, and leave all else as it is. Returns at once."""
        with self._change:
            self._wanted = False
            self._change.notify_all()

    def join(self, seconds: float) -> None:
        """Wait until the daemon has ended after `halt`."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _is_settled(self, seen: int) -> bool:
        is_up = self._state in (pb.READY, pb.SILENT)
        return is_up or self._attempts > seen or not self._wanted

    def _run(self) -> None:
        pause = self._tools.options.first_pause
        while self._wanted:
            began = time.monotonic()
            try:
                self._serve()
            except Exception as error:  # the thread must outlive our own mistakes
                log.exception("keeping a control daemon failed", set=self.spec)
                self._become(pb.DOWN, f"keeping a control daemon failed: {error!r}")
            if time.monotonic() - began >= _STEADY_SECONDS:
                pause = self._tools.options.first_pause
                continue
            with self._change:
                self._change.wait_for(lambda: self._poked or not self._wanted, pause)
                self._poked = False
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self) -> None:
        """Let a daemon run until it ends or nobody wants it."""
        daemon = self._bring_up()
        if daemon is not None:
            try:
                self._watch(daemon)
            finally:
                self._end(daemon)

    def _bring_up(self) -> Daemon | None:
        """Start a daemon; None: there is none, and it was told why."""
        self._become(pb.STARTING)
        daemon: Daemon | None = None
        try:
            daemon = self._started()
            self._wait_for(daemon)
            daemon.hold_limits(self.spec, is_new=True)
            failpoint("after-ready")
        except DriverError as error:
            failure = error
        except Exception as error:
            log.exception("starting a control daemon failed", set=self.spec)
            failure = Bug(f"starting a control daemon failed: {error!r}")
        else:
            log.info("a control daemon is ready", set=self.spec, pid=daemon.pid)
            with self._change:
                self._attempts += 1
                self._daemon, self._error = daemon, None
                self._become(pb.READY)
            return daemon
        log.warning("no control daemon", set=self.spec, err=failure)
        with self._change:
            self._attempts += 1
            self._error = type(failure)(f"{self.spec}: {failure}")
            self._become(pb.DOWN, str(failure))
        if daemon is not None:
            daemon.stop()
        return None

    def _started(self) -> Daemon:
        program = self._tools.programs.find()
        self.folders.make(self.spec)
        self.folders.clear_pipe()
        failpoint("before-daemon")
        daemon = Daemon(self.spec, self.folders, program)
        failpoint("after-daemon")
        return daemon

    def _wait_for(self, daemon: Daemon) -> None:
        seconds = self._tools.options.ready_seconds
        begin = time.monotonic()
        pause = _LOOK
        while not daemon.is_ready():
            waited = time.monotonic() - begin
            if waited > seconds:
                raise HardwareBusy(
                    f"the control daemon was not ready within {seconds:g} s: {daemon.last_words()}"
                )
            with self._change:
                if self._change.wait_for(lambda: not self._wanted, pause):
                    raise HardwareBusy("it was released while its control daemon was started")
            if waited > _HASTE_SECONDS:
                pause = min(2 * pause, _LONGEST_LOOK)

    def _watch(self, daemon: Daemon) -> None:
        """Look at the daemon again and again, until it has ended or nobody wants it."""
        daemon.when_ended(self._wake)
        while self._wanted and not daemon.ended:
            self._look(daemon)
            with self._change:
                self._change.wait_for(
                    lambda: daemon.ended or not self._wanted, self._tools.options.poll_seconds
                )

    def _wake(self) -> None:
        with self._change:
            self._change.notify_all()

    def _look(self, daemon: Daemon) -> None:
        """See that it answers and that all is set as it should be."""
        try:
            with self._asking:
                daemon.hold_limits(self.spec)
                clients = daemon.clients()
        except DriverError as error:
            if not daemon.ended:
                words = f"the control daemon (PID {daemon.pid}) does not answer: {error}"
                self._become(pb.SILENT, words)
        except Exception as error:  # our own mistake: its clients must not lose it for that
            if self._state != pb.SILENT:
                log.exception("looking at a control daemon failed", set=self.spec)
            self._become(pb.SILENT, f"the control daemon can't be looked at: {error!r}")
        else:
            with self._change:
                is_news, self._clients = self._clients != clients, clients
            self._become(pb.READY)
            if is_news:
                self._tell()
        try:
            self.folders.keep_logs_short(_LONGEST_LOG)
        except OSError as error:
            log.warning("logs of an MPS set can't be kept short", set=self.spec, err=error)

    def _end(self, daemon: Daemon) -> None:
        """Clear up after a daemon: it ended by itself, or shall end."""
        if self._wanted:
            words = f"the control daemon (PID {daemon.pid}) ended {daemon.last_words()}"
            log.error("the programs on an MPS set have lost it", set=self.spec, err=words)
            self.interrupted()
            self._become(pb.DOWN, words)
        with self._change:
            self._daemon, self._clients = None, 0
        daemon.stop()
        self._tell()

    def interrupted(self) -> None:
        """Note that clients have lost their daemon."""
        with self._change:
            count = self._note.interruptions + 1
            update = {"interruptions": count, "interrupted_at": int(time.time())}
            self._note = self._note.model_copy(update=update)
            try:
                self._tools.notes.write(self._note)
            except DriverError as error:
                log.warning("that a daemon ended is not noted", set=self.spec, err=error)

    def _become(self, state: "pb.State.ValueType", words: str = "") -> None:
        with self._change:
            if (state, words) == (self._state, self._words):
                return
            if state != self._state:
                self._since = int(time.time())
            self._state, self._words = state, words
            self._change.notify_all()
        self._tell()
