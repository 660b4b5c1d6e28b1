"""Claims on partitions, partitions of others, layouts, reboots: the engine on simulated hardware.

Everything below the engine is real: NVML calls reach the simulator's own library, whose state says
what is true. The judge is that state, never what the driver believes.
"""

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims import Engine, GpuEffects, LayoutLabel, LayoutReports, Layouts
from dra_driver.config import NodeConfig, load
from dra_driver.health import Hardware
from dra_driver.mig import MigEffect
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    DriverError,
    Inventory,
    PreparedClaim,
    Quantity,
    ResourceClaim,
)
from dra_driver.model.errors import DeviceNotFound, HardwareBusy
from dra_driver.sharing import SharingEffect
from dra_driver.simulator.native_library import SimulatorError, error_number
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.slices import ServerAbilities, build_slices
from dra_driver.state import Holding
from dra_driver.telemetry import EventQueue, Metrics
from tests.faults.machine_node import node_below
from tests.support.engine import NODE, FakeApi, FakeStatuses
from tests.support.mig_models import MIG_MODELS

CLAIMS: Final = 8
_PATIENCE: Final = 30.0
_ABILITIES: Final = ServerAbilities(
    version=(1, 37, 2), taints=True, counters=True, multiple_allocations=True
)
_CALLS: Final = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceSetMigMode",
)
_MODES: Final = ("mode: Dynamic", "mode: Dynamic", "mode: Existing", "mode: Static, layout: {}")
_LAYOUTS: Final = ("all-balanced", "all-enabled", "all-disabled")
_Place = tuple[int, str, int]  # GPU by minor, profile, start

_claims = st.integers(0, CLAIMS - 1)


