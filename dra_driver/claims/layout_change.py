"""One change of a GPU's layout: reserved among the claims, noted ahead, made, noted as made.

A crash at any point leaves the reservation, which the next pass takes over or drops, and a note
that says which partitions may be this driver's, whether or not they stand.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dra_driver.claims.layout_plan import Obstacles, Target, Work, users, work_for
from dra_driver.host import failpoint, failpoints_of
from dra_driver.mig import LayoutEffect, Standing
from dra_driver.model import DriverError, Gpu, gpu_device_name
from dra_driver.model.errors import Bug, DeviceInUse, HardwareBusy, RecordDamaged
from dra_driver.state import (
    DeviceRecord,
    LayoutNote,
    LayoutNotes,
    NotedSlot,
    Records,
    is_reservation,
    is_reservation_uid,
    reservation,
    reservation_uid,
)
from dra_driver.telemetry import logger

log = logger(__name__)

STEPS: Final = ("reserve", "note", "change", "finish", "release")  # places for tests to kill at


class LayoutChange:
    """Brings GPUs to their target, one at a time, when nobody uses them."""

    def __init__(
        self,
        records: Records,
        notes: LayoutNotes,
        effect: LayoutEffect,
        when_none_left: Callable[[], None],
    ) -> None:
        """`when_none_left` is called as by `Records.forget`."""
        self._records = records
        self._notes = notes
        self._effect = effect
        self._when_none_left = when_none_left

    def make(self, gpu: Gpu, target: Target | None) -> Obstacles | None:
        """Make the change, or tell for whom it waits. None: the GPU is as it should be.

        Without target only partitions come back that claims have lost. Raises DriverError; what
        was begun then is gone on with by the next call.
        """
        with self._records.claim_lock(reservation_uid(gpu.uuid), timeout=0):
            note = self._notes.get(gpu.uuid)
            _, work = self._look(gpu, target, note)
            if isinstance(work, Obstacles):
                return work
            if work.for_claims:
                self._bring_back(gpu, note, work)
                return None
            return self._reserved(gpu, target, note) if target else None

    def obstacles(self, gpu: Gpu, target: Target | None) -> Obstacles | None:
        """Tell for whom the change would have to wait now. Raises DriverError."""
        _, work = self._look(gpu, target, self._notes.get(gpu.uuid))
        return work if isinstance(work, Obstacles) else None

    def drop_stale(self) -> bool:
        """Give back GPUs that a killed process has reserved; tells whether one could not be yet.

        Raises StorageFailed.
        """
        is_left = False
        kept = {each.claim.uid for each in self._records.holdings() if is_reservation(each.claim)}
        for uid in sorted(kept | set(filter(is_reservation_uid, self._records.damaged))):
            try:
                with self._records.claim_lock(uid, timeout=0):
                    self._records.forget(uid, self._when_none_left)
            except HardwareBusy:
                is_left = True  # another instance is at work on it, or somebody looks at it
        return is_left

    def _look(
        self, gpu: Gpu, target: Target | None, note: LayoutNote | None
    ) -> tuple[Standing, Work | Obstacles]:
        standing = self._effect.look(gpu.uuid)
        held = users(self._records.holdings(), gpu.uuid)
        return standing, work_for(target, note, standing, held)

    def _reserved(self, gpu: Gpu, target: Target, note: LayoutNote | None) -> Obstacles | None:
        """Reserve the GPU, look again, since nothing can change any more, and do the work."""
        kept = reservation(gpu.uuid, gpu.minor, gpu_device_name(gpu), target.layout)
        try:
            with _step("reserve"):
                self._records.reserve(kept)
        except DeviceInUse:
            _, work = self._look(gpu, target, note)
            return work if isinstance(work, Obstacles) else Obstacles(("a claim",))
        except RecordDamaged as error:
            log.debug("a GPU can't be reserved", gpu=gpu.uuid, err=error)
            return Obstacles(("claims whose records are damaged, as they may hold it",))
        try:
            standing, work = self._look(gpu, target, note)
            if isinstance(work, Obstacles):
                return work
            self._work(gpu, target, note, standing, work)
        finally:
            with _step("release"):
                self._records.forget(kept.uid, self._when_none_left)
        return None

    def _work(
        self, gpu: Gpu, target: Target, note: LayoutNote | None, standing: Standing, work: Work
    ) -> None:
        log.info("a layout is applied", gpu=gpu.uuid, layout=target.layout or "none")
        ours = tuple(slot for slot in note.slots if slot.made) if note else ()
        slots = {slot.key: slot for slot in (*ours, *target.slots)}
        with _step("note"):
            self._write_ahead(gpu, target.layout, tuple(slots.values()), finished=False)
        try:
            with _step("change"):
                self._carry_out(gpu, target, work)
        except DriverError:
            self._forgive(gpu, note, standing)
            raise
        with _step("finish"):
            self._notes.keep(gpu.uuid, target.layout, target.slots)

    def _carry_out(self, gpu: Gpu, target: Target, work: Work) -> None:
        for slot in work.remove:
            self._effect.remove(_device(gpu, slot))
        if work.mig_enabled is not None:
            self._effect.switch(_device(gpu, None), on=work.mig_enabled)
        for slot in work.make:
            self._effect.make(_device(gpu, slot))
        if target.mig_enabled is None:
            try:
                self._effect.leave_mig_mode(_device(gpu, None))
            except DriverError as error:
                log.warning("MIG mode is left on", gpu=gpu.uuid, err=error)

    def _bring_back(self, gpu: Gpu, note: LayoutNote | None, work: Work) -> None:
        """Make partitions again which claims hold; those of the note that come back are ours."""
        if note is None:
            return
        log.info("partitions of claims come back", gpu=gpu.uuid, layout=note.layout)
        ours = {slot.key: slot for slot in work.make}
        slots = tuple(ours.get(slot.key, slot) for slot in note.slots)
        with _step("note"):
            self._write_ahead(gpu, note.layout, slots, finished=note.finished)
        with _step("change"):
            for slot in work.make:
                self._effect.make(_device(gpu, slot))

    def _forgive(self, gpu: Gpu, note: LayoutNote | None, before: Standing) -> None:
        """Put the former note back if the failed change has changed nothing."""
        try:
            now = self._effect.look(gpu.uuid)
            if (now.mig_enabled, now.partitions) == (before.mig_enabled, before.partitions):
                if note is None:
                    self._notes.remove(gpu.uuid)
                else:
                    self._notes.write(note)
        except DriverError as error:
            log.warning("what a failed change has left is not known", gpu=gpu.uuid, err=error)

    def _write_ahead(
        self, gpu: Gpu, layout: str, slots: tuple[NotedSlot, ...], *, finished: bool
    ) -> None:
        note = LayoutNote(gpu_uuid=gpu.uuid, layout=layout, finished=finished, slots=slots)
        self._notes.write(note)


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Let tests kill the process before, inside and after a step: `before-layout:<step>` …."""
    if name not in STEPS:
        raise Bug(f"layouts have no step {name!r}")
    failpoint(f"before-layout:{name}")
    with failpoints_of(f"layout:{name}"):
        yield
    failpoint(f"after-layout:{name}")


def _device(gpu: Gpu, slot: NotedSlot | None) -> DeviceRecord:
    """Tell a slot, or the whole GPU, in the words of `mig`."""
    name = gpu_device_name(gpu)
    return DeviceRecord(
        request="",
        pool="",
        device=name if slot is None else f"partition {slot.profile} of {name}",
        gpu_uuid=gpu.uuid,
        gpu_minor=gpu.minor,
        uuid=gpu.uuid if slot is None else "",
        placement=None if slot is None else slot.placement,
        gi_profile_id=None if slot is None else slot.gi_profile_id,
        made=True,
        may_reset=gpu.policy.allow_reset,
    )
