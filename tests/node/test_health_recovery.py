"""When a device is healthy again: by itself, never only at a restart of the plugin."""

import time

import pytest

from dra_driver.health.xids import ANNOUNCEMENT
from dra_driver.nvml import condition
from dra_driver.simulator.native_library import error_number
from dra_driver.simulator.node_file import NodeSpec
from tests.support.hardware import HEALTHY, UNHEALTHY, MakeWard, Ward
from tests.support.node import MakeNode

LONG = 3600.0  # seconds without events that no test lives to see
GPU_RESET = 1  # nvml.h, nvmlDeviceGpuRecoveryAction_t


def reasons(run: Ward, name: str) -> list[str]:
    return [entry.reason for entry in run.health()[name].entries() if entry.reason]


def test_what_the_gpu_confirms_ends_with_the_gpu(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=LONG)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    node.state.set_recovery_action(0, GPU_RESET)
    run.until(
        lambda _: reasons(run, "gpu-0") == ["recovery-action", "xid"], "both stand side by side"
    )
    assert run.health()["gpu-0"].value == "gpu-reset"
    since = run.health()["gpu-0"].also[0].since
    time.sleep(0.5)
    assert run.health()["gpu-0"].also[0].since == since
    node.state.reset(0)
    run.until_health(gpu_0=HEALTHY, gpu_1=HEALTHY)
    assert run.health()["gpu-0"].since > since


def test_an_announcement_right_after_an_xid_is_looked_into(
    make_node: MakeNode, ward: MakeWard
) -> None:
    """The look that followed the XID came too soon for it, and the next poll is an hour away."""
    node = make_node(gpus=2)
    run = ward(node.root, health_clear_seconds=LONG)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    run.look()
    node.state.set_recovery_action(0, GPU_RESET)
    node.state.xid(0, ANNOUNCEMENT)
    run.until(lambda _: reasons(run, "gpu-0") == ["recovery-action", "xid"], "both are known")


def test_what_nothing_confirms_ends_after_a_quiet_time(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.1, health_clear_seconds=4.0)
    node.state.xid(0, 94)
    run.until_health(gpu_0=UNHEALTHY)
    time.sleep(0.5)
    again = time.monotonic()
    node.state.xid(0, 94)  # the quiet time begins anew
    run.until_health(gpu_0=HEALTHY)
    assert time.monotonic() - again >= 4.0


def test_without_a_look_nothing_ends(make_node: MakeNode, ward: MakeWard) -> None:
    """A GPU that can't be asked is not healthy because time passes."""
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.1, health_clear_seconds=0.5)
    node.state.fault(0, "nvmlDeviceGetUUID", error_number("UNKNOWN"), times=0, hang=0)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    time.sleep(1.5)
    assert reasons(run, "gpu-0") == ["xid", "not-answering"]
    node.state.clear()
    run.until_health(gpu_0=HEALTHY)


def test_a_driver_reload_ends_what_events_said(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=LONG)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    node.state.driver_reload()
    run.until_health(gpu_0=HEALTHY)
    node.state.xid(1, 48)
    run.until_health(gpu_0=HEALTHY, gpu_1=UNHEALTHY)  # events are heard in the new driver too
    node.set_driver_version("590.44.01")
    run.until_health(gpu_1=HEALTHY)
    node.state.xid(0, 79)
    run.until_health(gpu_0=UNHEALTHY)


def test_a_new_gpu_ends_nothing(make_node: MakeNode, ward: MakeWard) -> None:
    node = make_node(gpus=2)
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=LONG)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    node.add_gpu("h100-80gb", seed="new")
    run.until(lambda inventory: len(inventory.gpus) == 3, "the new GPU is found")
    assert len(run.sick()) == 1
    for gpu in range(3):
        node.state.xid(gpu, 95)
    run.until(lambda _: len(run.sick()) == 3, "events of old and new GPUs are heard")


def test_a_partition_that_is_made_anew_has_a_new_start(make_node: MakeNode, ward: MakeWard) -> None:
    spec = {"gpus": [{"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]}]}
    node = make_node(spec=NodeSpec.model_validate(spec))
    run = ward(node.root, poll_seconds=0.2, health_clear_seconds=LONG)
    name = "gpu-0-mig-1g10gb-19-0"
    (gi,) = [part.gi_id for part in run.told[-1].gpus[0].partitions]
    node.state.xid(0, 95, gi, 0)
    run.until(lambda _: run.sick() == {name}, "the partition is unhealthy")
    node.state.unpartition(0, gi)
    run.until(lambda _: not run.health(), "it is gone")
    node.state.partition(0, "1g.10gb", 0)
    run.until(lambda _: run.health() != {}, "it is back")
    assert run.sick() == set()


def test_a_partition_that_can_t_be_read_for_a_moment_stays_sick(
    make_node: MakeNode, ward: MakeWard
) -> None:
    spec = {"gpus": [{"model": "h100-80gb", "partitions": [{"profile": "1g.10gb", "start": 0}]}]}
    node = make_node(spec=NodeSpec.model_validate(spec))
    run = ward(node.root, health_clear_seconds=LONG)
    (gi,) = [part.gi_id for part in run.told[-1].gpus[0].partitions]
    node.state.xid(0, 95, gi, 0)
    run.until(lambda _: len(run.sick()) == 1, "unhealthy")
    run.look()  # the one that follows an event is over
    node.state.fault(0, "nvmlGpuInstanceGetInfo", error_number("UNKNOWN"), times=1, hang=0)
    assert run.look().gpus[0].partitions == ()
    run.look()
    assert run.sick() == {"gpu-0-mig-1g10gb-19-0"}


@pytest.mark.parametrize("action", range(1, 8))
def test_a_recovery_action_is_a_reason_and_outlives_the_plugin(
    make_node: MakeNode, ward: MakeWard, action: int
) -> None:
    node = make_node(gpus=2)
    node.state.set_recovery_action(0, action)
    run = ward(node.root)
    assert run.sick() == {"gpu-0"}
    health = run.health()["gpu-0"]
    assert health.reason == condition.RECOVERY_ACTION
    assert health.value
    assert health.message.startswith("the GPU driver asks for ")
    (event,) = run.events()
    assert event.reason == "DeviceUnhealthy"
    node.state.set_recovery_action(0, 0)
    run.look()
    assert run.sick() == set()


def test_an_xid_alone_does_not_outlive_the_plugin(make_node: MakeNode, ward: MakeWard) -> None:
    """Only what the hardware still says is known after a restart; the rest starts clean."""
    node = make_node(gpus=2)
    run = ward(node.root)
    node.state.xid(0, 48)
    run.until_health(gpu_0=UNHEALTHY)
    run.hardware.stop()
    assert ward(node.root).sick() == set()


@pytest.mark.parametrize("error", ["UNKNOWN", "NOT_SUPPORTED"])
def test_a_recovery_action_that_can_t_be_read_any_more(
    make_node: MakeNode, ward: MakeWard, error: str
) -> None:
    """After a failure what was known stays; a driver that lacks the question answers nothing."""
    node = make_node(gpus=2)
    node.state.set_recovery_action(0, GPU_RESET)
    run = ward(node.root)
    node.state.fault(0, "nvmlDeviceGetFieldValues", error_number(error), times=0, hang=0)
    run.look()
    assert run.sick() == ({"gpu-0"} if error == "UNKNOWN" else set())