class PartitionMachine(RuleBasedStateMachine):
    """The scheduler, the kubelet, an administrator at nvidia-smi, and bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dra"))
        self.api = FakeApi()
        self.config: NodeConfig = load(_yaml("mode: Dynamic"))
        self.held: dict[int, tuple[ClaimRef, _Place | None]] = {}  # by claim: None: not a partition
        self.limbo: set[int] = set()  # claims whose Unprepare has failed half-way
        self.stray: list[ClaimRef] = []  # claims whose Prepare and Unprepare have failed
        self.theirs: set[_Place] = set()
        self.made = 0

    @initialize(models=st.lists(st.sampled_from(MIG_MODELS), min_size=1, max_size=2))
    def begin(self, models: list[str]) -> None:
        """Begin with some GPUs; Ampere is in MIG mode."""
        gpus = [{"model": model, "migMode": model.startswith("a100")} for model in models]
        spec = NodeSpec.model_validate({"gpus": gpus})
        self.node, self.settings = node_below(self.folder, spec)
        self._start()

    def teardown(self) -> None:
        """Give everything back: only what others made stands then."""
        try:
            if not hasattr(self, "hardware"):
                return
            self.mend()
            for number in list(self.held):
                self.unprepare(number)
            assert self.engine.records.holdings() == []
            left = self._standing() - self.theirs - self._by_layouts()
            assert left == set(), left
        finally:
            if hasattr(self, "hardware"):
                self._stop()
                self.node.close()
            shutil.rmtree(self.folder)

    # The kubelet and the scheduler

    @rule(number=_claims, pick=st.integers(0, 1 << 16))
    def prepare(self, number: int, pick: int) -> None:
        """Allocate a free device to a claim and prepare it; or prepare a claim again."""
        name = ""
        if number in self.held:
            ref, place = self.held[number]
        else:
            names = self._allocatable()
            if not names:
                return
            name = names[pick % len(names)]
            ref, place = self._allocate(number, name), self._place_of(name)
        faulty = self._is_faulty()
        is_counted = number not in self.held and self._is_counted(name)
        answer = self.engine.prepare([ref], lambda: False)[ref.uid]
        if isinstance(answer, PreparedClaim):
            self.held[number] = ref, place
            self.limbo.discard(number)
            return
        # Only a fault is a reason not to have what the scheduler may allocate.
        assert answer.reason not in ("Bug", "Internal"), str(answer)
        assert faulty or not is_counted, str(answer)
        if number not in self.held:
            self._give_up(ref, faulty=faulty)

    @rule(number=_claims, pick=st.integers(0, 1 << 16))
    def prepare_what_is_taken(self, number: int, pick: int) -> None:
        """The scheduler errs: what overlaps a claim's device is refused."""
        taken = [place for _, place in self.held.values() if place is not None]
        if number in self.held or not taken:
            return
        gpu, profile, start = taken[pick % len(taken)]
        name = self._name_of(gpu, profile, start)
        if name is None:
            return
        ref = self._allocate(number, name)
        faulty = self._is_faulty()
        answer = self.engine.prepare([ref], lambda: False)[ref.uid]
        assert isinstance(answer, DriverError), "it is somebody's"
        assert answer.reason not in ("Bug", "Internal"), str(answer)
        self._give_up(ref, faulty=faulty)

    @rule(number=_claims)
    def unprepare(self, number: int) -> None:
        """Unprepare a claim; without faults that works whatever has happened to the hardware."""
        if number not in self.held:
            return
        ref, place = self.held[number]
        faulty = self._is_faulty()
        error = self.engine.unprepare([ref], lambda: False)[ref.uid]
        if error is not None:
            assert faulty, str(error)
            self.limbo.add(number)
            return
        del self.held[number]
        self.limbo.discard(number)
        assert place is None or place not in self._standing() - self._by_layouts() - self.theirs

    # An administrator

    @rule(gpu=st.integers(0, 1), pick=st.integers(0, 1 << 16))
    def cut_by_hand(self, gpu: int, pick: int) -> None:
        """Somebody makes a partition with nvidia-smi, where there is room."""
        found = self._gpus()[gpu % len(self._gpus())]
        slots = found.slots
        is_idle = not any(each.gpu_uuid == found.uuid for each in self.engine.records.holdings())
        if not slots or not (found.mig_enabled or is_idle):
            return
        self.node.state.set_mig_mode(found.minor, on=True)
        slot = slots[pick % len(slots)]
        place = (found.minor, slot.profile.name, slot.placement.start)
        try:
            self.node.state.partition(found.minor, slot.profile.name, slot.placement.start)
        except SimulatorError:
            return  # no room
        self.theirs.add(place)
        self._look()

    @rule(pick=st.integers(0, 1 << 16))
    def remove_by_hand(self, pick: int) -> None:
        """They remove one of theirs again."""
        used = {place for _, place in self.held.values()}
        idle = sorted(self.theirs - used)
        if not idle:
            return
        place = idle[pick % len(idle)]
        for each in self.node.gpu(place[0])["instances"]:
            if (each["profile"], each["start"]) == place[1:]:
                self.node.state.unpartition(place[0], each["id"])
        self.theirs.discard(place)
        self._look()

    @rule(mode=st.sampled_from(_MODES), layout=st.sampled_from(_LAYOUTS))
    def configure(self, mode: str, layout: str) -> None:
        """Another configuration, which layouts follow where nobody uses a GPU."""
        self.config = load(_yaml(mode.format(layout)))
        self._look()
        self._follow_layouts()

    # Bad luck

    @rule()
    def restart(self) -> None:
        """The plugin is started anew."""
        self._stop()
        self._start()

    @rule(with_node=st.booleans())
    def reboot(self, with_node: bool) -> None:  # noqa: FBT001
        """The node reboots, or only the GPU driver is loaded anew: instances are gone."""
        self._stop()
        self.node.state.clear()
        if with_node:
            self.node.reboot()
            shutil.rmtree(self.settings.cdi_root, ignore_errors=True)
        else:
            self.node.state.driver_reload()
        self.theirs.clear()
        self._start()
        self._follow_layouts()
        for number, (ref, _) in list(self.held.items()):
            answer = self.engine.prepare([ref], lambda: False)[ref.uid]
            if not isinstance(answer, PreparedClaim):
                # It stood by hand or by a layout that is no more.
                assert isinstance(answer, DeviceNotFound | HardwareBusy), answer
                self.engine.unprepare([ref], lambda: False)
                del self.held[number]
            self.limbo.discard(number)
        self._follow_layouts()

    @rule(call=st.sampled_from(_CALLS), times=st.integers(1, 3))
    def fail(self, call: str, times: int) -> None:
        """NVML fails a few times."""
        self.node.state.fault(-1, call, error_number("UNKNOWN"), times=times)

    @rule()
    def mend(self) -> None:
        """It does so no more, and the kubelet comes again for what it could not end."""
        if not hasattr(self, "hardware"):
            return
        self.node.state.clear()
        while self.stray:
            assert (
                self.engine.unprepare([self.stray[-1]], lambda: False)[self.stray[-1].uid] is None
            )
            self.stray.pop()
        for number in sorted(self.limbo):
            self.unprepare(number)

    # What must always be true

    @invariant()
    def every_claim_has_its_partition_and_no_other(self) -> None:
        """By the simulator's own state."""
        if not hasattr(self, "hardware"):
            return
        standing = self._standing()
        places = [
            place
            for number, (_, place) in self.held.items()
            if place is not None and number not in self.limbo
        ]
        assert len(set(places)) == len(places)
        assert set(places) <= standing, (places, standing)
        for place in self.theirs:
            assert place in standing, "what others made is theirs"

    @invariant()
    def what_is_published_can_be_had(self) -> None:
        """A device that no claim's or other's partition overlaps is published, and no other."""
        if not hasattr(self, "hardware"):
            return
        inventory = self._look()
        plan = build_slices(inventory, self.settings, _ABILITIES)
        published = {device["name"] for part in plan.slices for device in part.devices}
        left_out = {entry.device for entry in plan.left_out}
        names = {device.name for device in inventory.devices()}
        assert published <= names
        # A claim may have been given one that was made by hand, before the configuration changed.
        used = {(each.gpu_uuid, each.span) for each in self.engine.records.holdings()}
        for gpu in inventory.gpus:
            foreign = {(gpu.minor, part.profile.name, part.placement.start) for part in gpu.foreign}
            if gpu.is_dynamic:
                theirs = {
                    (gpu.minor, part.profile.name, part.placement.start)
                    for part in gpu.partitions
                    if (gpu.uuid, part.placement) not in used
                }
                assert foreign == theirs & self.theirs
        missing = {name for name in names - published if name not in left_out}
        assert all(any(n.startswith(left.rstrip("*")) for left in left_out) for n in missing)

    # How it is done

    def _start(self) -> None:
        metrics, events = Metrics(), EventQueue()
        labels = cast("Any", SimpleNamespace(current=dict, are_known=True))
        specs = ClaimSpecs(self.settings)
        self.hardware = Hardware(
            self.settings,
            metrics,
            events,
            lambda _: None,
            self._configured,
            self._holdings,
        )
        effects = GpuEffects(
            MigEffect(self.hardware, self.settings, self._holdings),
            SharingEffect(self.hardware, self.settings, self._holdings, frozenset),
        )
        api, statuses = cast("Any", self.api), FakeStatuses()
        self.engine = Engine(
            self.settings, api, self.hardware, effects, specs, statuses, metrics, events
        )
        self.layouts = Layouts(
            self.settings,
            lambda: self.config,
            LayoutLabel(labels, events, enabled=False),
            self.hardware,
            self.engine.records,
            specs.undo_common,
            LayoutReports(metrics, events),
        )
        self.engine.start()
        self.layouts._notes.load()
        specs.install_hook()
        self.hardware.start()
        self._look()

    def _configured(self, inventory: Inventory) -> Inventory:
        return self.layouts.configured(inventory)

    def _holdings(self) -> list[Holding]:
        return self.engine.records.holdings()

    def _stop(self) -> None:
        self.layouts.stop()
        self.hardware.stop()

    def _look(self) -> Inventory:
        """Look until it is sure which partitions are somebody else's."""
        for _ in range(2):
            self.hardware.look(_PATIENCE)
        return self.hardware.look(_PATIENCE)

    def _follow_layouts(self) -> None:
        for _ in range(2):
            faulty = self._is_faulty()
            try:
                self.layouts._look_after(is_poked=True)
            except DriverError as error:
                assert faulty, str(error)
        self._look()

    def _gpus(self) -> tuple[Any, ...]:
        inventory = self.hardware.current()
        assert inventory is not None
        return inventory.gpus

    def _allocatable(self) -> list[str]:
        """Published devices that no claim has or overlaps, as the scheduler would count."""
        inventory = self.hardware.current()
        assert inventory is not None
        held = self.engine.records.holdings()
        names = []
        for device in inventory.devices():
            span = device.slot.placement if device.slot else None
            others = [each for each in held if each.gpu_uuid == device.gpu.uuid]
            if device.gpu.held_back or (others and span is None):
                continue
            if not any(
                each.span is None or (span is not None and each.span.overlaps(span))
                for each in others
            ):
                names.append(device.name)
        return names

    def _allocate(self, number: int, name: str) -> ClaimRef:
        self.made += 1
        ref = ClaimRef("default", f"claim-{number}", f"uid-{number}-{self.made}")
        device = AllocatedDevice("main", NODE, name)
        self.api.claims[ref.namespace, ref.name] = ResourceClaim(ref, (device,))
        return ref

    def _give_up(self, ref: ClaimRef, *, faulty: bool) -> None:
        error = self.engine.unprepare([ref], lambda: False)[ref.uid]
        if error is not None:
            assert faulty, str(error)
            self.stray.append(ref)

    def _is_faulty(self) -> bool:
        return bool(self.node.show()["faults"])

    def _is_counted(self, name: str) -> bool:
        """Whether the counters that are published have room for the device beside all claims."""
        inventory = self.hardware.current()
        assert inventory is not None
        plan = build_slices(inventory, self.settings, _ABILITIES)
        spent: dict[tuple[str, str], int] = defaultdict(int)
        there = {
            (counters["name"], counter): int(Quantity.parse(value["value"]))
            for part in plan.slices
            for counters in part.spec.get("sharedCounters", ())
            for counter, value in counters["counters"].items()
        }
        named = {device["name"]: device for part in plan.slices for device in part.devices}
        held = [each.device for each in self.engine.records.holdings()]
        if not {name, *held} <= set(named) or "consumesCounters" not in named[name]:
            return False
        for each in (name, *held):
            for use in named[each].get("consumesCounters", ()):
                for counter, value in use["counters"].items():
                    spent[use["counterSet"], counter] += int(Quantity.parse(value["value"]))
        return all(amount <= there[key] for key, amount in spent.items())

    def _place_of(self, name: str) -> _Place | None:
        inventory = self.hardware.current()
        assert inventory is not None
        device = inventory.device(name)
        if device is None or device.slot is None:
            return None
        return device.gpu.minor, device.slot.profile.name, device.slot.placement.start

    def _name_of(self, minor: int, profile: str, start: int) -> str | None:
        inventory = self.hardware.current()
        assert inventory is not None
        for device in inventory.devices():
            slot = device.slot
            if slot and (device.gpu.minor, slot.profile.name, slot.placement.start) == (
                minor,
                profile,
                start,
            ):
                return device.name
        return None

    def _standing(self) -> set[_Place]:
        return {
            (gpu["minor"], each["profile"], each["start"])
            for gpu in self.node.show()["gpus"]
            for each in gpu["instances"]
        }

    def _by_layouts(self) -> set[_Place]:
        """What layouts have made, by their notes."""
        found = set()
        for gpu in self._gpus():
            note = self.layouts._notes.get(gpu.uuid)
            for slot in gpu.slots:
                if note and (slot.profile.gi_profile_id, slot.placement) in note.made:
                    found.add((gpu.minor, slot.profile.name, slot.placement.start))
        return found


def _yaml(partitioning: str) -> str:
    return (
        "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"
        f"rules: [{{partitioning: {{{partitioning}}}}}]\n"
    )
