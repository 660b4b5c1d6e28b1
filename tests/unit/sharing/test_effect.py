"""What is set again is what live claims want, whatever becomes of them meanwhile."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from dra_driver.config import Settings
from dra_driver.model.errors import HardwareFailed
from dra_driver.sharing import SharingEffect
from dra_driver.state import ClaimRecord, DeviceRecord


@pytest.fixture
def effect(tmp_path: Path) -> SharingEffect:
    settings = Settings(node_name="node-a", plugins_folder=tmp_path)
    (tmp_path / settings.driver_name).mkdir()  # for locks
    return SharingEffect(mock.Mock(), settings, list)


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


@pytest.mark.parametrize("is_live", [True, False])
def test_memory_is_limited_again_only_for_claims_that_live(
    effect: SharingEffect,
    is_live: bool,  # noqa: FBT001
) -> None:
    record = ClaimRecord(namespace="default", name="claim", uid="uid", devices=())
    with mock.patch.object(effect._limits, "apply") as limit:
        effect.assert_again([record], lambda _: nullcontext(is_live))
    assert limit.called is is_live
