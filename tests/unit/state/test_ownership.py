"""The index agrees with a plain reading of the rules, for any set of claims."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.claim import ClaimRef
from dra_driver.model.errors import DeviceInUse
from dra_driver.state import ClaimRecord, DeviceRecord, Ownership

device_records = st.builds(
    lambda gpu, span, share, admin: DeviceRecord(
        request="r",
        pool="p",
        device=f"gpu-{gpu}",
        gpu_uuid=f"GPU-{gpu}",
        gpu_minor=gpu,
        uuid=f"GPU-{gpu}",
        placement=span,
        share_id=share,
        admin_access=admin,
    ),
    st.integers(0, 1),
    st.sampled_from([None, (0, 1), (0, 2), (1, 1), (2, 2), (0, 4), (4, 4)]),
    st.sampled_from([None, None, "s1", "s2", "s3"]),
    st.sampled_from([False, False, False, True]),
)


def clash(one: DeviceRecord, two: DeviceRecord) -> bool:
    """Say the rule again, slice by slice."""
    if one.admin_access or two.admin_access or one.gpu_uuid != two.gpu_uuid:
        return False

    def slices(device: DeviceRecord) -> set[int]:
        start, size = device.placement or (0, 8)
        return set(range(start, start + size))

    if not slices(one) & slices(two):
        return False
    if one.placement == two.placement and one.share_id and two.share_id:
        return one.share_id == two.share_id
    return True


def ref(number: int) -> ClaimRef:
    return ClaimRef("ns", f"c{number}", f"u{number}")


@given(st.lists(st.lists(device_records, min_size=1, max_size=2), max_size=6))
def test_a_claim_is_let_in_exactly_when_nothing_clashes(claims: list[list[DeviceRecord]]) -> None:
    index = Ownership()
    inside: list[tuple[str, DeviceRecord]] = []
    for number, devices in enumerate(claims):
        record = ClaimRecord(
            namespace="ns", name=f"c{number}", uid=f"u{number}", devices=tuple(devices)
        )
        fits = not any(clash(device, held) for device in devices for _, held in inside)
        fits = fits and not (len(devices) > 1 and clash(*devices))
        try:
            index.check(record)
            let_in = True
        except DeviceInUse:
            let_in = False
        assert let_in == fits
        if let_in:
            index.add(record)
            inside += [(record.uid, device) for device in devices]
    for number in range(len(claims)):
        index.remove(f"u{number}")
    assert list(index) == []
    assert len(index) == 0
