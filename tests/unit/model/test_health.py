"""Several things wrong with one device, and since when."""

from dra_driver.model import (
    Gpu,
    Health,
    HealthState,
    Inventory,
    MigProfile,
    Partition,
    Placement,
    combined,
    dated,
)

XID = Health(HealthState.UNHEALTHY, "xid", "XID 79", 100.0, "79")
LOST = Health(HealthState.UNHEALTHY, "gpu-lost", "GPU_IS_LOST", 200.0)
SILENT = Health(HealthState.UNKNOWN, "not-answering", "does not answer", 300.0)
DEAF = Health(HealthState.HEALTHY, "no-events", "no XID events")


def reasons(health: Health) -> list[str]:
    return [entry.reason for entry in health.entries()]


def test_the_worst_leads_whatever_the_order() -> None:
    found = combined((DEAF, SILENT, XID, LOST))
    assert found.state is HealthState.UNHEALTHY
    assert reasons(found) == ["xid", "gpu-lost", "not-answering", "no-events"]
    assert (found.value, found.since) == ("79", 100.0)
    assert found.words == "XID 79; GPU_IS_LOST; does not answer; no XID events"
    assert reasons(combined((SILENT, DEAF))) == ["not-answering", "no-events"]


def test_what_is_combined_already_is_taken_apart() -> None:
    assert reasons(combined((combined((DEAF, LOST)), combined((XID, DEAF))))) == [
        "gpu-lost",
        "xid",
        "no-events",
    ]


def test_one_reason_is_said_once_as_it_was_said_first() -> None:
    later = Health(HealthState.UNHEALTHY, "xid", "XID 48", 500.0, "48")
    found = combined((Health(), XID, later))
    assert (reasons(found), found.value) == (["xid"], "79")


def test_nothing_wrong_is_healthy_with_nothing_to_say() -> None:
    assert combined(()) == Health()
    assert combined((Health(), Health(since=7.0))) == Health(since=7.0)
    assert Health().words == ""


def test_a_note_does_not_make_a_device_unusable() -> None:
    assert combined((DEAF,)).usable
    assert combined((SILENT,)).usable
    assert not combined((XID,)).usable


def test_each_reason_has_its_own_time() -> None:
    undated = combined((Health(HealthState.UNHEALTHY, "gpu-lost"), SILENT))
    first = dated(undated, Health(), 50.0)
    assert [entry.since for entry in first.entries()] == [50.0, 300.0]
    assert dated(undated, first, 90.0) == first
    healed = dated(Health(), first, 100.0)
    assert healed == Health(since=100.0)
    assert dated(Health(), healed, 200.0) == healed
    assert dated(Health(), Health(), 200.0) == Health(), "well from the start has no time"


def test_what_is_wrong_with_a_gpu_is_wrong_with_its_partitions() -> None:
    profile = MigProfile("1g.10gb", 19, 0, 1, 1, 1, 1, 0, 1, 0)
    parts = tuple(
        Partition("GPU-a", profile, Placement(start, 1), 7 + start, 0, f"MIG-{start}", health)
        for start, health in enumerate((Health(), XID))
    )
    for own, expected in (
        (Health(), [[""], ["xid"]]),
        (SILENT, [["not-answering"], ["xid", "not-answering"]]),
        (LOST, [["gpu-lost"], ["gpu-lost", "xid"]]),
    ):
        gpu = Gpu("GPU-a", 0, "H100", mig_enabled=True, partitions=parts, health=own)
        assert [reasons(device.health) for device in Inventory((gpu,)).devices()] == expected
