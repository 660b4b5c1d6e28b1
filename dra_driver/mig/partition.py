"""What is done to one GPU: a partition made or removed, MIG mode switched. Runs as one job.

Each change is passed by a failpoint before and after it, so that tests can kill the process there:
`mig-mode`, `gpu-instance`, `compute-instance`, `remove-compute-instance`, `remove-gpu-instance`.
"""

import time
from collections.abc import Callable
from typing import Final

from dra_driver.host import failpoint
from dra_driver.mig import refusals
from dra_driver.model import DriverError
from dra_driver.model.errors import Bug, HardwareBusy, HardwareFailed
from dra_driver.model.gpu import Placement
from dra_driver.nvml import ComputeInstance, GpuInstance, MigGpu
from dra_driver.state import DeviceRecord
from dra_driver.telemetry import logger

_PATIENCE_SECONDS: Final = 3.0  # for an instance to be let go of: its container has just ended
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5

_log = logger(__name__)


def check(gpu: MigGpu, device: DeviceRecord) -> None:
    """Raise HardwareBusy when an instance stands in the way of a device not made yet."""
    in_the_way = _overlapping(gpu, device)
    if in_the_way:
        raise refusals.taken(gpu, device, in_the_way)


def make(gpu: MigGpu, device: DeviceRecord) -> DeviceRecord:
    """Give the GPU the shape that the device needs; gives its record with what was found out."""
    if device.span is None:
        _make_whole(gpu, device)
        return device.model_copy(update={"gpu_minor": gpu.minor()})
    was_on, _ = gpu.mig_mode()
    created: GpuInstance | None = None
    try:
        if not was_on:
            gpu.check_time()
            switch(gpu, device, on=True)
        instance = gpu.instance(*_slot(device))
        if instance is None:
            instance = created = _create(gpu, device)
        compute = _spanning(gpu, device, instance)
        described = _described(gpu, device, instance, compute)
        gpu.check_time()  # nobody waits for it any more: it is taken back
    except BaseException:
        if created is not None:
            _try_to(gpu, lambda: remove_instance(gpu, device))
        if not was_on:
            _try_to(gpu, lambda: leave_mig_mode(gpu, device))
        raise
    return described


def remove(gpu: MigGpu, device: DeviceRecord) -> None:
    """Remove the device's partition if it is there, and leave MIG mode when it was the last."""
    remove_instance(gpu, device)
    _try_to(gpu, lambda: leave_mig_mode(gpu, device))


def _make_whole(gpu: MigGpu, device: DeviceRecord) -> None:
    if gpu.mig_mode()[0]:
        check(gpu, device)
        switch(gpu, device, on=False)


def _described(
    gpu: MigGpu, device: DeviceRecord, instance: GpuInstance, compute: ComputeInstance
) -> DeviceRecord:
    return device.model_copy(
        update={
            "gpu_minor": gpu.minor(),
            "uuid": gpu.mig_uuid(instance, compute),
            "gi_id": instance.id,
            "ci_id": compute.id,
            "ci_profile_id": compute.profile_id,
        }
    )


def _create(gpu: MigGpu, device: DeviceRecord) -> GpuInstance:
    gpu.check_time()
    failpoint("before-gpu-instance")
    try:
        made = gpu.create_instance(*_slot(device))
    except HardwareBusy as error:  # INSUFFICIENT_RESOURCES, says nvml.h: something is in the way
        raise refusals.no_room(gpu, device, _overlapping(gpu, device), error) from error
    failpoint("after-gpu-instance")
    return made


def _spanning(gpu: MigGpu, device: DeviceRecord, instance: GpuInstance) -> ComputeInstance:
    """Compute instance that takes all of a GPU instance; made when there is none at all."""
    there = gpu.compute_instances(instance)
    for compute in there:
        if compute.spans:
            return compute
    if there:
        raise refusals.cut_up(gpu, device, instance)
    gpu.check_time()
    failpoint("before-compute-instance")
    made = gpu.create_spanning(instance)
    failpoint("after-compute-instance")
    return made


def switch(gpu: MigGpu, device: DeviceRecord, *, on: bool) -> None:
    """Switch MIG mode, which is the other now; raises BadNode where that is not allowed."""
    if not _may_switch(gpu, device):
        raise refusals.needs_reset(gpu, on=on)
    failpoint("before-mig-mode")
    try:
        gpu.switch_mig_mode(on=on)
    except HardwareBusy as error:
        raise refusals.held(error, gpu.users()) from error
    failpoint("after-mig-mode")


def _may_switch(gpu: MigGpu, device: DeviceRecord) -> bool:
    return device.may_reset or gpu.switches_without_reset()


def leave_mig_mode(gpu: MigGpu, device: DeviceRecord) -> None:
    """Switch MIG mode off if no instance is left and that is allowed."""
    if gpu.mig_mode()[0] and not gpu.instances() and _may_switch(gpu, device):
        switch(gpu, device, on=False)


def remove_instance(gpu: MigGpu, device: DeviceRecord) -> None:
    """Remove what stands at exactly the device's place; waits a little for who still uses it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    pause = _FIRST_PAUSE
    was_removed = False
    while (instance := gpu.instance(*_slot(device))) is not None:
        if was_removed and time.monotonic() > deadline:  # the GPU's thread must not stay for ever
            raise HardwareFailed(
                f"{device.device} of GPU {gpu.uuid} is there again whenever it was removed; see "
                "who makes it, or whether nvidia-smi mig -dgi can remove it"
            )
        try:
            _destroy(gpu, instance)
            was_removed = True
        except HardwareBusy as error:
            if time.monotonic() + pause > deadline:
                raise refusals.held(error, gpu.users(instance)) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except HardwareFailed:
            if gpu.instance(*_slot(device)) is not None:  # else somebody was faster
                raise


def _destroy(gpu: MigGpu, instance: GpuInstance) -> None:
    for compute in gpu.compute_instances(instance):
        failpoint("before-remove-compute-instance")
        gpu.destroy_compute(compute)
        failpoint("after-remove-compute-instance")
    failpoint("before-remove-gpu-instance")
    gpu.destroy_instance(instance)
    failpoint("after-remove-gpu-instance")


def _overlapping(gpu: MigGpu, device: DeviceRecord) -> list[GpuInstance]:
    """All instances that the device would share memory slices with; the whole GPU has all."""
    return [
        each
        for each in gpu.instances()
        if device.span is None or each.placement.overlaps(device.span)
    ]


def _slot(device: DeviceRecord) -> tuple[int, Placement]:
    if device.gi_profile_id is None or device.span is None:
        raise Bug(f"the record of {device.device} has a placement or profile only, not both")
    return device.gi_profile_id, device.span


def _try_to(gpu: MigGpu, work: Callable[[], None]) -> None:
    """Do what may fail without harm: Unprepare or the next Prepare comes by here again."""
    try:
        work()
    except DriverError as error:
        _log.warning("something is left as it is", gpu=gpu.uuid, err=error)
