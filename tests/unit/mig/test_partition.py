"""Partitions made and removed on a GPU that may fail at any call: nothing leaks, others stay."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.host import HostProcess
from dra_driver.mig import partition
from dra_driver.model import DriverError, Placement
from dra_driver.model.errors import Bug, HardwareBusy, HardwareFailed
from dra_driver.nvml import ComputeInstance, GpuInstance, MigGpu
from dra_driver.state import DeviceRecord

PLACES = {19: [Placement(at, 1) for at in range(7)], 9: [Placement(0, 4), Placement(4, 4)]}
CHANGES = {
    "switch_mig_mode",
    "create_instance",
    "create_spanning",
    "destroy_compute",
    "destroy_instance",
}


@dataclass
class FakeGpu:
    """A GPU in memory, some of whose calls fail: by number, `-1` counts from now on."""

    on: bool = False
    at_once: bool = True
    standing: dict[tuple[int, Placement], list[int]] = field(default_factory=dict)
    failing: dict[int, type[DriverError]] = field(default_factory=dict)
    calls: int = 0
    changes: list[str] = field(default_factory=list)
    uuid: str = "GPU-1"

    def _call(self, name: str) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise self.failing[self.calls](f"call {self.calls}, {name}, fails")
        if name in CHANGES:
            self.changes.append(name)

    def check_time(self) -> None:
        self._call("check_time")

    def mig_mode(self) -> tuple[bool, bool]:
        self._call("mig_mode")
        return self.on, self.on

    def switches_without_reset(self) -> bool:
        self._call("switches_without_reset")
        return self.at_once

    def minor(self) -> int:
        self._call("minor")
        return 5

    def switch_mig_mode(self, *, on: bool) -> None:
        self._call("switch_mig_mode")
        assert on is not self.on
        assert not self.standing, "the driver refuses that"
        self.on = on

    def instances(self) -> tuple[GpuInstance, ...]:
        self._call("instances")
        return tuple(_instance(*key) for key in self.standing)

    def instance(self, profile_id: int, place: Placement) -> GpuInstance | None:
        self._call("instance")
        return _instance(profile_id, place) if (profile_id, place) in self.standing else None

    def create_instance(self, profile_id: int, place: Placement) -> GpuInstance:
        self._call("create_instance")
        if any(place.overlaps(other) for _, other in self.standing):
            raise HardwareBusy("INSUFFICIENT_RESOURCES")
        self.standing[profile_id, place] = []
        return _instance(profile_id, place)

    def destroy_instance(self, instance: GpuInstance) -> None:
        self._call("destroy_instance")
        assert self.standing[instance.handle] == [], "the driver refuses that"
        del self.standing[instance.handle]

    def compute_instances(self, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
        self._call("compute_instances")
        return tuple(
            ComputeInstance(id_, 4, spans=True, handle=(instance.handle, id_))
            for id_ in self.standing[instance.handle]
        )

    def create_spanning(self, instance: GpuInstance) -> ComputeInstance:
        self._call("create_spanning")
        self.standing[instance.handle].append(0)
        return ComputeInstance(0, 4, spans=True, handle=(instance.handle, 0))

    def destroy_compute(self, compute: ComputeInstance) -> None:
        self._call("destroy_compute")
        key, id_ = compute.handle
        self.standing[key].remove(id_)

    def mig_uuid(self, instance: GpuInstance, _: ComputeInstance) -> str:
        self._call("mig_uuid")
        return f"MIG-{instance.id}"

    def profile_name(self, profile_id: int) -> str:
        return f"profile {profile_id}"

    def users(self, _: GpuInstance | None = None) -> tuple[HostProcess, ...]:
        return ()


def _instance(profile_id: int, place: Placement) -> GpuInstance:
    return GpuInstance(place.start + 7, profile_id, place, (profile_id, place))


def record(profile_id: int | None, place: Placement | None) -> DeviceRecord:
    return DeviceRecord(
        request="main",
        pool="node-a",
        device="gpu-0-mig",
        gpu_uuid="GPU-1",
        gpu_minor=0,
        uuid="",
        placement=(place.start, place.size) if place else None,
        gi_profile_id=profile_id,
        made=True,
    )


slots = st.sampled_from([(id_, place) for id_, places in PLACES.items() for place in places])
errors = st.dictionaries(
    st.integers(1, 14), st.sampled_from([HardwareBusy, HardwareFailed]), max_size=2
)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_PATIENCE_SECONDS", 0.0)


@given(
    wanted=slots,
    foreign=st.lists(slots, max_size=3),
    failing=st.integers(0, 16),
    kind=st.sampled_from([HardwareBusy, HardwareFailed]),
    at_once=st.booleans(),
)
def test_a_make_that_fails_once_leaves_the_gpu_as_it_was(
    wanted: tuple[int, Placement],
    foreign: list[tuple[int, Placement]],
    failing: int,
    kind: type[DriverError],
    *,
    at_once: bool,
) -> None:
    others = _apart([each for each in foreign if each != wanted])
    gpu = FakeGpu(on=bool(others), at_once=at_once, standing=others, failing={failing: kind})
    before, was_on = dict(others), gpu.on
    try:
        partition.make(cast("MigGpu", gpu), record(*wanted))
    except DriverError:
        assert gpu.standing == before
        assert gpu.on is was_on
    else:
        assert gpu.standing == before | {wanted: [0]}


@given(
    wanted=slots,
    foreign=st.lists(slots, max_size=3),
    making=errors,
    removing=errors,
    at_once=st.booleans(),
)
def test_however_often_calls_fail_undo_ends_it_and_others_stay(
    wanted: tuple[int, Placement],
    foreign: list[tuple[int, Placement]],
    making: dict[int, type[DriverError]],
    removing: dict[int, type[DriverError]],
    *,
    at_once: bool,
) -> None:
    others = _apart([each for each in foreign if each != wanted])
    gpu = FakeGpu(on=bool(others), at_once=at_once, standing=dict(others))
    device = record(*wanted)
    for failures, work in ((making, partition.make), (removing, partition.remove)):
        gpu.calls, gpu.failing = 0, failures
        try:
            work(cast("MigGpu", gpu), device)
        except DriverError:
            continue
    gpu.failing = {}
    partition.remove(cast("MigGpu", gpu), device)
    assert gpu.standing == others
    assert gpu.on is bool(others)


@given(wanted=slots, foreign=st.lists(slots, max_size=3))
def test_check_tells_what_make_would_meet(
    wanted: tuple[int, Placement], foreign: list[tuple[int, Placement]]
) -> None:
    others = _apart(foreign)
    gpu = FakeGpu(on=bool(others), standing=others)
    in_the_way = [place for _, place in others if place.overlaps(wanted[1])]
    try:
        partition.check(cast("MigGpu", gpu), record(*wanted))
    except HardwareBusy as error:
        assert in_the_way
        assert all(f"memory slices {place.start} to" in str(error) for place in in_the_way)
    else:
        assert not in_the_way
    assert gpu.changes == []


def test_where_the_mode_stays_nothing_is_switched() -> None:
    gpu = FakeGpu(on=True, at_once=False)
    device = record(19, Placement(0, 1))
    made = partition.make(cast("MigGpu", gpu), device)
    assert (made.gpu_minor, made.uuid, made.gi_id, made.ci_id, made.ci_profile_id) == (
        5, "MIG-7", 7, 0, 4,
    )  # fmt: skip
    partition.remove(cast("MigGpu", gpu), made)
    assert gpu.changes == [
        "create_instance",
        "create_spanning",
        "destroy_compute",
        "destroy_instance",
    ]


def test_where_a_reset_is_allowed_the_mode_is_switched() -> None:
    gpu = FakeGpu(at_once=False)
    device = record(19, Placement(0, 1)).model_copy(update={"may_reset": True})
    partition.remove(cast("MigGpu", gpu), partition.make(cast("MigGpu", gpu), device))
    assert [change for change in gpu.changes if "switch" in change] == ["switch_mig_mode"] * 2


def test_what_somebody_else_removes_at_the_same_time_is_gone() -> None:
    gpu = FakeGpu(on=True)
    device = record(19, Placement(0, 1))
    made = partition.make(cast("MigGpu", gpu), device)

    def destroy(_: ComputeInstance) -> None:
        gpu.standing.clear()
        raise HardwareFailed("INVALID_ARGUMENT")

    gpu.destroy_compute = destroy  # type: ignore[assignment,method-assign]
    partition.remove(cast("MigGpu", gpu), made)
    assert gpu.standing == {}


def test_what_is_there_again_whenever_it_was_removed_does_not_keep_the_gpu_busy_for_ever() -> None:
    gpu = FakeGpu(on=True, standing={(19, Placement(0, 1)): []})

    def destroy(_: GpuInstance) -> None:
        gpu._call("destroy_instance")
        assert gpu.calls < 1000, "that would go on for ever"

    gpu.destroy_instance = destroy  # type: ignore[assignment,method-assign]
    with pytest.raises(HardwareFailed, match="there again"):
        partition.remove(cast("MigGpu", gpu), record(19, Placement(0, 1)))


def test_a_record_with_half_an_identity_is_our_own_mistake() -> None:
    with pytest.raises(Bug):
        partition.remove(cast("MigGpu", FakeGpu()), record(None, Placement(0, 1)))


def _apart(wanted: list[tuple[int, Placement]]) -> dict[tuple[int, Placement], list[int]]:
    """Complete partitions for those that do not overlap an earlier one."""
    standing: dict[tuple[int, Placement], list[int]] = {}
    for id_, place in wanted:
        if not any(place.overlaps(other) for _, other in standing):
            standing[id_, place] = [0]
    return standing
