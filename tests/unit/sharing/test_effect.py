"""What is set again is what live claims want, whatever becomes of them meanwhile."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from dra_driver.config import Settings
from dra_driver.model.errors import DriverFilesMissing, DriverNotReady, HardwareFailed
from dra_driver.sharing import SharingEffect
from dra_driver.state import ClaimRecord, DeviceRecord

POD = "0a1b2c3d-0000-4000-8000-000000000001"


@pytest.fixture
def effect(tmp_path: Path) -> SharingEffect:
    settings = Settings(node_name="node-a", plugins_folder=tmp_path, host_root=tmp_path)
    (tmp_path / settings.driver_name).mkdir()  # for locks
    return SharingEffect(mock.Mock(), settings, list, frozenset)


def sliced(uid: str, gpu: str) -> ClaimRecord:
    """Make a claim that wants a GPU with long time-slices."""
    device = {
        "request": "r",
        "pool": "node-a",
        "device": gpu,
        "gpu_uuid": gpu,
        "gpu_minor": 0,
        "uuid": gpu,
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    }
    devices = (DeviceRecord.model_validate(device),)
    return ClaimRecord(namespace="default", name=uid, uid=uid, devices=devices)


def limited(gpu: str) -> ClaimRecord:
    """Make a claim that has some of a GPU's memory, in a Pod."""
    record = sliced("limited", gpu)
    update = {"sharing": None, "share_id": "share", "memory_limit": 1 << 30}
    devices = tuple(device.model_copy(update=update) for device in record.devices)
    return record.model_copy(update={"devices": devices, "pods": (POD,)})


def test_a_gpu_that_fails_keeps_no_other_from_being_set_again(effect: SharingEffect) -> None:
    records = [sliced("one", "GPU-sick"), sliced("two", "GPU-well")]
    done: list[str] = []

    def set_time_slice(gpu_uuid: str, _: object) -> None:
        if gpu_uuid == "GPU-sick":
            raise HardwareFailed("it is sick")
        done.append(gpu_uuid)

    with (
        mock.patch.object(effect._slices, "set", set_time_slice),
        mock.patch.object(effect._mps, "assert_again") as mps,
        pytest.raises(HardwareFailed, match="it is sick"),
    ):
        effect.assert_again(records, lambda _: nullcontext(enter_result=True))
    assert done == ["GPU-well"]
    assert mps.called


def test_a_claim_that_somebody_works_on_keeps_no_other_of_its_gpu_from_its_time_slice(
    effect: SharingEffect,
) -> None:
    records = [sliced(uid, "GPU-0") for uid in ("busy", "one", "other", "last")]
    with mock.patch.object(effect._slices, "set") as set_time_slice:
        effect.assert_again(records, lambda record: nullcontext(record.uid in ("one", "other")))
    assert set_time_slice.call_count == 1


@pytest.mark.parametrize("devices", ["195 nvidia", "1 mem"])
@pytest.mark.parametrize("error", [DriverNotReady, DriverFilesMissing])
def test_time_slices_and_memory_limits_are_gone_with_the_gpu_driver(
    effect: SharingEffect, tmp_path: Path, devices: str, error: type[DriverNotReady]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(f"Character devices:\n  {devices}\n")
    cgroups = tmp_path / "sys/fs/cgroup"
    (cgroups / f"kubepods/pod{POD}").mkdir(parents=True)
    (cgroups / "cgroup.controllers").touch()
    is_moot = nullcontext() if devices == "1 mem" else pytest.raises(error)
    with mock.patch.object(effect._slices, "set", side_effect=error("none")), is_moot:
        effect.undo(sliced("claim", "GPU-0"))
    if error is DriverNotReady:
        with mock.patch.object(effect._limits, "_jobs") as jobs, is_moot:
            jobs.run.side_effect = error("none")
            effect.undo(limited("GPU-0"))
        assert jobs.run.called


@pytest.mark.parametrize("is_live", [True, False])
def test_memory_is_limited_again_only_for_claims_that_live(
    effect: SharingEffect,
    is_live: bool,  # noqa: FBT001
) -> None:
    record = ClaimRecord(namespace="default", name="claim", uid="uid", devices=())
    with mock.patch.object(effect._limits, "apply") as limit:
        effect.assert_again([record], lambda _: nullcontext(is_live))
    assert limit.called is is_live
