"""Claims, faults, kills and reboots in any order, against the engine in this process."""

import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dra_driver.claims import janitor
from dra_driver.model import AllocatedDevice, DriverError, HealthState, PreparedClaim
from dra_driver.model.errors import (
    ApiUnavailable,
    Cancelled,
    DeviceInUse,
    RecordDamaged,
    StorageFailed,
)
from dra_driver.slices.planner import Planner
from dra_driver.state import ClaimRecord, Phase, encode
from dra_driver.state.record import decode
from tests.faults import breakage
from tests.faults.at_once import at_once, outcome
from tests.faults.breakage import BROKEN, Killed, armed
from tests.faults.published import SERVERS, check_published
from tests.faults.rows import ROWS
from tests.faults.world import ABSENT, GPUS, LAYOUTS, Judged, World, clash
from tests.support.engine import NODE, EngineBed

CLAIMS: Final = 5
POINTS: Final = sorted({point for row in ROWS for point in (row.before, row.after)})
BUGS: Final = ("Bug", "Internal")
_DAMAGES: Final = ("cut", "zeros", "lost", "foreign", "newer")

_claims = st.integers(0, CLAIMS - 1)
_device = st.tuples(
    st.integers(0, 9),
    st.sampled_from((None, None, "share-a", "share-b")),
    st.sampled_from((False, False, False, True)),
)
_Allocation = tuple[tuple[int, str | None, bool], ...]
_allocation = st.one_of(st.tuples(_device), st.tuples(_device, _device))
_calls = st.tuples(st.sampled_from(("prepare", "prepare", "unprepare")), _claims)


