"""Prepare and Unprepare, from the kubelet's call to its answer. Read this file first.

Prepare, for each claim of the call:

1. lock      one call at a time works on a claim, in any instance of this driver
2. read      the claim's allocation from the API server (the only request)
3. resolve   allocated names and configs to hardware: a plan, nothing changed yet
4. reserve   refuse what another claim holds, else write the plan as record "preparing"
5. make      each effect in turn (mig, sharing, cdi); when one fails, all are undone again
6. commit    record "prepared", and the answer

A claim whose record says "prepared" is located again by hardware identity and runs step 5:
effects leave alone what is right and restore what a reboot took. A record "preparing" was left by
a crash: it is undone first.

Unprepare needs the record alone: undo the effects backwards, forget the record.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims.effects import CdiEffect, CdiTraces, Effect, GpuEffects, as_cdi_device
from dra_driver.claims.gauges import DeviceGauges
from dra_driver.claims.hardware import Hardware
from dra_driver.claims.resolve import locate, missing_devices, plan, stands, with_pods
from dra_driver.claims.status import ClaimStatuses, StatusQueue
from dra_driver.claims.steps import Steps
from dra_driver.claims.takeover import Takeover
from dra_driver.claims.waiting_policies import is_overtaken, is_waited_for
from dra_driver.config import Settings
from dra_driver.host import HostRoot
from dra_driver.kube import ApiBusy, KubeClient
from dra_driver.model import ClaimRef, DriverError, Inventory, PreparedClaim, ResourceClaim
from dra_driver.model.errors import (
    ApiUnavailable,
    Bug,
    Cancelled,
    DeviceNotFound,
    DriverNotReady,
    HardwareBusy,
    RecordDamaged,
    TryAgain,
)
from dra_driver.state import ClaimRecord, Phase, Records
from dra_driver.telemetry import Event, EventQueue, Metrics, logger

log = logger(__name__)

T = TypeVar("T")
Cancel = Callable[[], bool]
_API_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Engine:
    """Prepares and unprepares claims; safe to call from many threads."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        hardware: Hardware,
        gpus: GpuEffects,
        specs: ClaimSpecs,
        statuses: StatusQueue,
        metrics: Metrics,
        events: EventQueue,
    ) -> None:
        """Keep the parts; nothing is read or written before `start`.

        `gpus` are the steps that change hardware; `statuses` takes what claims tell.
        """
        self._settings = settings
        self._kube = kube
        self._hardware = hardware
        self._specs = specs
        self._metrics = metrics
        self._events = events
        self.records = Records(settings.data_folder, CdiTraces(specs), self._tell_damage)
        self._takeover = Takeover(settings, self.records, specs, events)
        self._host = HostRoot(settings.host_root)
        self._step = Steps(metrics)
        self._gpus = gpus
        self._statuses = ClaimStatuses(statuses, hardware.current, self.records.holdings)
        self._effects: tuple[Effect, ...] = (gpus.mig, gpus.sharing, CdiEffect(specs))

    def start(self) -> None:
        """Read the records. Needs neither API server nor NVML. Raises StorageFailed."""
        self.records.load()
        self._takeover.start()
        gauges = DeviceGauges(
            self.records, self._hardware.current, self._metrics, self._settings.driver_name
        )
        self._metrics.before_exposition(gauges.update)

    @property
    def knows_hardware(self) -> bool:
        """Whether the hardware has been looked at once."""
        return self._hardware.current() is not None

    def take_over(self, inventory: Inventory) -> None:
        """Make the claims of the driver before ours, at the first snapshot. Never raises.

        To be called before anybody else sees the snapshot.
        """
        self._takeover.run(inventory)

    def not_taken_over(self) -> str:
        """Why claims of the driver before are not ours yet: one line; empty when all are."""
        return self._takeover.problem()

    def restore(self, ref: ClaimRef) -> None:
        """Run the steps of a prepared claim again, without the API server. Raises DriverError."""
        with self.records.claim_lock(ref.uid):
            record = self.records.get(ref.uid)
            if record is not None and record.phase is Phase.PREPARED:
                self._make(
                    self._located(record, for_new_pod=False), record, cancelled=lambda: False
                )
                log.info("claim is restored", claim=ref)

    def tell_all(self) -> None:
        """Let the statuses of all prepared claims be written: a process before may have died first.

        Where the API server has them already, nothing is written.
        """
        for uid in [record.uid for record in self.records.all()]:
            with self.records.claim_lock(uid):
                record = self.records.get(uid)
                if record is not None and record.phase is Phase.PREPARED:
                    self._statuses.tell(record)

    def follow_limits(self) -> None:
        """Tell anew how hard limits of memory hold, for claims beside which others came or went."""
        for record in self.records.all():
            if self._statuses.may_change(record):
                with self._undisturbed(record) as is_live:
                    if is_live:
                        self._statuses.tell(record, only_news=True)

    def set_again(self) -> None:
        """Set again how live claims share devices. Raises DriverError."""
        live = [record for record in self.records.all() if record.phase is Phase.PREPARED]
        self._gpus.sharing.assert_again(live, self._undisturbed)

    @contextmanager
    def _undisturbed(self, record: ClaimRecord) -> Iterator[bool]:
        """Work on a claim if nobody else does; gives whether it is prepared still as `record` says.

        What is set for a claim that is just being unprepared would never be put back; nor what is
        set on devices that it had, and has given back meanwhile for others under the same UID.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self.records.claim_lock(record.uid, timeout=0))
            except HardwareBusy:
                yield False
                return
            yield record.phase is Phase.PREPARED and self.records.get(record.uid) == record

    def without_partition(self, records: Sequence[ClaimRecord]) -> set[str]:
        """UIDs of those claims whose partitions, made for them, do not stand any more.

        Raises DriverNotReady when the hardware can't be looked at.
        """
        if all(stands(record, self._inventory()) for record in records):
            return set()
        inventory = self._hardware.look(_LOOK_SECONDS)  # made since the last look, perhaps
        return {record.uid for record in records if not stands(record, inventory)}

    def prepare(
        self, refs: Sequence[ClaimRef], cancelled: Cancel
    ) -> Mapping[str, PreparedClaim | DriverError]:
        """Prepare the claims of one Pod; the answer has exactly the UIDs asked for.

        When one claim fails, all are answered with its error, since older kubelets mix up the
        devices of the others on their retry (kubelet up to 1.36.3, pkg/kubelet/cm/dra). Claims that
        did succeed stay prepared: another Pod may share them already, and the retry finds them.
        """
        deadline = time.monotonic() + self._settings.retry_seconds  # of all together
        done: dict[str, PreparedClaim | DriverError] = {}
        for ref in refs:
            work = partial(self._prepare_patiently, ref, deadline, cancelled)
            answer = self._answer("prepare", ref, work)
            if isinstance(answer, DriverError):
                return {each.uid: answer for each in refs}
            done[ref.uid] = answer
        return done

    def unprepare(
        self, refs: Sequence[ClaimRef], cancelled: Cancel
    ) -> Mapping[str, DriverError | None]:
        """Take back all that was done for the claims; a claim never seen is a success."""
        return {
            ref.uid: self._answer("unprepare", ref, partial(self._unprepare_one, ref, cancelled))
            for ref in refs
        }

    def unprepare_if(
        self, ref: ClaimRef, is_due: Callable[[ClaimRecord], bool], cancelled: Cancel
    ) -> None:
        """Take back what was done for a claim if it is due, asked while nobody else works on it.

        A claim that was judged before may have been allocated and prepared anew since.
        """

        def work() -> None:
            with self.records.claim_lock(ref.uid):
                record = self.records.get(ref.uid)
                if record is not None and is_due(record):
                    log.info("nobody needs a claim any more", claim=ref)
                    self._unprepare_locked(ref, cancelled)

        self._answer("unprepare", ref, work)

    def _prepare_patiently(
        self, ref: ClaimRef, deadline: float, cancelled: Cancel
    ) -> PreparedClaim:
        """Try until it works or fails for good: the kubelet itself tries again after a minute."""
        pause = _FIRST_PAUSE
        while True:
            try:
                with self.records.claim_lock(ref.uid):
                    return self._prepare_one(ref, cancelled)
            except Cancelled:
                raise
            except TryAgain as error:
                asked = error.retry_after if isinstance(error, ApiBusy) else 0.0
                wait = max(pause, asked)
                if time.monotonic() + wait > deadline:
                    raise
                log.warning("prepare is tried again", claim=ref, pause=wait, err=error)
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _prepare_one(self, ref: ClaimRef, cancelled: Cancel) -> PreparedClaim:
        _stop_if(cancelled, ref)  # a call that waited for the lock may be long dead
        record = self.records.get(ref.uid)
        with self._step("prepare", "read"):
            claim = self._read_claim(ref, record)
        _stop_if(cancelled, ref)
        if record is not None and not _is_answered_by(record, claim):
            # One that was begun tells nothing of containers from before a damage.
            self._take_back(record, keep_aside=record.phase is not Phase.PREPARED)
            record = None
        if record is None and not claim.devices:
            return PreparedClaim(ref, ())  # all of its devices are other drivers'
        with self._step("prepare", "resolve"):
            found = self._located(record, for_new_pod=True) if record else self._plan(claim)
            wanted = with_pods(found, claim).named(ref)
        if record is None:
            with self._step("prepare", "reserve"):
                self._reserve(wanted)
        made = self._make(wanted, record, cancelled)
        if record is None and is_overtaken(made, self._hardware.current()):
            self._hardware.refresh()
        log.info("claim is prepared", claim=ref, devices=[d.device for d in made.devices])
        return made.answer()

    def _read_claim(self, ref: ClaimRef, record: ClaimRecord | None) -> ResourceClaim:
        """Claim as the API server has it; while it is away a finished record speaks for it."""
        try:
            return self._kube.get_claim(ref, _API_SECONDS)
        except ApiUnavailable as error:
            if record is None or record.phase is not Phase.PREPARED:
                raise
            log.warning("the record stands in for the API server", claim=ref, err=error)
            return ResourceClaim(ref, record.allocation)

    def _plan(self, claim: ResourceClaim) -> ClaimRecord:
        self._takeover.check_done()
        inventory = self._inventory()
        if missing_devices(claim, inventory):
            inventory = self._hardware.look(_LOOK_SECONDS)
        record, remarks = plan(claim, inventory, self._host.boot_id())
        for remark in remarks:
            self._events.add(Event("ConfigWithoutEffect", remark, warning=True, claim=claim.ref))
        named = (
            device.model_copy(
                update={"cdi_ids": self._specs.ids(record.uid, as_cdi_device(device))}
            )
            for device in record.devices
        )
        return record.model_copy(update={"devices": tuple(named)})

    def _located(self, record: ClaimRecord, *, for_new_pod: bool) -> ClaimRecord:
        try:
            return locate(record, self._inventory(), for_new_pod=for_new_pod)
        except DeviceNotFound:  # made again a moment ago, perhaps
            inventory = self._hardware.look(_LOOK_SECONDS)
            return locate(record, inventory, for_new_pod=for_new_pod)

    def _reserve(self, record: ClaimRecord) -> None:
        """Write the record, unless the devices are taken: by a claim, or on the hardware itself.

        The hardware is asked first: what stands at the very place of a partition once there is a
        record of it is the claim's own.
        """
        try:
            self._gpus.mig.check(record)
        except TryAgain:
            self.records.refuse_taken(record)  # who holds it is the better answer
            raise
        self.records.reserve(record)

    def _make(
        self, wanted: ClaimRecord, before: ClaimRecord | None, cancelled: Cancel
    ) -> ClaimRecord:
        """Apply all steps and commit; what was not prepared before is taken back on failure."""
        made = wanted
        try:
            for effect in self._effects:
                _stop_if(cancelled, wanted.ref)
                with self._step("prepare", effect.name):
                    made = effect.apply(made)
            made = made.in_phase(Phase.PREPARED)
            with self._step("prepare", "commit"):
                if made != before:
                    self.records.update(made)
            if made != before:
                self._statuses.tell(made)
        except Exception:
            if before is None:
                self._roll_back(wanted)
            raise
        return made

    def _roll_back(self, record: ClaimRecord) -> None:
        """Take a failed Prepare back, without hiding why it failed."""
        try:
            self._take_back(record, keep_aside=True)
        except DriverError as error:
            log.warning("what was begun is taken back later", claim=record.ref, err=error)

    def _unprepare_one(self, ref: ClaimRef, cancelled: Cancel) -> None:
        with self.records.claim_lock(ref.uid):
            self._unprepare_locked(ref, cancelled)

    def _unprepare_locked(self, ref: ClaimRef, cancelled: Cancel) -> None:
        _stop_if(cancelled, ref)
        self._takeover.check_free_of(ref.uid)
        record = self.records.get(ref.uid)
        if record is None:  # never seen, already gone, or damaged: clear what goes by the UID
            record = ClaimRecord(namespace=ref.namespace, name=ref.name, uid=ref.uid)
        self._take_back(record.named(ref), keep_aside=False)
        log.info("claim is unprepared", claim=ref, devices=[d.device for d in record.devices])

    def _take_back(self, record: ClaimRecord, *, keep_aside: bool) -> None:
        """Undo all steps, last first, and forget the record; whatever fails is left for a retry."""
        self._statuses.forget(record.uid)
        with self.records.shares_lock(record):
            for effect in reversed(self._effects):
                with self._step("unprepare", effect.name):
                    effect.undo(record)
            with self._step("unprepare", "forget"):
                self.records.forget(
                    record.uid, when_none_left=self._specs.undo_common, keep_aside=keep_aside
                )
        for left in record.left_behind:
            log.warning("something of the driver before is left", claim=record.ref, what=left)
            self._events.add(Event("LeftBehind", left, warning=False, claim=record.ref))
        if is_waited_for(record, self._hardware.current()):
            self._hardware.refresh()

    def _inventory(self) -> Inventory:
        inventory = self._hardware.current()
        if inventory is None:
            why = self._hardware.not_ready() or "the GPUs have not been looked at yet"
            raise DriverNotReady(why)
        return inventory

    def _answer(self, operation: str, ref: ClaimRef, work: Callable[[], T]) -> T | DriverError:
        """Do the work; a failure becomes the error that explains it, told everywhere."""
        try:
            return work()
        except DriverError as error:
            return self._report(operation, ref, error)
        except Exception as error:
            log.exception("unexpected failure", operation=operation, claim=ref)
            bug = Bug(f"{operation} of claim {ref} failed unexpectedly: {error!r}")
            return self._report(operation, ref, bug)

    def _report(self, operation: str, ref: ClaimRef, error: DriverError) -> DriverError:
        log.warning("call failed", operation=operation, claim=ref, reason=error.reason, err=error)
        self._metrics.count(
            f"nvidia_dra_node_{operation}_errors_total", error_type=f"{operation}_devices"
        )
        self._metrics.count(
            "gpu_dra_driver_claim_errors_total", operation=operation, reason=error.reason
        )
        if not isinstance(error, Cancelled):
            self._events.add(Event(error.reason, str(error), warning=True, claim=ref))
        return error

    def _tell_damage(self, what: str) -> None:
        self._events.add(Event(RecordDamaged.reason, what, warning=True))


def _is_answered_by(record: ClaimRecord, claim: ResourceClaim) -> bool:
    """Whether a record is complete and still for what is allocated."""
    return record.phase is Phase.PREPARED and record.allocation == tuple(
        replace(device, consumed_capacity={}) for device in claim.devices
    )


def _stop_if(cancelled: Cancel, ref: ClaimRef) -> None:
    if cancelled():
        raise Cancelled(f"the kubelet gave up its call for claim {ref}; it will call again")
