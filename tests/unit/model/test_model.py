"""Quantities, names and snapshots."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model import (
    Gpu,
    GpuPolicy,
    Inventory,
    MigProfile,
    Partition,
    Partitioning,
    Placement,
    Quantity,
    Slot,
)
from dra_driver.model import errors as errors_module
from dra_driver.model.errors import DriverError
from dra_driver.model.gpu import partition_device_name
from tests.support.dynamic_gpus import dynamic_gpu, with_partitions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80Gi", 80 * 2**30),
        ("81920Mi", 80 * 2**30),
        ("1k", 1000),
        ("1e3", 1000),
        ("500m", Decimal("0.5")),
        ("4", 4),
    ],
)
def test_a_quantity_means_the_same_in_every_spelling(text: str, value: int) -> None:
    assert Quantity.parse(text) == Quantity(Decimal(value))


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GiB", "1e9999", "--1", "1_0"])
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity.parse(text)


@given(st.integers(0, 2**62))
def test_whole_quantities_survive_being_written(amount: int) -> None:
    assert Quantity.parse(str(Quantity.of(amount))) == Quantity.of(amount)


@pytest.mark.parametrize(
    ("text", "written"), [("1500m", "1500m"), ("1u", "0.000001"), ("0.5001", "0.5001")]
)
def test_parts_of_a_unit_are_written_exactly(text: str, written: str) -> None:
    assert str(Quantity.parse(text)) == written


def _partition(name: str, start: int, uuid: str | None = "MIG-1") -> Partition:
    profile = MigProfile(name, 14, 1, 2**30, 16, 1, 1, 0, 1, 0)
    return Partition("GPU-a", profile, Placement(start, 2), 1, 0 if uuid else None, uuid)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [("2g.47gb", "gpu-1-mig-2g47gb-14-4"), ("1g.10gb+me", "gpu-1-mig-1g10gb-me-14-4")],
)
def test_partition_names_follow_the_published_scheme(profile: str, expected: str) -> None:
    made = _partition(profile, 4)
    slot = Slot(made.profile, made.placement)
    assert partition_device_name(Gpu("GPU-a", 1, "H100"), slot) == expected


def test_a_gpu_in_mig_mode_is_never_given_out_whole() -> None:
    parts = (_partition("2g.20gb", 2), _partition("2g.20gb", 0, uuid=None))
    inventory = Inventory(
        gpus=(
            Gpu("GPU-b", 1, "H100", mig_capable=True, mig_enabled=True, partitions=parts),
            Gpu("GPU-a", 0, "H100"),
        )
    )
    assert [device.name for device in inventory.devices()] == ["gpu-0", "gpu-1-mig-2g20gb-14-2"]


@pytest.mark.parametrize("policy", [GpuPolicy(), GpuPolicy(Partitioning.DYNAMIC)])
@pytest.mark.parametrize("by_uuid", [False, True])
def test_each_device_is_found_by_its_name_and_by_no_other(
    policy: GpuPolicy,
    by_uuid: bool,  # noqa: FBT001 - a case
) -> None:
    """Name `gpu-1` begins that of `gpu-10`, and of its partitions."""
    named = replace(policy, named_by_uuid=by_uuid)
    gpus = [dynamic_gpu(minor, policy=named) for minor in (1, 10, 2)]
    gpus[2] = with_partitions(gpus[2], gpus[2].slots[:2])
    found = Inventory(tuple(gpus))
    devices = list(found.devices())
    assert len(devices) >= 4
    for device in devices:
        assert found.device(device.name) == device
        assert found.device(f"{device.name}-") is None
        assert found.device(device.name.upper()) is None


def test_every_error_has_a_reason_word_of_its_own() -> None:
    kinds = [
        kind
        for kind in vars(errors_module).values()
        if isinstance(kind, type) and issubclass(kind, DriverError) and kind is not DriverError
    ]
    words = [kind.reason for kind in kinds]
    assert len(set(words)) == len(words)
    assert all(word.isalnum() and word[0].isupper() for word in words)
    assert str(DriverError("two\n  lines")) == "two lines"
