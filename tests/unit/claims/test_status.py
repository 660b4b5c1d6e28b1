"""Which devices of a claim its status tells of, and what."""

from typing import Any

import pytest

from dra_driver.claims.status import claim_status
from dra_driver.model import ClaimRef, DeviceStatus, Placement, Slot
from dra_driver.state import ClaimRecord, DeviceRecord
from tests.support.inventories import SMALL, SMALL_MEDIA, gpu, inventory

GPU = gpu(0, slots=(Slot(SMALL_MEDIA, Placement(3, 1)), Slot(SMALL, Placement(3, 1))))


def device(**changes: Any) -> DeviceRecord:
    base: dict[str, Any] = {
        "request": "r",
        "pool": "node-a",
        "device": "gpu-0-mig-1g10gb-19-3",
        "gpu_uuid": GPU.uuid,
        "gpu_minor": 0,
        "uuid": "MIG-1",
        "placement": (3, 1),
        "gi_profile_id": SMALL.gi_profile_id,
        "gi_id": 9,
        "ci_id": 0,
        "made": True,
    }
    return DeviceRecord(**(base | changes))


def record(*devices: DeviceRecord) -> ClaimRecord:
    return ClaimRecord(
        namespace="team", name="c", uid="u-1", planned=1_700_000_000, devices=devices
    )


def test_a_partition_that_was_made_is_told_with_its_profile() -> None:
    status = claim_status(record(device(share_id="s-1")), inventory(GPU))
    assert status is not None
    assert (status.ref, status.since) == (ClaimRef("team", "c", "u-1"), 1_700_000_000)
    assert status.devices == (
        DeviceStatus(
            pool="node-a",
            device="gpu-0-mig-1g10gb-19-3",
            uuid="MIG-1",
            parent_uuid=GPU.uuid,
            profile="1g.10gb",
            placement=Placement(3, 1),
            gi_id=9,
            ci_id=0,
            share_id="s-1",
        ),
    )


@pytest.mark.parametrize(
    "others",
    [
        (),
        (device(made=False),),
        (device(placement=None, gi_profile_id=None, uuid=GPU.uuid),),
    ],
    ids=["nothing", "a partition that was there", "a whole GPU"],
)
def test_what_the_slices_say_is_not_told_again(others: tuple[DeviceRecord, ...]) -> None:
    assert claim_status(record(*others), inventory(GPU)) is None
    mixed = claim_status(record(*others, device()), inventory(GPU))
    assert mixed is not None
    assert len(mixed.devices) == 1


@pytest.mark.parametrize("seen", [None, inventory(), inventory(gpu(0))])
def test_a_gpu_that_is_not_in_the_snapshot_costs_the_profile_name_only(seen: Any) -> None:
    status = claim_status(record(device()), seen)
    assert status is not None
    assert (status.devices[0].profile, status.devices[0].uuid) == ("", "MIG-1")
