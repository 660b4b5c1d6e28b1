"""Which devices have a control daemon together, and what it is told."""

from typing import Any

import pytest

from dra_driver.config import stored_form
from dra_driver.model import (
    ClaimRef,
    MpsSettings,
    ResourceClaim,
    SharingSettings,
    Strategy,
)
from dra_driver.model.errors import ConfigInvalid, DeviceInUse
from dra_driver.sharing.mps_sets import sets_of, spec_of, with_sets
from dra_driver.state import ClaimRecord, DeviceRecord, Ownership

GIB = 2**30


def device(number: int, *, mps: MpsSettings | None = None, **more: Any) -> DeviceRecord:
    settings = SharingSettings(Strategy.MPS, mps=mps or MpsSettings())
    values: dict[str, Any] = {
        "request": f"request-{number}",
        "pool": "node-a",
        "device": f"gpu-{number}",
        "gpu_uuid": f"GPU-{number}",
        "gpu_minor": number,
        "uuid": f"GPU-{number}",
        "sharing": stored_form(settings),
    }
    return DeviceRecord(**(values | more))


def partition(number: int, start: int, uuid: str = "") -> DeviceRecord:
    name, place = f"gpu-{number}-mig-{start}", (start, 1)
    return device(number, device=name, uuid=uuid, placement=place, gi_profile_id=19)


def claim(*, by_container: bool = False) -> ResourceClaim:
    return ResourceClaim(ClaimRef("team", "mine", "u-1"), (), by_container=by_container)


def record(name: str, *devices: DeviceRecord, group: int = 0) -> ClaimRecord:
    ref = ClaimRef("team", name, f"uid-of-{name}")
    found = with_sets(ResourceClaim(ref, ()), devices, [group] * len(devices))
    return ClaimRecord(namespace="team", name=name, uid=ref.uid, devices=found)


def ids(*devices: DeviceRecord, groups: list[int | None], **options: bool) -> list[str | None]:
    return [each.mps_set for each in with_sets(claim(**options), devices, groups)]


def test_devices_of_one_config_are_a_set_whatever_their_order() -> None:
    one, other = ids(device(0), device(1), groups=[0, 0])
    assert one == other is not None
    assert ids(device(1), device(0), groups=[5, 5]) == [one, one]
    assert ids(device(0), groups=[0]) != [one]
    assert ids(device(0), device(1), groups=[0, None])[1] is None


def test_a_partition_is_in_the_same_set_when_it_is_made_anew() -> None:
    (before,) = ids(partition(0, 2, "MIG-a"), groups=[0])
    assert ids(partition(0, 2, "MIG-b"), groups=[0]) == [before]
    assert ids(partition(0, 3, "MIG-a"), groups=[0]) != [before]
    assert ids(device(0), groups=[0]) != [before]


def test_two_shares_of_one_device_are_one_set() -> None:
    shares = [device(0, share_id="a"), device(0, share_id="b")]
    assert ids(*shares, groups=[0, 0]) == ids(device(0), groups=[0]) * 2
    found = with_sets(claim(), shares, [0, 0])
    (spec,) = [spec_of(*each) for each in sets_of(record("c", *found)).items()]
    assert spec.uuids == ("GPU-0",)


def test_two_sets_in_one_claim_are_refused_by_name() -> None:
    wanted = r"claim team/mine: .*gpu-0 \(request request-0\) and gpu-1 \(request request-1\)"
    with pytest.raises(ConfigInvalid, match=wanted):
        ids(device(0), device(1), groups=[0, 1])
    assert ids(device(0), device(0), groups=[0, 1])[0] is not None  # the same daemon


def test_containers_of_an_unchanged_pod_have_their_own() -> None:
    devices = [device(n, request=f"container-{n}-request-0") for n in (0, 1)]
    one, other = ids(*devices, groups=[0, 0], by_container=True)
    assert one != other
    with pytest.raises(ConfigInvalid, match="reaches one only"):
        ids(
            device(0, request="container-3-request-0"),
            device(1, request="container-3-request-1"),
            groups=[0, 1],
            by_container=True,
        )
    assert len(set(ids(*devices, groups=[0, 0]))) == 1  # names alone mean nothing


def test_what_a_daemon_is_told() -> None:
    mps = MpsSettings(
        thread_percentage=30,
        pinned_memory_limit=4 * GIB,
        per_device_limits=(("1", GIB),),
        shm_size=32 * 2**20,
        selinux_label="a:b:c",
    )
    ((mps_set, devices),) = sets_of(record("c", device(1, mps=mps), device(0, mps=mps))).items()
    spec = spec_of(mps_set, devices)
    limits = [(each.uuid, each.gpu_uuid, each.limit_mib) for each in spec.devices]
    assert limits == [("GPU-0", "GPU-0", 4096), ("GPU-1", "GPU-1", 1024)]
    assert (spec.thread_percentage, spec.shm_bytes, spec.selinux_label) == (30, 32 << 20, "a:b:c")
    assert not spec.multi_user
    spec.check()


@pytest.mark.parametrize(
    ("mps", "share"),
    [(MpsSettings(), None), (MpsSettings(multi_user=True), None), (MpsSettings(), "share")],
)
def test_several_users_where_several_claims_may_come(mps: MpsSettings, share: str | None) -> None:
    ((mps_set, devices),) = sets_of(record("c", device(0, mps=mps, share_id=share))).items()
    assert spec_of(mps_set, devices).multi_user is (mps.multi_user or share is not None)


def test_settings_of_another_release_are_read_as_far_as_they_go() -> None:
    odd = device(0).model_copy(update={"sharing": {"strategy": "Newer", "mpsConfig": 7}})
    assert spec_of("0" * 16, [odd]).thread_percentage is None


def test_sets_that_overlap_are_refused_by_name() -> None:
    held = record("both", device(0, share_id="a"), device(1, share_id="b"))
    index = Ownership([held])
    index.check(record("again", device(1, share_id="c"), device(0, share_id="d")))
    with pytest.raises(DeviceInUse, match=r"MPS for gpu-0 with gpu-1, which claim team/both"):
        index.check(record("one", device(1, share_id="e")))
    index.check(record("else", device(2, share_id="f")))


def test_a_device_in_two_sets_of_one_claim_is_refused() -> None:
    ref = ClaimRef("team", "mine", "u-1")
    wanted = ResourceClaim(ref, (), by_container=True)
    devices = [
        device(0, request="container-0-request-0", share_id="a"),
        device(0, request="container-1-request-0", share_id="b"),
        device(1, request="container-1-request-1", share_id="c"),
    ]
    found = with_sets(wanted, devices, [0, 0, 0])
    mine = ClaimRecord(namespace="team", name="mine", uid="u-1", devices=found)
    with pytest.raises(ConfigInvalid, match="gpu-0 is asked for with different others"):
        Ownership().check(mine)
