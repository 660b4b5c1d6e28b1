"""All sets of devices that have a control daemon; what does not go together is refused by name."""

import threading
import time
from typing import Final

from dra_driver.model.errors import DeviceInUse
from dra_driver.mps_agent.daemon import end_servers
from dra_driver.mps_agent.keeper import SetKeeper, Tools
from dra_driver.mps_agent.set_folders import SetFolders
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing.mps_notes import SetNote
from dra_driver.sharing.mps_spec import MpsSpec
from dra_driver.telemetry import logger

log = logger(__name__)

_END_SECONDS: Final = 20.0  # for all daemons together, when the agent ends


class Sets:
    """The sets, by id. Safe to call from many threads."""

    def __init__(self, tools: Tools) -> None:
        """Read and start nothing yet."""
        self._tools = tools
        self._lock = threading.Lock()  # guards the table; a note may be written under it
        self._keepers: dict[str, SetKeeper] = {}
        self._news = threading.Condition()
        self._changes = 0

    def begin(self) -> None:
        """Clear up after an agent that was killed, and start what its sets need anew.

        Raises StorageFailed.
        """
        self._tools.notes.prepare()
        self._tools.programs.sweep()
        end_servers(self._tools.folders.sets)
        noted = {set_id: self._tools.notes.get(set_id) for set_id in self._tools.notes.ids()}
        for entry in self._tools.folders.sets.iterdir():
            if entry.is_dir() and noted.get(entry.name) is None:
                log.info("what an MPS set has left is removed", folder=entry)
                host = self._tools.options.settings.host_root
                SetFolders(entry, host, tmpfs=self._tools.options.tmpfs).remove()
        for note in filter(None, noted.values()):
            log.warning("an MPS set has lost its control daemon: another starts", set=note.spec)
            keeper = self._keepers[note.spec.id] = SetKeeper(note, self._tools, self._changed)
            keeper.interrupted()
            keeper.start()

    def ensure(self, spec: MpsSpec, seconds: float, *, replace: bool) -> pb.SetState:
        """Let a daemon serve the set; gives what there is to tell when clients can attach.

        With `replace` a daemon that is set otherwise is ended first, and always one whose
        partitions were made anew since: they have other UUIDs in the same set. Raises DeviceInUse
        for what does not go together with what runs, and what the start failed with: then it is
        tried again and again, until the set is released.
        """
        spec.check()
        deadline = time.monotonic() + seconds
        keeper = self._keeper(spec, replace=replace)
        keeper.wait_ready(max(0.0, deadline - time.monotonic()))
        keeper.adjust(spec)
        return keeper.state()

    def release(self, set_id: str) -> None:
        """End the set's daemon and take all back; raises DriverError, and may be called again."""
        with self._lock:
            keeper = self._keepers.get(set_id)
        if keeper is None:
            return
        keeper.release()
        with self._lock:
            if self._keepers.get(set_id) is keeper:
                del self._keepers[set_id]
        log.info("an MPS set is released", set=keeper.spec)
        self._changed()

    def states(self) -> list[pb.SetState]:
        """Tell how each set is."""
        with self._lock:
            keepers = list(self._keepers.values())
        return [keeper.state() for keeper in keepers]

    @property
    def changes(self) -> int:
        """Count of changes so far."""
        return self._changes

    def wait(self, seen: int, seconds: float) -> None:
        """Return when there are more changes than those `seen`, or the time is up."""
        with self._news:
            self._news.wait_for(lambda: self._changes != seen, seconds)

    def wake(self) -> None:
        """Let those who `wait` look up."""
        self._changed()

    def stop(self) -> None:
        """End all daemons; notes, mounts and modes stay for the agent that comes next."""
        with self._lock:
            keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.halt()
        deadline = time.monotonic() + _END_SECONDS
        for keeper in keepers:
            keeper.join(max(0.0, deadline - time.monotonic()))

    def _keeper(self, spec: MpsSpec, *, replace: bool) -> SetKeeper:
        while True:
            with self._lock:
                there = self._keepers.get(spec.id)
                if there is None:
                    return self._new(spec)
                differences = list(spec.differences(there.spec))
                if there.is_wanted and not differences:
                    return there
                if there.is_wanted and not replace and there.spec.uuids == spec.uuids:
                    raise DeviceInUse(f"{there.spec} is set otherwise: {'; '.join(differences)}")
            self.release(spec.id)

    def _new(self, spec: MpsSpec) -> SetKeeper:
        for other in self._keepers.values():
            if (common := _common(spec, other.spec)) is not None:
                raise DeviceInUse(
                    f"{spec} can't have a control daemon of its own: {common} belongs to "
                    f"{other.spec}; a device has one MPS server"
                )
        note = SetNote(spec=spec)
        self._tools.notes.write(note)
        keeper = self._keepers[spec.id] = SetKeeper(note, self._tools, self._changed)
        keeper.start()
        return keeper

    def _changed(self) -> None:
        with self._news:
            self._changes += 1
            self._news.notify_all()


def _common(one: MpsSpec, other: MpsSpec) -> str | None:
    """Device that two sets would both have; a whole GPU is all of its partitions, too."""
    for mine in one.devices:
        for theirs in other.devices:
            same = mine.uuid == theirs.uuid
            parts = mine.uuid != mine.gpu_uuid and theirs.uuid != theirs.gpu_uuid
            if same or (mine.gpu_uuid == theirs.gpu_uuid and not parts):
                return mine.uuid
    return None
