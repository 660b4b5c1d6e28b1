"""Which config holds for which device of a claim, and what is said of those that do not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import NODE_SOURCE, ClaimSharing, resolve_configs
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    DeviceConfig,
    GpuPolicy,
    MpsSettings,
    PublishedDevice,
    ResourceClaim,
    SharingSettings,
    Slot,
    Strategy,
    TimeSlice,
)
from dra_driver.model.errors import ConfigInvalid
from tests.support.inventories import gpu, partition

API = "resource.nvidia.com/v1beta1"
MPS = SharingSettings(Strategy.MPS, mps=MpsSettings())


def sliced(interval: str) -> dict[str, Any]:
    time_slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return {"apiVersion": API, "kind": "GpuConfig", "sharing": time_slicing}


def plain(kind: str, strategy: str = "") -> dict[str, Any]:
    sharing = {"sharing": {"strategy": strategy}} if strategy else {}
    return {"apiVersion": API, "kind": kind, **sharing}


def entry(parameters: dict[str, Any], *requests: str, of_class: bool = False) -> DeviceConfig:
    return DeviceConfig(requests, "FromClass" if of_class else "FromClaim", parameters)


def whole(minor: int = 0, sharing: SharingSettings | None = None) -> PublishedDevice:
    return PublishedDevice(f"gpu-{minor}", gpu(minor, policy=GpuPolicy(sharing=sharing)))


def part(minor: int = 0, sharing: SharingSettings | None = None) -> PublishedDevice:
    parent = gpu(minor, mig_enabled=True, policy=GpuPolicy(sharing=sharing))
    made = partition(parent)
    slot = Slot(made.profile, made.placement)
    return PublishedDevice(f"gpu-{minor}-mig-1g10gb-19-0", parent, slot, made)


def resolve(
    devices: dict[str, PublishedDevice], *configs: DeviceConfig, admin: bool = False
) -> ClaimSharing:
    """By request, each with one device."""
    allocated = tuple(
        AllocatedDevice(request, "node", device.name, admin_access=admin)
        for request, device in devices.items()
    )
    claim = ResourceClaim(ClaimRef("ns", "claim", "uid"), allocated, configs)
    return resolve_configs(claim, tuple(devices.values()))


def intervals(found: ClaimSharing) -> list[str]:
    return [
        each.settings.interval.word if each and each.settings.interval else "-"
        for each in found.devices
    ]


OF_CLAIM = "GpuConfig of the claim for"
OF_CLASS = "MigDeviceConfig of the class for all requests:"
SHORT, LONG, MEDIUM = sliced("Short"), sliced("Long"), sliced("Medium")


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ((), "-"),
        ((entry(SHORT),), "Short"),
        ((entry(SHORT), entry(LONG)), "Long"),
        ((entry(SHORT, of_class=True), entry(LONG)), "Long"),
        ((entry(LONG), entry(SHORT, of_class=True)), "Long"),
        ((entry(LONG, of_class=True), entry(SHORT, of_class=True)), "Short"),
        ((entry(SHORT, "main"), entry(LONG)), "Long"),
        ((entry(LONG), entry(SHORT, "main")), "Short"),
        ((entry(LONG, "other"), entry(SHORT, "main/a")), "-"),
        ((entry(LONG, "other", "main"), entry(SHORT, "other")), "Long"),
        ((entry(LONG, of_class=True), entry(plain("GpuConfig"))), "-"),
        ((entry(SHORT), entry(plain("MigDeviceConfig", "MPS"))), "Short"),
    ],
)
def test_the_last_entry_that_matches_holds(
    configs: tuple[DeviceConfig, ...], expected: str
) -> None:
    assert intervals(resolve({"main": whole()}, *configs)) == [expected]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ((), ["Long", "Long", "Long"]),
        (("main",), ["Long", "-", "-"]),
        (("alt",), ["-", "Long", "-"]),
        (("alt/big",), ["-", "Long", "-"]),
        (("alt/small",), ["-", "-", "-"]),
        (("alt/big", "last"), ["-", "Long", "Long"]),
    ],
)
def test_an_entry_is_for_the_requests_it_names(
    requests: tuple[str, ...], expected: list[str]
) -> None:
    devices = {"main": whole(0), "alt/big": whole(1), "last": whole(2)}
    assert intervals(resolve(devices, entry(LONG, *requests))) == expected


def test_both_kinds_stand_side_by_side_for_alternatives() -> None:
    """`a partition, else a GPU` with settings for either, in whatever order."""
    configs = (entry(LONG, "main"), entry(plain("MigDeviceConfig", "MPS"), "main"))
    for ordered in (configs, configs[::-1]):
        on_gpu = resolve({"main/whole": whole()}, *ordered)
        on_part = resolve({"main/part": part()}, *ordered)
        assert intervals(on_gpu) == ["Long"]
        assert [each and each.settings for each in on_part.devices] == [MPS]
        assert on_gpu.remarks == on_part.remarks == ()


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize(
    ("device", "config", "kind", "type_", "allowed"),
    [
        (part(), LONG, "GpuConfig", "mig", "MigDeviceConfig"),
        (whole(), plain("MigDeviceConfig"), "MigDeviceConfig", "gpu", "GpuConfig"),
    ],
)
def test_an_entry_that_names_the_request_must_fit(
    device: PublishedDevice,
    config: dict[str, Any],
    kind: str,
    type_: str,
    allowed: str,
    of_class: bool,  # noqa: FBT001
) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        resolve({"main": device}, entry(config, "main", of_class=of_class))
    assert str(caught.value) == (
        f'claim ns/claim: cannot apply {kind} to device "{device.name}" of type "{type_}" '
        f"(request: main); allowed: {allowed}"
    )


def test_a_wrong_entry_is_refused_even_if_it_is_for_nobody() -> None:
    wrong = {**LONG, "sharing": {"strategy": "Both"}}
    with pytest.raises(ConfigInvalid) as caught:
        resolve({"main": whole()}, entry(wrong, "other", of_class=True))
    assert str(caught.value).startswith(
        "claim ns/claim: config of the class: GpuConfig: sharing.strategy: unknown GPU sharing"
    )


def test_the_node_speaks_for_claims_that_say_nothing() -> None:
    default = SharingSettings(Strategy.TIME_SLICING, TimeSlice.LONG)
    devices = {"a": whole(0, default), "b": part(1, default), "c": whole(2), "d": whole(3, MPS)}
    found = resolve(devices)
    assert [each and each.settings for each in found.devices] == [
        default,
        SharingSettings(Strategy.TIME_SLICING),
        None,
        MPS,
    ]
    assert {each.source for each in found.devices if each} == {NODE_SOURCE}
    assert found.remarks == ()


@pytest.mark.parametrize("of_class", [False, True])
def test_the_node_is_below_class_and_claim(of_class: bool) -> None:  # noqa: FBT001
    device = {"main": whole(0, MPS)}
    assert intervals(resolve(device, entry(LONG, of_class=of_class))) == ["Long"]
    assert resolve(device, entry(plain("GpuConfig"), of_class=of_class)).devices == (None,)


def test_devices_of_one_entry_are_one_group() -> None:
    mps = plain("GpuConfig", "MPS")
    devices = {"a": whole(0), "b": whole(1), "c": whole(2), "d": whole(3, MPS), "e": whole(4, MPS)}
    found = resolve(devices, entry(mps, "a", "b"), entry(mps, "c"))
    groups = [(sharing.source, places) for sharing, places in found.groups()]
    assert groups == [
        ("GpuConfig of the claim for request a, b", (0, 1)),
        ("GpuConfig of the claim for request c", (2,)),
        (NODE_SOURCE, (3, 4)),
    ]


def test_two_strategies_in_one_claim() -> None:
    devices = {"a": whole(0), "b": whole(1), "c": whole(2)}
    found = resolve(devices, entry(LONG, "a"), entry(plain("GpuConfig", "MPS"), "b"))
    assert [each and each.settings.strategy for each in found.devices] == [
        Strategy.TIME_SLICING,
        Strategy.MPS,
        None,
    ]


def test_admin_access_changes_nothing() -> None:
    found = resolve({"main": whole(0, MPS)}, entry(LONG), admin=True)
    assert found.devices == (None,)
    (remark,) = found.remarks
    assert (
        remark == f"{OF_CLAIM} all requests: has no effect on gpu-0: admin access changes nothing"
    )
    assert resolve({"main": whole(0, MPS)}, admin=True) == ClaimSharing((None,))


@pytest.mark.parametrize(
    ("devices", "configs", "remarks"),
    [
        ({"main": whole()}, (entry(LONG),), []),
        ({"main": whole()}, (entry(SHORT), entry(LONG)), []),
        (
            {"main": whole()},
            (entry(LONG, "other", "main/a"),),
            [f"{OF_CLAIM} request other, main/a: has no effect: no device was allocated for it"],
        ),
        (
            {"main": part()},
            (entry(LONG),),
            [f"{OF_CLAIM} all requests: has no effect on gpu-0-mig"],
        ),
        (
            {"main": part()},
            (entry(LONG), entry(plain("MigDeviceConfig"))),
            [],
        ),
        ({"a": whole(), "b": part(1)}, (entry(LONG),), []),
        (
            {"a": whole(), "b": part(1)},
            (entry(LONG, "b/x"), entry(plain("MigDeviceConfig", "TimeSlicing"), of_class=True)),
            [
                f"{OF_CLASS} has no effect on gpu-1-mig-1g10gb-19-0: a partition has no time-slice",
                f"{OF_CLAIM} request b/x: has no effect: no device was allocated for it",
            ],
        ),
        (
            {"a": whole(), "b": whole(1)},
            (entry(plain("MigDeviceConfig"), of_class=True), entry(LONG, "a")),
            [f'{OF_CLASS} has no effect on gpu-1, of type "gpu"; allowed: GpuConfig'],
        ),
    ],
)
def test_what_has_no_effect_is_said(
    devices: dict[str, PublishedDevice], configs: tuple[DeviceConfig, ...], remarks: list[str]
) -> None:
    found = resolve(devices, *configs).remarks
    assert len(found) == len(remarks)
    for remark, start in zip(found, remarks, strict=True):
        assert remark.startswith(start)
        assert "\n" not in remark


REQUESTS = ("a", "b/x", "c")
ENTRIES = st.builds(
    lambda parameters, requests, of_class: entry(parameters, *requests, of_class=of_class),
    st.sampled_from([SHORT, MEDIUM, LONG, plain("GpuConfig")]),
    st.lists(st.sampled_from(["a", "b", "b/x", "b/y", "c", "d"]), max_size=3, unique=True),
    st.booleans(),
)


@given(st.lists(ENTRIES, max_size=6))
def test_precedence_is_as_published(configs: list[DeviceConfig]) -> None:
    """Walks the list backwards as NVIDIA's driver does, for what both have."""
    found = resolve({name: whole(n) for n, name in enumerate(REQUESTS)}, *configs)
    ordered = [c for c in configs if c.source == "FromClass"]
    ordered += [c for c in configs if c.source != "FromClass"]
    for request, interval in zip(REQUESTS, intervals(found), strict=True):
        names = {request, request.split("/")[0]}
        last = next((c for c in ordered[::-1] if not c.requests or names & {*c.requests}), None)
        sharing = last.parameters.get("sharing") if last else None
        expected = sharing["timeSlicingConfig"]["interval"] if sharing else "-"
        assert interval == expected
