"""Published = true state: what the slices have to tell of the world, and whether they do."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model import HealthState, MigProfile
from dra_driver.slices import PoolPlan, ServerAbilities, check_spec
from tests.faults.world import GPUS, World
from tests.support.inventories import H100, gpu
from tests.support.kubelet import DRIVER

SERVERS: Final = (
    ServerAbilities((1, 37, 2), taints=True, counters=True, multiple_allocations=True),
    ServerAbilities((1, 34, 4)),  # keeps no taints: what is sick is withdrawn
)


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one device."""

    uuid: str
    parent_uuid: str | None
    memory_mib: int
    taints: tuple[tuple[str, str], ...]  # key and effect


def check_published(
    plan: PoolPlan, world: World, held: AbstractSet[str], server: ServerAbilities
) -> None:
    """Every device that exists is told once and as it is, or left out for a reason; no other is.

    `held` has the UUIDs of GPUs of which claims hold partitions.
    """
    told, left_out = _truth(world, held, server)
    found = [device for each in plan.slices for device in each.devices]
    assert sorted(device["name"] for device in found) == sorted(told)
    assert {device["name"]: _read(device) for device in found} == told
    assert {each.device for each in plan.left_out} == left_out
    for each in plan.objects():
        assert list(check_spec(each["spec"])) == []


def _truth(
    world: World, held: AbstractSet[str], server: ServerAbilities
) -> tuple[dict[str, Told], set[str]]:
    """What is to be told, by name, and names of the devices that are to be left out."""
    told: dict[str, Told] = {}
    left_out: set[str] = set()
    for serial in range(GPUS):
        board, state = gpu(serial), world.health[serial].state
        devices = _devices(world, serial, _taints(state, server))
        sick = state is HealthState.UNHEALTHY and not server.taints
        if sick or (board.uuid in held and not world.is_cut(serial)):
            left_out |= set(devices)
        else:
            told |= devices
    return told, left_out


def _devices(world: World, serial: int, taints: tuple[tuple[str, str], ...]) -> dict[str, Told]:
    whole, uuid = f"gpu-{world.minors[serial]}", gpu(serial).uuid
    if not world.is_cut(serial):
        return {whole: Told(uuid, None, _mib(H100.memory_bytes or 0), taints)}
    return {
        _name(whole, profile, start): Told(
            world.partition_uuid(number), uuid, _mib(profile.memory_bytes), taints
        )
        for number, (profile, start, _) in enumerate(world.cut)
    }


def _name(whole: str, profile: MigProfile, start: int) -> str:
    return f"{whole}-mig-{profile.name.replace('.', '')}-{profile.gi_profile_id}-{start}"


def _taints(state: HealthState, server: ServerAbilities) -> tuple[tuple[str, str], ...]:
    if not server.taints or state is HealthState.HEALTHY:
        return ()
    if state is HealthState.UNHEALTHY:
        return ((f"{DRIVER}/sick", "NoSchedule"),)
    return ((f"{DRIVER}/unmonitored", "None"),)


def _read(device: dict[str, Any]) -> Told:
    attributes = device["attributes"]
    parent = attributes.get("parentUUID")
    memory = device["capacity"]["memory"]["value"]
    return Told(
        attributes["uuid"]["string"],
        parent["string"] if parent else None,
        int(memory.removesuffix("Mi")),
        tuple((taint["key"], taint["effect"]) for taint in device.get("taints", ())),
    )


def _mib(size: int) -> int:
    return size >> 20