class ClaimsMachine(RuleBasedStateMachine):
    """The kubelet, the scheduler, an administrator and bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dra"))
        self.world = World()
        self.bed = EngineBed(self.folder, self.world.inventory())
        for minor in range(GPUS):
            for gi in range(1, 8):
                self.bed.tree.add_partition(
                    minor, gi, (100 * minor + 2 * gi, 100 * minor + 2 * gi + 1)
                )
        self.bed.tree.settle()
        self.claims: dict[int, Judged] = {}
        self.made = 0
        self.broken: set[str] = set()
        self.tampered = False  # with records, since the engine last read them all
        self._start()

    def teardown(self) -> None:
        """Mend everything and unprepare all: nothing may be left."""
        try:
            self._mend(self.broken)
            self.bed.start()
            for claim in self.claims.values():
                self.bed.unprepare(claim.ref)
            assert self.bed.leftovers() == []
            assert self.bed.records.holdings() == []
        finally:
            shutil.rmtree(self.folder)

    # The scheduler and the API server

    @initialize(allocations=st.lists(_allocation, min_size=CLAIMS, max_size=CLAIMS))
    def begin(self, allocations: list[_Allocation]) -> None:
        """Begin with some claims."""
        for number, allocation in enumerate(allocations):
            self._allocate(number, self._named(allocation))

    @rule(number=_claims, allocation=_allocation)
    def allocate(self, number: int, allocation: _Allocation) -> None:
        """Replace a claim by another of its name, or allocate it anew if the kubelet knows it."""
        if self.claims[number].running is None:
            self._allocate(number, self._named(allocation))

    @rule(number=_claims)
    def allocate_elsewhere(self, number: int) -> None:
        """All of its devices are another driver's or another node's."""
        self.allocate(number, ())

    @rule(number=_claims)
    def delete(self, number: int) -> None:
        """Delete a claim by force."""
        claim = self.claims[number]
        self.bed.api.claims.pop(("default", claim.ref.name), None)
        claim.exists = False

    # The kubelet

    @rule(
        calls=st.lists(_calls, min_size=3, max_size=12), mended=st.sampled_from((True, True, False))
    )
    def work(self, calls: list[tuple[str, int]], mended: bool) -> None:  # noqa: FBT001
        """Pods come and go; those of a claim that is gone come with a new one."""
        if mended:
            self.mend()
        for name, number in calls:
            self.prepare(number) if name == "prepare" else self.unprepare(number)
            self.nothing_is_double_booked()

    def prepare(self, number: int) -> None:
        """Prepare, first or again."""
        claim = self.claims[number]
        if not claim.exists and not claim.asked:
            self._allocate(number, claim.devices)
            claim = self.claims[number]
        self._judge(claim, self._call(claim))

    @rule(number=_claims, pods=st.integers(2, 4))
    def prepare_at_once(self, number: int, pods: int) -> None:
        """Pods that share a claim start at once: whoever is first, all hear the same."""
        claim = self.claims[number]
        answers = at_once([partial(self._call, claim)] * pods)
        assert len({outcome(answer) for answer in answers}) == 1, answers
        self._judge(claim, answers[0])

    @precondition(lambda self: not self.broken)
    @rule(calls=st.lists(_calls, min_size=2, max_size=4))
    def rush(self, calls: list[tuple[str, int]]) -> None:
        """Pods of several claims start and end at once; all end, so it's the same who was first."""
        ending = {number for name, number in calls if name == "unprepare"}
        damaged = self._some_record_is_damaged()  # until its claim has ended
        answers = at_once([partial(self._do, name, self.claims[number]) for name, number in calls])
        for (name, number), answer in zip(calls, answers, strict=True):
            if name == "unprepare" or answer is None:
                assert answer is None, str(answer)
            elif isinstance(answer, RecordDamaged):
                assert damaged
            elif number not in ending:
                self._judge(self.claims[number], answer)
            elif isinstance(answer, DriverError):
                assert answer.reason not in BUGS, str(answer)
        for number in ending:
            self.claims[number].running = None
        self.nothing_is_double_booked()
        self.the_index_is_what_the_records_say()
        for _, number in calls:
            self.unprepare(number)

    @rule(number=_claims, looks=st.integers(0, 3))
    def prepare_and_give_up(self, number: int, looks: int) -> None:
        """The kubelet hangs up in the middle: it is all or nothing."""
        claim = self.claims[number]
        left = iter([False] * looks)
        before = self._files(claim)
        answer = self._call(claim, lambda: next(left, True))
        self._judge(claim, answer)
        if isinstance(answer, Cancelled) and not before and not self.broken:
            assert self._files(claim) == set()

    def unprepare(self, number: int) -> None:
        """Unprepare, prepared or not."""
        claim = self.claims[number]
        try:
            self.bed.unprepare(claim.ref)
        except StorageFailed:
            assert self.broken
            claim.running = None  # its containers are gone all the same
            return
        claim.running = claim.first = None
        if "CDI folder" in self.broken:
            self.tampered = True  # what is in there comes back with the folder
            return
        claim.asked, claim.may_hold = False, set()
        if not self.broken:
            assert self._files(claim) == set()

    # Bad luck

    @rule(number=_claims, point=st.sampled_from(POINTS), reboot=st.booleans())
    def die(self, number: int, point: str, reboot: bool) -> None:  # noqa: FBT001
        """The process is killed at a failpoint, or does not come by."""
        claim = self.claims[number]
        work = self.prepare if "prepare:" in point and "unprepare:" not in point else self.unprepare
        with armed(point):
            try:
                work(number)
            except Killed:
                claim.asked = True
                if work == self.unprepare:
                    claim.running = None
                    claim.first = claim.first if self._record(claim) else None
            else:
                return
        self._restart(reboot=reboot)

    @rule()
    def restart(self) -> None:
        """The process is killed between two calls."""
        self._restart(reboot=False)

    @rule(swapped=st.booleans(), layout=st.integers(0, len(LAYOUTS) - 1))
    def reboot(self, swapped: bool, layout: int) -> None:  # noqa: FBT001
        """The node reboots; GPUs may swap their minor numbers, partitions are made by hand."""
        self.world.reboot(swapped=swapped)
        self._restart(reboot=True)
        self.partition(layout)

    @rule(layout=st.integers(0, len(LAYOUTS) - 1))
    def partition(self, layout: int) -> None:
        """An administrator makes other partitions, which the idle ones do not hinder."""
        self.world.partition(layout)
        self.bed.hardware.inventory = self.world.inventory()

    @rule(
        serial=st.integers(0, GPUS - 1), state=st.sampled_from((*HealthState, HealthState.HEALTHY))
    )
    def sicken(self, serial: int, state: HealthState) -> None:
        """A GPU gets ill or well."""
        self.world.sicken(serial, state)
        self.bed.hardware.inventory = self.world.inventory()

    @precondition(lambda self: not self.broken)
    @rule(what=st.sampled_from(BROKEN))
    def break_something(self, what: str) -> None:
        """Something fails until it is mended."""
        breakage.break_it(self.bed, what)
        self.broken.add(what)

    def mend(self) -> None:
        """An administrator puts it right."""
        self._mend(self.broken)

    @precondition(lambda self: not self.broken and not self.tampered)
    @rule()
    def empty_cdi_folder(self) -> None:
        """Somebody empties the folder of CDI files under the containers."""
        shutil.rmtree(self.bed.settings.cdi_root, ignore_errors=True)

    @precondition(lambda self: not self.broken)
    @rule(number=_claims, other=_claims, how=st.sampled_from(_DAMAGES), alone=st.booleans())
    def damage(self, number: int, other: int, how: str, alone: bool) -> None:  # noqa: FBT001
        """A record is damaged, perhaps with the CDI file; one that is lost leaves that behind."""
        claim = self.claims[number]
        path = self.bed.records_folder / f"{claim.ref.uid}.json"
        if not path.exists() or (how == "newer" and self._record(claim) is None):
            return
        content = path.read_bytes()
        for cdi_file in self.bed.settings.cdi_root.glob(f"*{claim.ref.uid}.json"):
            if not alone and how != "lost":
                cdi_file.unlink()
        if how == "lost" and f"cdi {claim.ref.uid}" in self._files(claim):
            path.unlink()
        elif how == "foreign":
            record = self._record(self.claims[other])
            path.write_bytes(encode(record) if record and other != number else b"")
        elif how == "newer":
            path.write_bytes(breakage.of_a_newer_driver(content))
        else:
            path.write_bytes(content[: len(content) // 2] if how == "cut" else bytes(len(content)))
        self.tampered = True
        if f"cdi {claim.ref.uid}" not in self._files(claim):
            claim.first = None  # nobody knows it any more

    @rule()
    def sweep(self) -> None:
        """The janitor looks around; the kubelet tells of the containers that run."""
        in_use = {
            ("default", claim.ref.name): frozenset((f"claim={claim.ref.uid}-device",))
            for claim in self.claims.values()
            if claim.running is not None
        }
        with mock.patch.object(janitor, "claims_in_use", return_value=in_use):
            self.bed.janitor().sweep()
        if self.broken - {"API server"}:
            return
        self.tampered = False
        for claim in self.claims.values():
            record = self._record(claim)
            if self.broken:
                continue
            if claim.running is None and not claim.exists and claim.asked:
                assert record is None, "nobody will ever unprepare it"
            if (
                record is not None
                and record.phase is Phase.PREPARED
                and self.world.has(record.devices)
            ):
                assert f"cdi {claim.ref.uid}" in self.bed.claim_files()

    # What must always be true

    @invariant()
    def nothing_is_double_booked(self) -> None:
        """No two running claims have the same hardware, unless they may share it."""
        running = [claim for claim in self.claims.values() if claim.running]
        for position, one in enumerate(running):
            for other in running[:position]:
                assert not clash(one.running or (), other.running or ()), (one, other)

    @invariant()
    def the_index_is_what_the_records_say(self) -> None:
        """The index, records and CDI files tell the same story."""
        if self.broken or self.tampered:
            return
        records = self.bed.records.all()
        unreadable = set(self.bed.records.damaged) - {record.uid for record in records}
        held = {
            (each.claim.uid, each.gpu_uuid, each.span)
            for each in self.bed.records.holdings()
            if each.claim.uid not in unreadable
        }
        assert held == {
            (record.uid, device.gpu_uuid, device.span)
            for record in records
            for device in record.devices
        }
        by_uid = {record.uid: record for record in records}
        assert self.bed.specs.claim_uids() <= set(by_uid)
        for claim in self.claims.values():
            if claim.running and f"damaged {claim.ref.uid}" not in self._files(claim):
                assert by_uid[claim.ref.uid].phase is Phase.PREPARED
        names = {path.split()[1] for path in self.bed.claim_files()}
        assert names <= {claim.ref.uid for claim in self.claims.values() if claim.asked}

    @invariant()
    def published_is_true(self) -> None:
        """What the slices tell is what there is."""
        if self.broken or self.tampered:
            held: dict[str, str] = {}
        else:
            held = self.bed.records.partitions_held()
            assert set(held) == self._with_partitions_held()
        for server, planner in self.planners.items():
            plan = planner.plan(self.bed.hardware.look(0), server, {}, held)
            check_published(plan, self.world, set(held), server)

    # How it is done

    def _with_partitions_held(self) -> set[str]:
        """UUIDs of GPUs of which some claim on record holds a partition."""
        records = (self._record(claim) for claim in self.claims.values())
        devices = (device for record in records if record for device in record.devices)
        return {each.gpu_uuid for each in devices if each.placement and not each.admin_access}

    def _named(self, allocation: _Allocation) -> tuple[AllocatedDevice, ...]:
        """Choose mostly among the devices that there are."""
        present = [device.name for device in self.world.inventory().devices()]
        return tuple(
            AllocatedDevice(
                ("one", "two/sub")[position],
                NODE,
                ABSENT[pick % len(ABSENT)] if pick > 8 else present[pick % len(present)],
                share_id,
                admin_access,
            )
            for position, (pick, share_id, admin_access) in enumerate(allocation)
        )

    def _allocate(self, number: int, devices: tuple[AllocatedDevice, ...]) -> None:
        """Let the API server have such a claim: a new one, unless the kubelet knows the old."""
        old = self.claims.get(number)
        asked = old is not None and old.asked
        self.made += not asked
        uid = old.ref.uid if old is not None and asked else f"uid-{number}-{self.made}"
        ref = self.bed.claim(f"claim-{number}", *devices, uid=uid)
        may_hold = old.may_hold if old is not None and asked else set()
        self.claims[number] = Judged(ref, devices, may_hold, asked)

    def _call(
        self, claim: Judged, cancelled: Callable[[], bool] = lambda: False
    ) -> PreparedClaim | DriverError:
        claim.asked = True
        claim.may_hold |= set(self.world.pieces(claim.devices) or ())
        return self.bed.engine.prepare([claim.ref], cancelled)[claim.ref.uid]

    def _do(self, name: str, claim: Judged) -> PreparedClaim | DriverError | None:
        if name == "prepare":
            return self._call(claim)
        return self.bed.engine.unprepare([claim.ref], lambda: False)[claim.ref.uid]

    def _judge(self, claim: Judged, answer: PreparedClaim | DriverError) -> None:
        """An answer is right, or the reason for the refusal is true."""
        if isinstance(answer, PreparedClaim):
            self._judge_success(claim, answer)
            return
        assert answer.reason not in BUGS, str(answer)
        assert str(answer)
        assert "\n" not in str(answer)
        if isinstance(answer, DeviceInUse):
            assert self._may_clash(claim), str(answer)
        elif isinstance(answer, ApiUnavailable):
            assert "API server" in self.broken
        elif isinstance(answer, StorageFailed):
            assert self.broken
        elif isinstance(answer, RecordDamaged):
            assert self._some_record_is_damaged()
        elif not isinstance(answer, Cancelled):
            assert not self._must_work(claim), str(answer)

    def _judge_success(self, claim: Judged, answer: PreparedClaim) -> None:
        devices = claim.devices
        if "API server" in self.broken:  # the record stands in for it
            record = self._record(claim)
            devices = record.allocation if record else ()
        assert [device.device for device in answer.devices] == [d.device for d in devices]
        pieces = tuple(
            self.world.piece(prepared.uuid, allocated)
            for prepared, allocated in zip(answer.devices, devices, strict=True)
        )
        if devices != claim.devices:  # it was allocated anew: what it had goes with the next call
            claim.running = None
            return
        assert claim.first in (None, pieces), "it was prepared with other hardware before"
        claim.running = claim.first = pieces or None
        if not pieces:
            return
        text = next(self.bed.settings.cdi_root.glob(f"*{claim.ref.uid}.json")).read_text()
        minors = {gpu.uuid: gpu.minor for gpu in self.world.inventory().gpus}
        for piece in pieces:
            assert f'"/dev/nvidia{minors[piece.gpu_uuid]}"' in text

    def _must_work(self, claim: Judged) -> bool:
        """Whether nothing stands in the way of a first Prepare."""
        pieces = self.world.pieces(claim.devices)
        ready = claim.exists and not self.broken and not self.tampered and claim.first is None
        answering = all(health.state is not HealthState.UNKNOWN for health in self.world.health)
        return ready and answering and pieces is not None and not self._may_clash(claim)

    def _may_clash(self, claim: Judged) -> bool:
        """Whether hardware that the claim means now is meant twice, or another may hold it."""
        pieces = self.world.pieces(claim.devices) or []
        twice = any(clash((one,), pieces[:position]) for position, one in enumerate(pieces))
        return twice or any(
            clash(pieces, other.may_hold) for other in self.claims.values() if other is not claim
        )

    def _record(self, claim: Judged) -> ClaimRecord | None:
        """Record on disk; None also for one that is damaged."""
        path = self.bed.records_folder / f"{claim.ref.uid}.json"
        with suppress(FileNotFoundError, NotADirectoryError, RecordDamaged):
            return decode(path.read_bytes(), claim.ref.uid)
        return None

    def _some_record_is_damaged(self) -> bool:
        asides = (path.startswith("damaged") for path in self.bed.claim_files())
        return self.tampered or any(asides)

    def _files(self, claim: Judged) -> set[str]:
        return {file for file in self.bed.claim_files() if file.endswith(f" {claim.ref.uid}")}

    def _mend(self, broken: AbstractSet[str]) -> None:
        for what in sorted(broken):
            breakage.mend(self.bed, what)
            self.broken.discard(what)

    def _restart(self, *, reboot: bool) -> None:
        self._mend(self.broken - {"API server"})  # a process does not start without its folders
        if reboot:
            self.world.reboot(swapped=False)
            shutil.rmtree(self.bed.settings.cdi_root, ignore_errors=True)
            for claim in self.claims.values():
                claim.running = None  # until the kubelet has prepared it again
                if self._record(claim) is None:
                    claim.first = None  # nobody knows it any more
        self.bed.hardware.inventory = self.world.inventory()
        self._start()
        self.tampered = False

    def _start(self) -> None:
        self.bed.start()
        self.planners = {server: Planner(self.bed.settings) for server in SERVERS}
