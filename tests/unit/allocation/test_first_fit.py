"""What first fit makes of the order in which partitions on request are published."""

from collections.abc import Iterable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.allocation import (
    Claim,
    DeviceClass,
    DeviceId,
    InUse,
    Refusal,
    Slice,
    allocate,
)
from dra_driver.model import Gpu, PublishedDevice, made_devices
from dra_driver.simulator.models import MODELS
from dra_driver.slices import ServerAbilities
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.mig_models import MIG_MODELS
from tests.unit.allocation.build import DRIVER, Manifest, claim, exactly
from tests.unit.allocation.test_deviceclasses import shipped
from tests.unit.slices.mig_rules import can_stand
from tests.unit.slices.published import NEW, OLD, plan_for

CLASSES = [DeviceClass.parse(manifest) for manifest in shipped()]
SMALL = exactly("mig-1g.10gb.gpu.nvidia.com")
WHOLE = exactly("gpu.nvidia.com")


class Node:
    """A node whose devices are given to one claim after the other."""

    def __init__(self, *gpus: Gpu, abilities: ServerAbilities = NEW) -> None:
        plan = plan_for(*gpus, abilities=abilities)
        self._slices = [Slice.parse(obj) for obj in plan.objects()]
        self.taken: dict[DeviceId, str] = {}

    def ask(self, *bodies: Manifest, same: str = "") -> list[str]:
        """Give a claim with these requests its devices; none when it is refused."""
        requests = {f"r{index}": body for index, body in enumerate(bodies)}
        constraints = [{"matchAttribute": f"{DRIVER}/{same}"}] if same else []
        wanted = Claim.parse(claim("c", requests, constraints=constraints))
        outcome = allocate("node-a", self._slices, CLASSES, [wanted], InUse(self.taken))
        if isinstance(outcome, Refusal):
            assert not outcome.fatal, outcome
            return []
        devices = [grant.device for grant in outcome[0].grants]
        self.taken |= dict.fromkeys(devices, "default/c")
        return [device.device for device in devices]

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            del self.taken[DeviceId(DRIVER, "node-a", name)]


def dynamic(count: int) -> list[Gpu]:
    return [dynamic_gpu(minor) for minor in range(count)]


def at_least(amount: str) -> Manifest:
    selector = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('{amount}')) >= 0"
    return exactly("mig.nvidia.com", selector)


@pytest.mark.parametrize(
    ("abilities", "gpus"), [(NEW, 8), (OLD, 2)], ids=["counters apart", "counters beside"]
)
def test_56_small_partitions_on_8_gpus_and_not_one_more(
    abilities: ServerAbilities, gpus: int
) -> None:
    """They fill one card from its high end before they break the next."""
    node = Node(*dynamic(gpus), abilities=abilities)
    got = [node.ask(SMALL) for _ in range(7 * gpus)]
    assert got == [
        [f"gpu-{minor}-mig-1g10gb-19-{start}"]
        for minor in range(gpus)
        for start in (6, 5, 4, 3, 2, 1, 0)
    ]
    assert node.ask(SMALL) == []
    assert node.ask(WHOLE) == []
    node.release([name for names in got for name in names])
    assert [node.ask(WHOLE) for _ in range(gpus)] == [
        [f"gpu-{minor}"] for minor in (reversed(range(gpus)) if abilities is NEW else range(gpus))
    ]


def test_whole_gpus_come_from_the_cards_that_nobody_has_cut() -> None:
    node = Node(*dynamic(4))
    assert node.ask(SMALL) == ["gpu-0-mig-1g10gb-19-6"]
    assert node.ask(WHOLE) == ["gpu-3"]
    assert node.ask(SMALL) == ["gpu-0-mig-1g10gb-19-5"]
    assert node.ask(WHOLE, WHOLE) == ["gpu-2", "gpu-1"]
    assert node.ask(WHOLE) == []


def test_large_ones_fit_beside_small_ones() -> None:
    """Small partitions begin at the end that large ones leave free."""
    node = Node(*dynamic(1))
    assert node.ask(SMALL) == ["gpu-0-mig-1g10gb-19-6"]
    assert node.ask(exactly("mig-4g.40gb.gpu.nvidia.com")) == ["gpu-0-mig-4g40gb-5-0"]
    assert node.ask(exactly("mig-2g.20gb.gpu.nvidia.com")) == ["gpu-0-mig-2g20gb-14-4"]
    assert node.ask(SMALL) == []


def test_who_asks_for_memory_gets_the_least_that_has_it() -> None:
    assert Node(*dynamic(2)).ask(at_least("5Gi")) == ["gpu-0-mig-1g10gb-19-6"]
    assert Node(*dynamic(2)).ask(at_least("19Gi")) == ["gpu-0-mig-1g20gb-15-6"]
    assert Node(*dynamic(2)).ask(at_least("39Gi")) == ["gpu-0-mig-3g40gb-9-4"]
    assert Node(*dynamic(2)).ask(at_least("70Gi")) == ["gpu-0-mig-7g80gb-0-0"]


def test_partitions_of_one_parent() -> None:
    node = Node(*dynamic(2))
    for _ in range(4):
        node.ask(SMALL)
    assert node.ask(*[SMALL] * 4, same="parentUUID") == [
        f"gpu-1-mig-1g10gb-19-{start}" for start in (6, 5, 4, 3)
    ]


@cache
def shapes(model: str) -> tuple[PublishedDevice, ...]:
    return tuple(made_devices(dynamic_gpu(model=model)))


def could_stand(model: str, held: Sequence[PublishedDevice], more: PublishedDevice) -> bool:
    """Whether a real GPU with these shapes can also be given one more."""
    slots = [device.slot for device in (*held, more)]
    if None in slots:
        return not held
    return can_stand(MODELS[model], [slot for slot in slots if slot is not None])


@settings(max_examples=40)
@given(st.data(), st.sampled_from(MIG_MODELS))
def test_claims_get_what_real_gpus_can_give_and_are_refused_only_when_none_can(
    data: st.DataObject, model: str
) -> None:
    """Claims for profiles and whole GPUs come and go on two GPUs."""
    gpus = [dynamic_gpu(minor, model) for minor in range(2)]
    node = Node(*gpus)
    devices = {device.name: device for gpu in gpus for device in made_devices(gpu)}
    profiles = sorted({d.slot.profile.name if d.slot else "" for d in shapes(model)})
    held: list[str] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if held and data.draw(st.integers(0, 3)) == 0:
            name = held.pop(data.draw(st.integers(0, len(held) - 1)))
            node.release([name])
            continue
        profile = data.draw(st.sampled_from(profiles))
        selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
        got = node.ask(exactly("mig.nvidia.com", selector) if profile else WHOLE)
        possible = [
            name
            for name, device in devices.items()
            if (device.slot.profile.name if device.slot else "") == profile
            and name not in held
            and could_stand(
                model, [devices[h] for h in held if devices[h].gpu == device.gpu], device
            )
        ]
        assert bool(got) == bool(possible), (held, profile, got, possible)
        assert set(got) <= set(possible)
        held += got
