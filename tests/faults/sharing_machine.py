"""Claims that share GPUs, with settings that agree or do not, faults, kills and reboots.

The judge is the simulator's state: a time-slice, a compute mode, a limit or a control daemon stands
if and only if a live claim wants it.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Final
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    DriverError,
    PreparedClaim,
    Quantity,
    ResourceClaim,
)
from tests.faults.at_once import at_once
from tests.faults.breakage import Killed, armed
from tests.faults.sharing_bed import (
    BY_MEMORY,
    CALLS,
    COUNT,
    DYNAMIC,
    RESERVE_GIB,
    SILENT_SMI,
    SharingBed,
    TrueState,
)
from tests.faults.wishes import (
    DEVICES,
    GIB,
    INTERVALS,
    SETTINGS,
    Wish,
    all_sums,
    configs_of,
    is_mig,
    may_stand,
    wants_slices,
)
from tests.support.engine import NODE

CLAIMS: Final = 6
PODS: Final = 3
POINTS: Final = (
    "prepare:sharing/before-time-slice",
    "prepare:sharing/after-time-slice",
    "prepare:sharing/before-compute-mode",
    "prepare:sharing/after-compute-mode",
    "prepare:sharing/before-mps",
    "prepare:sharing/after-mps",
    "before-prepare:cdi",
    "before-prepare:commit",
    "unprepare:sharing/before-release-mps",
    "unprepare:sharing/after-release-mps",
    "unprepare:sharing/after-reset-compute-mode",
    "unprepare:sharing/before-reset-time-slice",
    "unprepare:sharing/after-reset-time-slice",
    "before-unprepare:forget",
)
_BUGS: Final = ("Bug", "Internal")
_numbers = st.integers(0, CLAIMS - 1)
_pods = st.sets(st.integers(0, PODS - 1), min_size=1, max_size=2)
_calls = st.tuples(st.sampled_from(("prepare", "prepare", "unprepare")), _numbers)


class SharingMachine(RuleBasedStateMachine):
    """The scheduler, the kubelet, and bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.bed = SharingBed()
        self.claims: dict[int, Wish] = {}
        self.made = 0
        self.is_shaken = False  # what live claims want may be lost until the next sweep
        self.pods: list[str] = []
        for number in range(PODS):
            self.pods.append("")
            self._begin_pod(number)

    def teardown(self) -> None:
        """Give everything back: nothing may be left."""
        try:
            self.mend()
            for claim in self.claims.values():
                self._unprepare(claim)
            state = self.bed.state()
            assert set(state.slices.values()) == {0}
            assert set(state.modes.values()) == {"DEFAULT"}
            assert (state.partitions, state.limits, state.daemons()) == (set(), {}, set())
            assert self.bed.holdings() == []
            assert self.bed.leftovers() == []
        finally:
            self.bed.close()

    # The scheduler

    @initialize()
    def begin(self) -> None:
        """See that what is published can be had."""
        published = self.bed.published()
        assert set(DEVICES) <= set(published)
        assert all(published[name]["allowMultipleAllocations"] for name in DEVICES)

    @rule(
        number=_numbers,
        devices=st.lists(st.sampled_from(DEVICES), min_size=1, max_size=2),
        setting=st.sampled_from(SETTINGS),
        gib=st.sampled_from((1, 10, 30)),
        pods=_pods,
    )
    def prepare_new(
        self, number: int, devices: list[str], setting: str, gib: int, pods: set[int]
    ) -> None:
        """Allocate shares to a new claim, as long as there are some, and prepare it."""
        claim = self.claims.get(number)
        if claim is None or claim.state == "new":
            self.made += 1
            ref = ClaimRef("default", f"claim-{number}", f"uid-{number}-{self.made}")
            uids = {self.pods[pod] for pod in pods}
            claim = Wish(ref, tuple(sorted(devices)), setting, gib, uids)
            if not self._has_room(claim):
                return
            self.claims[number] = claim
            self._tell_api(claim)
        self._prepare(claim)

    # The kubelet

    @rule(number=_numbers)
    def prepare(self, number: int) -> None:
        """Prepare a claim again, or one that was refused."""
        if number in self.claims and self._has_room(self.claims[number]):
            self._prepare(self.claims[number])

    @rule(number=_numbers, pod=st.integers(0, PODS - 1))
    def join(self, number: int, pod: int) -> None:
        """Another Pod comes with a claim that lives."""
        claim = self.claims.get(number)
        if claim is not None and claim.state == "live":
            claim.pods.add(self.pods[pod])
            self._tell_api(claim)
            self._prepare(claim)

    @rule(pod=st.integers(0, PODS - 1))
    def end_pod(self, pod: int) -> None:
        """A Pod ends with its cgroup, before its claims are unprepared; another takes its place."""
        uid = self.pods[pod]
        self.bed.cgroup(uid).rmdir()
        for claim in self.claims.values():
            for pods in (claim.pods, claim.limited, claim.perhaps):
                pods.discard(uid)
        self._begin_pod(pod)
        for claim in self.claims.values():
            if not claim.pods:
                claim.pods.add(self.pods[pod])
            self._tell_api(claim)

    @rule(number=_numbers)
    def unprepare(self, number: int) -> None:
        """Unprepare a claim, prepared or not."""
        if number in self.claims:
            self._unprepare(self.claims[number])

    @rule(calls=st.lists(_calls, min_size=2, max_size=5, unique_by=lambda call: call[1]))
    def rush(self, calls: list[tuple[str, int]]) -> None:
        """Pods come and go at once, while the janitor looks around."""
        calls = [call for call in calls if call[1] in self.claims]
        if self._is_disturbed() or not self._has_room(*(self.claims[n] for _, n in calls)):
            return
        work: list[Callable[[], PreparedClaim | DriverError | None]]
        work = [partial(self._call, name, self.claims[number]) for name, number in calls]
        answers = at_once([*work, self._sweep])[:-1]
        asked = {number for _, number in calls}
        for (name, number), answer in zip(calls, answers, strict=True):
            claim = self.claims[number]
            if name == "unprepare":
                assert answer is None, str(answer)
                self._ended(claim)
            elif isinstance(answer, DriverError):
                rivals = [self.claims[n] for n in asked | self._live() if n != number]
                wanted = claim.impossible() or any(map(claim.clashes_with, rivals))
                assert wanted, str(answer)
                assert answer.reason not in _BUGS, str(answer)
            else:
                self._has_it(claim)

    # Bad luck

    @rule(call=st.sampled_from((*CALLS, SILENT_SMI)), times=st.integers(1, 3))
    def fail(self, call: str, times: int) -> None:
        """NVML, nvidia-smi or control daemons fail a few times."""
        self.bed.fail(call, times)

    @rule(how=st.sampled_from(("away", "silent", "another", "another")))
    def agent(self, how: str) -> None:
        """The agent ends, or hangs, or another one comes."""
        {
            "away": self.bed.end_agent,
            "silent": self.bed.silence_agent,
            "another": self.bed.begin_agent,
        }[how]()

    @rule(with_node=st.booleans())
    def restart(self, with_node: bool) -> None:  # noqa: FBT001
        """The plugin is started anew, or the whole node."""
        if with_node:
            self.bed.reboot()
        else:
            self.bed.stop()
            self.bed.start()
        self._look_after(with_node=with_node)

    @rule(number=_numbers, point=st.sampled_from(POINTS))
    def die(self, number: int, point: str) -> None:
        """The plugin is killed in the middle, if it comes by."""
        claim = self.claims.get(number)
        if claim is None or not self._has_room(claim):
            return
        with armed(point):
            try:
                if "unprepare:" in point:
                    self._unprepare(claim)
                else:
                    self._prepare(claim)
            except Killed:
                claim.state = "torn"
                claim.perhaps |= claim.pods
            else:
                return
        self.bed.stop()
        self.bed.start()
        self._look_after(with_node=False)

    @rule()
    def sweep(self) -> None:
        """The janitor looks around."""
        self._look_after(with_node=False)

    @rule()
    def mend(self) -> None:
        """All is put right, and the kubelet comes again for what it could not end."""
        self.bed.mend()
        self._look_after(with_node=False)
        for claim in self.claims.values():
            if claim.state == "torn":
                self._unprepare(claim)

    # What must always be true

    @invariant()
    def what_stands_is_what_live_claims_want(self) -> None:
        """By the simulator's own state; what was lost in a restart may be missing for a while."""
        live = [claim for claim in self.claims.values() if claim.state == "live"]
        torn = [claim for claim in self.claims.values() if claim.state == "torn"]
        assert not any(one.clashes_with(other) for one, other in combinations(live, 2))
        state = self.bed.state()
        for device, value in state.slices.items():
            must = {INTERVALS[c.setting] for c in live if wants_slices(c, device)} - {0}
            may = {INTERVALS[c.setting] for c in torn if wants_slices(c, device)}
            assert may_stand(value, must, may, 0, is_shaken=self.is_shaken), (device, value)
        for device, mode in state.modes.items():
            must_not = {"EXCLUSIVE_PROCESS"}
            exclusive = must_not if any(device in s for c in live for s in c.sets()) else set()
            perhaps = must_not if any(device in s for c in torn for s in c.sets()) else set()
            is_right = may_stand(mode, exclusive, perhaps, "DEFAULT", is_shaken=self.is_shaken)
            assert is_right, (device, mode)
        self._judge_limits(state, live, torn)
        self._judge_daemons(state, live, torn)

    def _judge_limits(self, state: TrueState, live: list[Wish], torn: list[Wish]) -> None:
        known = {f"pod{pod}": pod for pod in self.pods}
        for (gpu, cgroup), limit in state.limits.items():
            assert gpu == f"gpu-{BY_MEMORY}"
            assert cgroup in known, "its cgroup is gone"
            assert limit > 0
        for name, pod in known.items():
            must = sum(claim.amount() for claim in live if pod in claim.limited)
            may = [c.amount() for c in (*live, *torn) if pod in c.perhaps - c.limited]
            may += [c.amount() for c in torn if pod in c.limited]
            may += [c.amount() for c in live if self.is_shaken and pod in c.limited]
            found = state.limits.get((f"gpu-{BY_MEMORY}", name), 0)
            base = 0 if self.is_shaken else must
            assert found in all_sums(base, may), (name, found // GIB, must // GIB, may)

    def _judge_daemons(self, state: TrueState, live: list[Wish], torn: list[Wish]) -> None:
        wanted = {each for claim in live for each in claim.sets()}
        perhaps = {each for claim in torn for each in claim.sets()}
        if self._is_disturbed():
            assert state.daemons() - perhaps <= wanted
        else:
            self.bed.wait_for_daemons(wanted)

    # How it is done

    def _prepare(self, claim: Wish) -> None:
        others = [other for other in self.claims.values() if other is not claim]
        rivals = [c for c in others if c.state == "live" and claim.clashes_with(c)]
        doubtful = [c for c in others if c.state == "torn" and claim.clashes_with(c)]
        is_disturbed = self._is_disturbed()
        answer = self._call("prepare", claim)
        if isinstance(answer, PreparedClaim):
            assert not claim.impossible()
            assert not rivals, "settings contradict"
            self._has_it(claim)
            return
        assert isinstance(answer, DriverError)
        assert answer.reason not in _BUGS, str(answer)
        assert claim.impossible() or rivals or doubtful or is_disturbed, str(answer)
        if rivals and not claim.impossible() and not is_disturbed:
            assert any(f"claim {c.ref}" in str(answer) for c in (*rivals, *doubtful)), str(answer)
            assert "sharing." in str(answer) or "sets of devices" in str(answer), str(answer)
        claim.perhaps |= claim.pods
        if claim.state == "new" and is_disturbed:
            claim.state = "torn"

    def _unprepare(self, claim: Wish) -> None:
        is_disturbed = self._is_disturbed()
        error = self._call("unprepare", claim)
        if error is None:
            self._ended(claim)
            return
        assert is_disturbed, str(error)
        claim.state = "torn"

    def _call(self, name: str, claim: Wish) -> PreparedClaim | DriverError | None:
        if name == "prepare":
            return self.bed.engine.prepare([claim.ref], lambda: False)[claim.ref.uid]
        return self.bed.engine.unprepare([claim.ref], lambda: False)[claim.ref.uid]

    def _sweep(self) -> None:
        self.bed.janitor.sweep()

    def _has_it(self, claim: Wish) -> None:
        claim.state = "live"
        claim.limited, claim.perhaps = set(claim.pods), set()

    def _ended(self, claim: Wish) -> None:
        claim.state = "new"
        claim.limited, claim.perhaps = set(), set()

    def _look_after(self, *, with_node: bool) -> None:
        """Sweep as the plugin does by itself, and after a reboot prepare as the kubelet does."""
        self.is_shaken = True
        was_disturbed = self._is_disturbed()
        self.bed.janitor.sweep()
        for claim in self.claims.values():
            if with_node and claim.state == "live":
                self._prepare(claim)
        self.is_shaken = was_disturbed or self._is_disturbed()

    def _live(self) -> set[int]:
        return {number for number, claim in self.claims.items() if claim.state == "live"}

    def _is_disturbed(self) -> bool:
        torn = any(claim.state == "torn" for claim in self.claims.values())
        bed = self.bed
        return torn or bed.is_hasty or not bed.has_agent or bed.state().is_faulty

    def _has_room(self, *claims: Wish) -> bool:
        """Count as the scheduler does, by what is published."""
        holders = [c for c in self.claims.values() if c not in claims and c.state != "new"]
        holders += claims
        taken = [device for c in holders for device in c.devices]
        whole = f"gpu-{DYNAMIC}"
        if whole in taken and any(is_mig(device) for device in taken):
            return False
        published = self.bed.published()
        for name in set(taken):
            capacity = published[name]["capacity"]
            if "shares" in capacity:
                assert capacity["shares"]["value"] == str(COUNT)
                if taken.count(name) > COUNT:
                    return False
        memory = published[f"gpu-{BY_MEMORY}"]["capacity"]["memory"]["value"]
        most = int(Quantity.parse(memory))
        assert most <= (80 - RESERVE_GIB) * GIB
        return sum(c.amount() for c in holders) <= most

    def _begin_pod(self, number: int) -> None:
        self.made += 1
        self.pods[number] = str(UUID(int=self.made))
        self.bed.cgroup(self.pods[number]).mkdir()

    def _tell_api(self, claim: Wish) -> None:
        devices = tuple(
            AllocatedDevice(
                f"r{place}",
                NODE,
                device,
                share_id=str(UUID(int=1000 * self.made + place)),
                consumed_capacity={"memory": f"{claim.gib}Gi"},
            )
            for place, device in enumerate(claim.devices)
        )
        known = self.bed.api.claims.get((claim.ref.namespace, claim.ref.name))
        if known is not None and known.ref == claim.ref:
            devices = known.devices
        configs = tuple(configs_of(claim.setting))
        self.bed.api.claims[claim.ref.namespace, claim.ref.name] = ResourceClaim(
            claim.ref, devices, configs, tuple(sorted(claim.pods))
        )
