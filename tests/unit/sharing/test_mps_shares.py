"""How much MPS leaves to claims that share a device by amounts, and how hard that holds."""

from typing import Any

import pytest

from dra_driver.config import stored_form
from dra_driver.model import MemoryLimitLevel, MpsSettings, SharingSettings, Strategy
from dra_driver.model.errors import DeviceInUse
from dra_driver.sharing.mps_sets import spec_of
from dra_driver.sharing.mps_shares import (
    largest_amounts,
    level_of,
    limit_variable,
    with_client_limits,
)
from dra_driver.state import ClaimRecord, DeviceRecord, Holding, Ownership, holdings

GIB, MIB = 2**30, 2**20
SET = "0123456789abcdef"
PLACE = ("GPU-0", None)
NONE, CLIENT, MPS, CGROUP = MemoryLimitLevel


def share(
    memory: int | None = None, *, number: int = 0, limit: int | None = None, **more: Any
) -> DeviceRecord:
    settings = SharingSettings(Strategy.MPS, mps=MpsSettings(pinned_memory_limit=limit))
    values: dict[str, Any] = {
        "request": "r",
        "pool": "node-a",
        "device": f"gpu-{number}",
        "gpu_uuid": f"GPU-{number}",
        "gpu_minor": number,
        "uuid": f"GPU-{number}",
        "sharing": stored_form(settings),
        "share_id": f"share-{number}-{memory}",
        "share_memory": memory,
        "mps_set": SET,
    }
    return DeviceRecord(**(values | more))


def claim(name: str, *devices: DeviceRecord) -> ClaimRecord:
    return ClaimRecord(namespace="team", name=name, uid=f"uid-of-{name}", devices=devices)


def held(*records: ClaimRecord) -> list[Holding]:
    return [each for record in records for each in holdings(record)]


def default_mib(*records: ClaimRecord) -> int | None:
    """Limit of the daemon that serves these claims, as the first of them asks for it."""
    amounts = largest_amounts(SET, held(*records))
    return spec_of(SET, records[0].devices, amounts).devices[0].limit_mib


def test_the_daemon_leaves_each_client_the_largest_share() -> None:
    small, large = claim("small", share(10 * GIB)), claim("large", share(20 * GIB + 5))
    assert default_mib(small, large) == 20480
    assert default_mib(small) == 10240
    other_set = claim("else", share(40 * GIB, mps_set="f" * 16))
    assert default_mib(small, other_set) == 10240


def test_an_own_limit_counts_where_it_is_smaller() -> None:
    low = share(10 * GIB, limit=4 * GIB)
    assert default_mib(claim("low", low)) == 4096
    assert default_mib(claim("high", share(10 * GIB, limit=40 * GIB))) == 10240
    (found,) = with_client_limits(claim("low", low)).devices
    assert found.client_limit == 4 * GIB


def test_a_claim_without_an_amount_is_not_limited_by_that_of_another() -> None:
    assert default_mib(claim("all", share()), claim("some", share(GIB))) is None
    assert default_mib(claim("some", share(GIB)), claim("all", share())) is None


def test_shares_of_one_claim_are_added_up_and_counted_in_the_daemons_order() -> None:
    devices = (
        share(GIB, number=1),
        share(3 * GIB + 1, number=0),
        share(4 * GIB, number=0),
        share(number=2),
    )
    record = with_client_limits(claim("several", *devices))
    assert [each.client_limit for each in record.devices] == [GIB, 7 * GIB, 7 * GIB, None]
    for device in record.devices:
        assert limit_variable(device, record.devices) == "0=7168M,1=1024M"
    assert limit_variable(share(mps_set=None), record.devices) == ""
    assert largest_amounts(SET, held(record)) == {PLACE: 7 * GIB + 1, ("GPU-1", None): GIB}


@pytest.mark.parametrize(
    ("others", "level"),
    [
        ([], MPS),
        ([share(GIB)], MPS),
        ([share(GIB), share(2 * GIB)], CLIENT),
        ([share()], CLIENT),
        ([share(2 * GIB, number=1)], MPS),
    ],
)
def test_unequal_shares_are_limited_by_their_containers(
    others: list[DeviceRecord], level: MemoryLimitLevel
) -> None:
    mine = share(GIB)
    records = [claim(f"c{number}", other) for number, other in enumerate(others)]
    assert level_of(mine, held(claim("mine", mine), *records)) is level


def test_what_mps_does_not_limit() -> None:
    cgroup = share(GIB, memory_limit=GIB)
    assert level_of(cgroup, ()) is CGROUP
    assert level_of(share(GIB, mps_set=None), ()) is NONE
    record = with_client_limits(claim("c", cgroup, share(GIB, mps_set=None), share()))
    assert [each.client_limit for each in record.devices] == [None] * 3
    assert default_mib(record) is None


def test_where_equal_shares_are_required_another_amount_waits() -> None:
    index = Ownership([claim("first", share(10 * GIB))])
    equal = share(10 * GIB, share_id="b", equal_shares=True)
    index.check(claim("equal", equal))
    two = [share(5 * GIB, share_id=name, equal_shares=True) for name in "bc"]
    index.check(claim("two", *two))
    index.check(claim("free", share(20 * GIB)))
    index.check(claim("elsewhere", share(20 * GIB, number=1, equal_shares=True)))
    wanted = (
        "team/bigger is shared with claim team/first, which has 10Gi of its memory, and the claim "
        "asks for 20Gi"
    )
    with pytest.raises(DeviceInUse, match=wanted):
        index.check(claim("bigger", share(20 * GIB, equal_shares=True)))
    index.add(claim("first", share()))
    with pytest.raises(DeviceInUse, match="an amount that is not known of its memory"):
        index.check(claim("equal", equal))
