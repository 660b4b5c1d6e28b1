"""Control daemons of MPS for the claims that want them, by the MPS agent.

A set of devices has one daemon, from the first claim that has it to the last; the records tell who
has it. While claims have it, it stays as it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from dra_driver.config import Settings
from dra_driver.host import RangeLock, failpoint
from dra_driver.model.errors import DeviceInUse, DriverError, HardwareBusy
from dra_driver.nvml import Gpus
from dra_driver.rpc import mps_v1_pb2 as pb
from dra_driver.sharing.failures import Failures
from dra_driver.sharing.mps_client import AgentAway, MpsAgent
from dra_driver.sharing.mps_modes import ComputeModes
from dra_driver.sharing.mps_notes import MpsFolders, SetNotes
from dra_driver.sharing.mps_sets import sets_of, spec_of
from dra_driver.sharing.mps_shares import largest_amounts, with_client_limits
from dra_driver.sharing.mps_spec import MpsSpec, from_message
from dra_driver.state import ClaimRecord, DeviceRecord, Holding, Phase, holdings
from dra_driver.telemetry import logger

_log = logger(__name__)

# Works on a claim if nobody else does; says whether it is prepared still.
Undisturbed: TypeAlias = Callable[[ClaimRecord], AbstractContextManager[bool]]

_LOCK_SECONDS: Final = 20.0
_LOWER_SECONDS: Final = 5.0
_END_SECONDS: Final = 2.0  # that an agent takes to be gone when it no longer answers


class MpsSets:
    """Asks the agent for what records say; a claim without MPS costs nothing."""

    def __init__(
        self,
        gpus: Gpus,
        settings: Settings,
        holdings: Callable[[], Iterable[Holding]],
        unknown: Callable[[], AbstractSet[str]],
    ) -> None:
        """Ask `holdings` who else has a set; set compute modes through `gpus`.

        Programs of claims whose UIDs `unknown` gives may run on any set.
        """
        self._folders = MpsFolders(settings)
        self._locks = settings.data_folder / "mps.lock"
        self._notes = SetNotes(self._folders)
        self._modes = ComputeModes(gpus, settings)
        self._agent = MpsAgent(self._folders.socket)
        self._holdings = holdings
        self._unknown = unknown

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        """Let a daemon serve each set of the claim; gives the record with the sets' folders.

        Raises AgentAway, DeviceInUse when a daemon has as many claims as it can serve,
        ConfigInvalid, and what starting a daemon fails with.
        """
        for mps_set, devices in sets_of(record).items():
            with self._lock(mps_set):
                held = self._held_beside(record)
                others = _claims(mps_set, held)
                amounts = largest_amounts(mps_set, (*held, *holdings(record)))
                spec = spec_of(mps_set, devices, amounts)
                self._modes.hold(_places(devices))
                failpoint("before-mps")
                state = self._ensure(record, spec, others)
                failpoint("after-mps")
            record = _with_folders(record, state)
        return with_client_limits(record)

    def undo(self, record: ClaimRecord) -> None:
        """Release the sets that no other claim can have. Without an agent nothing runs for them.

        What the driver before gave MPS was the claim's alone: its compute mode is put back.
        """
        prior = [each for each in record.devices if each.mps_folders and not each.mps_set]
        self._modes.let_go(_places(each for each in prior if each.span is None))
        for mps_set, devices in sets_of(record).items():
            with self._lock(mps_set):
                held = self._held_beside(record)
                if not _claims(mps_set, held):
                    if self._unknown() - {record.uid}:
                        _log.warning("an MPS set stays while records can't be read", set=mps_set)
                        continue  # a sweep takes it back when they can be, or are gone
                    failpoint("before-release-mps")
                    self._release(mps_set)
                    failpoint("after-release-mps")
                    self._modes.let_go(_places(devices))
                    continue
                amounts = largest_amounts(mps_set, held)
                if amounts != largest_amounts(mps_set, (*held, *holdings(record))):
                    self._lower(spec_of(mps_set, devices, amounts))

    def assert_again(self, records: Sequence[ClaimRecord], undisturbed: Undisturbed) -> None:
        """Release what no claim can need, and ask again for what live claims need.

        Raises AgentAway, and what a daemon or a compute mode fails with.
        """
        wanted: dict[str, list[ClaimRecord]] = {}
        for record in records:
            for mps_set in sets_of(record):
                wanted.setdefault(mps_set, []).append(record)
        failures = Failures()
        for mps_set in set(self._notes.ids()) - wanted.keys():
            with failures.noted():
                self._release_stray(mps_set)
        there: Mapping[str, pb.SetState] | None = None  # without an agent: only compute modes
        with failures.noted():
            there = self._agent.sets() if wanted else {}
        for mps_set, holders in wanted.items():
            for record in holders:
                with failures.noted(), undisturbed(record) as is_live:
                    if is_live:
                        self._make_sure(mps_set, record, there)
                        break
        failures.tell()

    def _make_sure(
        self, mps_set: str, record: ClaimRecord, there: Mapping[str, pb.SetState] | None
    ) -> None:
        """Let a live claim have its set as it should be; nothing is waited for that starts."""
        devices = sets_of(record)[mps_set]
        with self._lock(mps_set):
            amounts = largest_amounts(mps_set, self._holdings())
            spec = spec_of(mps_set, devices, amounts)
            self._modes.hold(_places(devices))
            if there is None:
                return
            found = there.get(mps_set)
            if found is None or from_message(found.set).devices != spec.devices:
                self._ensure(record, spec, {record.uid})

    def _lower(self, spec: MpsSpec) -> None:
        """Let new clients have no more than the claims that stay; else the next sweep does it."""
        try:
            self._agent.ensure(spec, replace=False, seconds=_LOWER_SECONDS)
        except DriverError as error:
            _log.warning("a limit of MPS is lowered later", set=spec, err=error)

    def _release_stray(self, mps_set: str) -> None:
        lock = self._lock(mps_set)
        try:
            if not lock.try_acquire() or self._unknown():
                return
            if not _claims(mps_set, self._holdings()):
                note = self._notes.get(mps_set)
                _log.info("an MPS set that no claim has is released", set=mps_set)
                devices = note.spec.devices if note else ()
                # First, since without the note nobody would come again for a mode that stayed.
                self._modes.let_go((each.gpu_uuid, each.uuid) for each in devices)
                self._release(mps_set)
        finally:
            lock.release()

    def _ensure(self, record: ClaimRecord, spec: MpsSpec, others: set[str]) -> pb.SetState:
        is_first = not others and record.phase is not Phase.PREPARED
        try:
            state, most = self._agent.ensure(spec, replace=is_first)
        except DeviceInUse:
            running = self._agent.sets().get(spec.id)
            if running is None or is_first:
                raise
            # What claims have now was asked for by another release of this driver: it stays.
            state, most = self._agent.ensure(from_message(running.set), replace=False)
        if len(others - {record.uid}) >= most:
            raise DeviceInUse(
                f"MPS serves {most} clients on each device, and {most} claims have {spec}; claim "
                f"{record.ref} waits until one of them ends"
            )
        return state

    def _release(self, mps_set: str) -> None:
        try:
            self._agent.release(mps_set)
        except AgentAway:
            self._withdraw(mps_set)

    def _withdraw(self, mps_set: str) -> None:
        """Without an agent: take the note away, so that the next one does not begin it anew."""
        if mps_set not in self._notes.ids():
            return
        try:
            with self._folders.lock(_END_SECONDS):
                self._notes.remove(mps_set)
        except HardwareBusy as error:
            raise HardwareBusy(f"MPS set {mps_set} is taken back later: {error}") from error
        _log.info("an MPS set is taken back without its agent", set=mps_set)

    def _held_beside(self, record: ClaimRecord) -> list[Holding]:
        """All that other claims have."""
        return [held for held in self._holdings() if held.claim.uid != record.uid]

    def _lock(self, mps_set: str) -> RangeLock:
        return RangeLock(self._locks, mps_set, _LOCK_SECONDS)


def _claims(mps_set: str, held: Iterable[Holding]) -> set[str]:
    """UIDs of the claims that have the set."""
    return {each.claim.uid for each in held if each.mps_set == mps_set}


def _places(devices: Iterable[DeviceRecord]) -> Iterator[tuple[str, str]]:
    for device in devices:
        yield device.gpu_uuid, device.uuid


def _with_folders(record: ClaimRecord, state: pb.SetState) -> ClaimRecord:
    folders = (state.pipe_folder, state.shm_folder)

    def told(device: DeviceRecord) -> DeviceRecord:
        if device.mps_set != state.set.id:
            return device
        return device.model_copy(update={"mps_folders": folders})

    return record.model_copy(update={"devices": tuple(map(told, record.devices))})
