"""What `dra-driver devices` makes of hardware and records, beyond what a simulated node shows."""

from dataclasses import replace
from typing import Any

from dra_driver.cli.device_lines import Line, device_lines
from dra_driver.model import Gpu, Slot
from dra_driver.state import ClaimRecord, DeviceRecord, Phase, reservation
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions
from tests.support.inventories import gpu, inventory, partitioned


def slot(parent: Gpu, profile: str, start: int) -> Slot:
    return next(
        each
        for each in parent.slots
        if (each.profile.name, each.placement.start) == (profile, start)
    )


def record(parent: Gpu, held: Slot | None, **more: Any) -> ClaimRecord:
    place = (held.placement.start, held.placement.size) if held else None
    device = DeviceRecord(
        request="r",
        pool="node-a",
        device="as-allocated",
        gpu_uuid=parent.uuid,
        gpu_minor=parent.minor,
        uuid="",
        placement=place,
        gi_profile_id=held.profile.gi_profile_id if held else None,
        made=held is not None,
        **more,
    )
    return ClaimRecord(
        namespace="default", name="one", uid="uid", phase=Phase.PREPARED, devices=(device,)
    )


def named(*gpus: Gpu, claims: tuple[ClaimRecord, ...] = ()) -> dict[str, Line]:
    return {line.name: line for line in device_lines(inventory(*gpus), claims, None)}


def test_a_gpu_that_can_not_be_had_whole_has_its_line_all_the_same() -> None:
    found = named(dynamic_gpu(0, "a100-80gb"))
    assert found["gpu-0"].state == "blocked"
    assert found["gpu-0"].mode == "Dynamic"
    assert found["gpu-0"].can_be_made["1g.10gb"] == 7
    assert {line.state for name, line in found.items() if name != "gpu-0"} == {"free"}


def test_engines_limit_what_can_be_made_as_memory_does() -> None:
    parent = dynamic_gpu(0)
    media = slot(parent, "1g.10gb+me", 0)
    (whole, *_) = device_lines(inventory(parent), (), None)
    assert whole.can_be_made["1g.10gb+me"] == 1
    made = with_partitions(parent, [media])
    found = named(made, claims=(record(parent, media),))
    assert "1g.10gb+me" not in found["gpu-0"].can_be_made
    assert found["gpu-0"].can_be_made["1g.10gb"] == 6
    assert found["gpu-0-mig-1g10gb-me-20-3"].state == "blocked"
    assert found["gpu-0-mig-1g10gb-19-3"].state == "free"


def test_admin_access_takes_nothing() -> None:
    parent = dynamic_gpu(0)
    found = named(parent, claims=(record(parent, None, admin_access=True),))
    assert found["gpu-0"].state == "free"
    assert found["gpu-0"].holders == ("default/one (admin)",)
    assert found["gpu-0"].can_be_made["1g.10gb"] == 7


def test_an_instance_of_others_that_nobody_can_use_is_shown_too() -> None:
    parent = dynamic_gpu(0)
    whole = with_partitions(parent, [slot(parent, "3g.40gb", 4)], foreign=True)
    unusable = tuple(replace(part, uuid=None, ci_id=None) for part in whole.partitions)
    found = named(replace(whole, partitions=unusable, foreign=unusable))
    line = found["gpu-0-mig-3g40gb-9-4"]
    assert (line.state, line.uuid, line.is_only_possible) == ("foreign", "", False)


def test_what_others_have_put_in_a_claims_place_leaves_the_claim_without() -> None:
    parent = dynamic_gpu(0)
    theirs = with_partitions(parent, [slot(parent, "3g.40gb", 4)], foreign=True)
    found = named(theirs, claims=(record(parent, slot(parent, "1g.10gb", 6)),))
    assert found["as-allocated"].health == "missing"
    assert found["gpu-0-mig-3g40gb-9-4"].state == "foreign"


def test_a_whole_gpu_that_a_claim_holds_is_missing_once_somebody_has_cut_it() -> None:
    found = named(partitioned(0, 0, 1), claims=(record(gpu(0), None),))
    assert found["as-allocated"].health == "missing"


def test_a_layout_that_is_being_applied_is_named_as_holder() -> None:
    parent = gpu(0)
    kept = reservation(parent.uuid, 0, "gpu-0", "all-balanced")
    found = named(parent, claims=(kept,))
    assert found["gpu-0"].holders == ("layout all-balanced",)
    assert found["gpu-0"].state == "prepared"
