"""Makes the claims that NVIDIA's driver in Go has prepared on this node ours, once.

Both drivers have the same name, so its checkpoint lies in our folder. At the first snapshot of the
hardware each claim in it becomes a record, and the checkpoint gets another name; after that nothing
knows any more who has prepared a claim. Until then no claim gets a device, and none that the
checkpoint names is unprepared. A crash in between is gone on from at the next start: claims that
have a record are left alone. What fails is tried again at each snapshot.

A claim on which this driver itself fails may have anything; it keeps no other from being taken
over. If all of it fails, no claim gets a device, but those that end do: what would have been put
back for them is left.

A checkpoint that can't be read is set aside. Which claims run is then known by their CDI files,
not what they have: nothing is given out until each has been unprepared or prepared again, or a
person has removed its note.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims.effects import as_cdi_device, as_prior_device
from dra_driver.claims.prior_records import PriorRecords
from dra_driver.config import Settings
from dra_driver.host import (
    FileLock,
    HostRoot,
    failpoint,
    failpoints_of,
    read_file,
    remove_durably,
    write_durably,
)
from dra_driver.kube.pod_resources import claims_in_use
from dra_driver.model import DriverError, Inventory
from dra_driver.model.errors import Bug, DriverNotReady, RecordDamaged, StorageFailed, TryAgain
from dra_driver.serving import is_served
from dra_driver.state import ClaimRecord, EndedClaims, PriorClaim, Records, read_checkpoint
from dra_driver.telemetry import Event, EventQueue, logger

log = logger(__name__)

_CHECKPOINT: Final = "checkpoint.json"
_SOCKET: Final = "dra.sock"
_LOCK_SECONDS: Final = 20.0
TAKEN_OVER: Final = f"{_CHECKPOINT}.taken-over"
UNREADABLE: Final = f"{_CHECKPOINT}.damaged"


class Takeover:
    """Runs at most once in a process; safe to call from many threads."""

    def __init__(
        self, settings: Settings, records: Records, specs: ClaimSpecs, events: EventQueue
    ) -> None:
        """Read nothing before `start`."""
        self._settings = settings
        self._records = records
        self._specs = specs
        self._events = events
        self._host = HostRoot(settings.host_root)
        self._file = settings.data_folder / _CHECKPOINT
        self._ended = EndedClaims(settings.data_folder)
        self._lock = threading.Lock()  # guards what follows
        # Of the checkpoint. Empty: it is not known; None: there is nothing to be done.
        self._content: bytes | None = None
        self._trouble: DriverError | None = None

    def start(self) -> None:
        """See whether there is a checkpoint. One that can't be read is asked for again."""
        try:
            self._content = read_file(self._file)
        except StorageFailed as error:
            self._content = b""
            self._failed(error)
        if self._content is not None:
            log.info("another driver has had this node", checkpoint=self._file)

    def run(self, inventory: Inventory) -> None:
        """Take all claims over; what fails is tried again at the next snapshot. Never raises."""
        with self._lock:
            if self._content is None:
                return
            try:
                failpoint("before-take-over")
                with self._alone(), failpoints_of("take-over"):
                    self._content = read_file(self._file)  # None: another instance was faster
                    if self._content is not None:
                        self._take(self._content, inventory)
                    self._ended.forget()  # here too when a person has moved the checkpoint away
                failpoint("after-take-over")
            except DriverError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - tried again at the next snapshot
                self._failed(
                    Bug(
                        f"{error!r}; please report it; Pods of these claims can end, but what was "
                        f"set for them stays; when none is left you may move {self._file} away"
                    )
                )
            else:
                self._content = None

    def problem(self) -> str:
        """Why claims are not taken over yet, in one line; empty when all are."""
        if self._content is None:
            return ""
        return (
            f"the claims of the driver before, in {self._file}, are not taken over yet: "
            f"{self._trouble or 'the GPUs have not been looked at'}"
        )

    def check_done(self) -> None:
        """Raise DriverNotReady while a device may be that of a claim that was not taken over.

        Bug if that is because this driver fails on the checkpoint.
        """
        if problem := self.problem():
            raise Bug(problem) if isinstance(self._trouble, Bug) else DriverNotReady(problem)

    def check_free_of(self, uid: str) -> None:
        """Raise DriverNotReady while the checkpoint has the claim, or let it be noted as ended.

        Without a GPU driver nothing can be taken over, and there is nothing to be put back. A fault
        of this driver may last, and must not keep Pods from ending.
        """
        with self._lock:
            if self._content is None or (self._content and uid.encode() not in self._content):
                return
            if self._host.has_gpu_driver() and not isinstance(self._trouble, Bug):
                self.check_done()
            with self._alone():
                self._content = read_file(self._file)  # None: another instance was faster
                if self._content is not None:
                    self._ended.add(self._content, uid)

    def _alone(self) -> FileLock:
        return FileLock(self._settings.data_folder / "take-over.lock", _LOCK_SECONDS)

    def _failed(self, error: DriverError) -> None:
        """Keep in mind why nothing is taken over; tell it if it is news."""
        if str(error) != str(self._trouble):
            say = log.exception if isinstance(error, Bug) else log.warning
            say("no claim of the driver before is taken over yet", err=error)
            if isinstance(error, Bug):
                told = f"the claims in {self._file} are not taken over: {error}"
                self._events.add(Event(error.reason, told, warning=True))
        self._trouble = error

    def _take(self, content: bytes, inventory: Inventory) -> None:
        served = self._settings.data_folder / _SOCKET
        if served != self._settings.service_socket and is_served(served):
            raise DriverNotReady(f"NVIDIA's driver still serves {served}: end its Pod on this node")
        try:
            state = read_checkpoint(content)
        except RecordDamaged as error:
            self._set_aside(content, str(error))
            return
        state = replace(state, claims=self._named(state.claims))
        settings = self._settings
        # The driver before has one pool for a node, whatever ours is called.
        make = PriorRecords(
            state, inventory, settings.driver_name, settings.node_name, self._mps_folders
        )
        ended = self._ended.of(content)
        claims = [each for each in state.claims if each.uid not in ended]
        # What was only begun comes last: it has nothing where another claim has the device.
        claims.sort(key=lambda each: not each.is_complete)
        taken = [each.uid for each in claims if self._take_one(make, each)]
        self._move(content, TAKEN_OVER)
        log.info("another driver's claims are taken over", claims=taken)
        told = (
            f"claims that NVIDIA's driver has prepared on this node are taken over: {len(taken)}; "
            f"its checkpoint is {settings.data_folder / TAKEN_OVER} now"
        )
        self._events.add(Event("TakenOver", told, warning=False))

    def _take_one(self, make: PriorRecords, claim: PriorClaim) -> bool:
        """Keep the record of a claim; one that can't be made may have anything from now on.

        But for one whose Prepare was cut off: no container has it.
        """
        why = claim.damage
        if not why:
            try:
                record = make.completed(claim) if claim.is_complete else make.begun(claim)
                return record is not None and self._adopt(record)
            except RecordDamaged as error:
                why = str(error)
            except DriverError:
                raise
            except Exception as error:  # one claim must not keep all others
                log.exception("a claim of the driver before can't be read", claimUID=claim.uid)
                why = f"this driver fails on it ({type(error).__name__}); please report it"
        told = f"claim {claim.uid} in {self._file}: {why}"
        if claim.is_complete:
            self._records.doubt(claim.uid, told)
        else:
            told = f"{told}; a partition that was made for it may be left: nvidia-smi mig -lgi"
            self._events.add(Event("LeftBehind", told, warning=True))
        return False

    def _adopt(self, record: ClaimRecord) -> bool:
        """Keep a record, with the CDI ids that the kubelet was told; False: it is known."""
        devices = []
        for device in record.devices:
            known = as_prior_device(as_cdi_device(device))
            ids = self._specs.ids(record.uid, known)[:1]  # not that of what all GPUs share
            devices.append(device.model_copy(update={"cdi_ids": ids}))
        record = record.model_copy(update={"devices": tuple(devices)})
        return bool(devices) and self._records.adopt(record)

    def _named(self, claims: tuple[PriorClaim, ...]) -> tuple[PriorClaim, ...]:
        """Give claims that lack a name the one by which the kubelet knows their CDI ids."""
        if all(claim.name for claim in claims):
            return claims
        names: dict[str, tuple[str, str]] = {}
        with suppress(TryAgain):
            for name, ids in claims_in_use(self._settings.pod_resources_socket).items():
                for claim in claims:
                    if any(f"={claim.uid}-" in cdi_id for cdi_id in ids):
                        names[claim.uid] = name
        return tuple(_with_name(claim, names.get(claim.uid)) for claim in claims)

    def _set_aside(self, content: bytes, why: str) -> None:
        path = self._settings.data_folder / UNREADABLE
        uids = sorted(self._specs.prior_uids())
        known = {record.uid for record in self._records.all()}
        self._doubt_all((uid for uid in uids if uid not in known), why)
        self._move(content, UNREADABLE)
        told = f"{why}; it is {path} now; {len(uids)} claims have CDI files of NVIDIA's driver"
        log.warning("a checkpoint can't be read", err=told)
        self._events.add(Event(RecordDamaged.reason, told, warning=True))

    def _doubt_all(self, uids: Iterable[str], why: str) -> None:
        for uid in uids:
            self._records.doubt(uid, f"claim {uid} of NVIDIA's driver: {why}")

    def _move(self, content: bytes, name: str) -> None:
        write_durably(self._settings.data_folder / name, content)
        remove_durably(self._file)

    def _mps_folders(self, daemon: str) -> tuple[str, str]:
        folder: Path = self._settings.data_folder / "mps" / daemon
        return str(folder / "pipe"), str(folder / "shm")


def _with_name(claim: PriorClaim, name: tuple[str, str] | None) -> PriorClaim:
    if claim.name or name is None:
        return claim
    return replace(claim, namespace=name[0], name=name[1])
