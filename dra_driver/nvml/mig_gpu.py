"""One GPU as seen by a job that looks at its MIG instances and changes them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pynvml

from dra_driver.host import HostProcess, HostRoot
from dra_driver.model import BadNode, Placement
from dra_driver.model.errors import HardwareBusy, HardwareFailed
from dra_driver.nvml import reads, writes
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.errors import CallFailed, GpuAbsent
from dra_driver.nvml.partitions import profile_name

_HOPPER: Final[int] = pynvml.NVML_DEVICE_ARCH_HOPPER
_ACTIVATION: Final = "the activation of nvmlDeviceSetMigMode"


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that stands now; `handle` is for this job only."""

    id: int
    profile_id: int
    placement: Placement
    handle: Handle = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance; `spans` says that it takes all of its GPU instance."""

    id: int
    profile_id: int
    spans: bool
    handle: Handle = field(repr=False, compare=False)


class MigGpu:
    """The NVML calls of one job, each of whose failures is a model error that names the GPU.

    Lives on the GPU's worker thread while its job runs. Raises GpuLost, HardwareBusy (in use, no
    room), HardwareFailed, PermissionMissing or DriverNotReady.
    """

    def __init__(self, uuid: str, device: Handle, host: HostRoot, deadline: float) -> None:
        """Take the GPU's handle; `deadline` is in monotonic seconds."""
        self.uuid = uuid
        self._device = device
        self._host = host
        self._deadline = deadline
        self._compute_profiles: dict[int, tuple[tuple[int, bool], ...]] = {}

    def check_time(self) -> None:
        """Raise HardwareBusy when the job's time is up: whoever wanted it has gone."""
        if time.monotonic() > self._deadline:
            raise HardwareBusy(f"GPU {self.uuid} took too long; what is left to do is not begun")

    def mig_mode(self) -> tuple[bool, bool]:
        """Whether MIG mode is on, and whether it will be after a reset; never without MIG."""
        try:
            return reads.mig_mode(self._device)
        except CallFailed as failure:
            if failure.absent:
                return False, False
            raise failure.explained(f"GPU {self.uuid}") from failure

    def switches_without_reset(self) -> bool:
        """Whether this kind of GPU switches MIG mode at once: Hopper and later do."""
        with self._explaining():
            return reads.architecture(self._device) >= _HOPPER

    def minor(self) -> int:
        """N of `/dev/nvidiaN`, which a switch of MIG mode may have changed."""
        with self._explaining():
            return reads.minor(self._device)

    def switch_mig_mode(self, *, on: bool) -> None:
        """Switch the mode, which is the other now; nothing stays pending when that fails.

        Raises HardwareBusy while somebody uses the GPU, BadNode when it takes a reset.
        """
        with self._explaining():
            status = writes.set_mig_mode(self._device, on=on)
        try:
            self._check_switched(status, on=on)
        except Exception:
            with suppress(CallFailed):
                writes.set_mig_mode(self._device, on=not on)
            raise

    def instances(self) -> tuple[GpuInstance, ...]:
        """All GPU instances, whoever made them; none while MIG mode is off."""
        if not self.mig_mode()[0]:
            return ()
        with self._explaining():
            return tuple(
                _described(handle)
                for _, info in reads.gi_profiles(self._device)
                for handle in reads.gpu_instances(self._device, info.id)
            )

    def instance(self, profile_id: int, place: Placement) -> GpuInstance | None:
        """GPU instance of exactly that profile and place, None when there is none."""
        if not self.mig_mode()[0]:
            return None
        try:
            found = [*map(_described, reads.gpu_instances(self._device, profile_id))]
        except CallFailed as failure:
            if not failure.past_the_end:
                raise failure.explained(f"GPU {self.uuid}") from failure
            found = [gi for gi in self.instances() if gi.profile_id == profile_id]
        return next((gi for gi in found if gi.placement == place), None)

    def create_instance(self, profile_id: int, place: Placement) -> GpuInstance:
        """Make a GPU instance; raises HardwareBusy when something takes up its place."""
        with self._explaining():
            handle = writes.create_gpu_instance(self._device, profile_id, place)
            try:
                return _described(handle)
            except CallFailed:
                writes.destroy_gpu_instance(handle)
                raise

    def destroy_instance(self, instance: GpuInstance) -> None:
        """Remove a GPU instance that has no compute instance; HardwareBusy while it is in use."""
        with self._explaining():
            writes.destroy_gpu_instance(instance.handle)

    def compute_instances(self, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
        """All compute instances of a GPU instance."""
        with self._explaining():
            return tuple(
                _compute(handle, spans=spans)
                for profile_id, spans in self._profiles_of(instance)
                for handle in _listed(instance.handle, profile_id)
            )

    def create_spanning(self, instance: GpuInstance) -> ComputeInstance:
        """Make the compute instance that takes all of a GPU instance.

        Several profiles of one name may span it, of which some can't be made (field report dra
        #1480): they are tried in NVML's order.
        """
        with self._explaining():
            spanning = [profile_id for profile_id, spans in self._profiles_of(instance) if spans]
            return _first_possible(instance.handle, spanning)

    def destroy_compute(self, compute: ComputeInstance) -> None:
        """Remove a compute instance; raises HardwareBusy while it is in use."""
        with self._explaining():
            writes.destroy_compute_instance(compute.handle)

    def mig_uuid(self, instance: GpuInstance, compute: ComputeInstance) -> str:
        """UUID of the MIG device that a compute instance is; raises HardwareFailed without one."""
        with self._explaining():
            for device in reads.mig_devices(self._device):
                if reads.mig_device_ids(device) == (instance.id, compute.id):
                    return reads.uuid(device)
        raise HardwareFailed(
            f"GPU {self.uuid}: compute instance {compute.id} of GPU instance {instance.id} has no "
            "MIG device; check /dev/nvidia-caps and that the plugin is privileged"
        )

    def set_exclusive(self, uuid: str, *, on: bool) -> bool:
        """Let one process at a time compute on it, or any number; gives whether that is news.

        `uuid` is the GPU's or that of a partition, which has a mode of its own (nvml.h). What has
        no modes stays as it is. Raises GpuAbsent when there is no such partition (any more).
        """
        mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if on else pynvml.NVML_COMPUTEMODE_DEFAULT
        try:
            device = self._device if uuid == self.uuid else self._mig_device(uuid)
            if reads.compute_mode(device) == mode:
                return False
            writes.set_compute_mode(device, mode)
        except CallFailed as failure:
            if failure.absent:
                return False
            raise failure.explained(f"the compute mode of {uuid}") from failure
        return True

    def limit_memory(self, cgroup: str, limit: int | None) -> None:
        """Let a cgroup's processes together allocate so many bytes on the GPU; None: no limit."""
        with self._explaining():
            writes.set_memory_limit(self._device, cgroup, limit)

    def memory_limit(self, cgroup: str) -> int | None:
        """Bytes that a cgroup's processes may allocate on the GPU; None: no limit is set."""
        with self._explaining():
            return reads.memory_limit(self._device, cgroup)

    def profile_name(self, profile_id: int) -> str:
        """Name of a GPU-instance profile, as `1g.10gb`; its number where NVML does not know it."""
        with suppress(CallFailed):
            for index, info in reads.gi_profiles(self._device):
                if info.id == profile_id:
                    return profile_name(index, info, reads.memory_bytes(self._device))
        return f"profile {profile_id}"

    def processes(self) -> tuple[HostProcess, ...]:
        """Tell who computes or draws on the GPU or a partition of it; monitors do neither."""
        with self._explaining():
            pids = reads.running_processes(self._device)
        return tuple(self._host.process(pid) for pid in sorted(pids))

    def users(self, instance: GpuInstance | None = None) -> tuple[HostProcess, ...]:
        """Tell who is on the GPU, or on one instance: as NVML knows, else who has its device open.

        Monitors hold a GPU without computing on it; NVML lists those only that compute.
        """
        pids: list[int] = []
        with suppress(CallFailed):
            running = reads.running_processes(self._device)
            on_it = [pid for pid, gis in running.items() if instance and instance.id in gis]
            pids = sorted(on_it or running)
        if pids:
            return tuple(self._host.process(pid) for pid in pids)
        with suppress(CallFailed):
            return self._host.users_of(f"/dev/nvidia{reads.minor(self._device)}")
        return ()

    def _mig_device(self, uuid: str) -> Handle:
        if self.mig_mode()[0]:
            for device in reads.mig_devices(self._device):
                if reads.uuid(device) == uuid:
                    return device
        raise GpuAbsent(f"there is no partition {uuid} on GPU {self.uuid} (any more)")

    def _profiles_of(self, instance: GpuInstance) -> tuple[tuple[int, bool], ...]:
        """Compute-instance profiles that a GPU instance has, and whether each spans it.

        They go by the profile of the GPU instance, so each job asks once: it takes ten calls.
        """
        if instance.profile_id not in self._compute_profiles:
            infos = [info for _, info in reads.ci_profiles(instance.handle)]
            most = max((info.sliceCount for info in infos), default=0)
            found = tuple((int(info.id), info.sliceCount == most) for info in infos)
            self._compute_profiles[instance.profile_id] = found
        return self._compute_profiles[instance.profile_id]

    def _check_switched(self, status: int, *, on: bool) -> None:
        word, flag = ("on", 1) if on else ("off", 0)
        if status == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise BadNode(
                f"MIG mode of GPU {self.uuid} can't be switched {word} while the node runs: that "
                f"takes a reset of the GPU; do it by hand: nvidia-smi -i {self.uuid} -mig {flag}, "
                "then reset the GPU or reboot the node"
            )
        if status != pynvml.NVML_SUCCESS:
            failure = CallFailed(_ACTIVATION, status)
            raise failure.explained(f"MIG mode of GPU {self.uuid} can't be switched {word}")
        if self.mig_mode()[0] is not on:
            raise HardwareFailed(
                f"MIG mode of GPU {self.uuid} is not {word}, though nvmlDeviceSetMigMode answered "
                "that it is; look at the kernel log of the node"
            )

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except CallFailed as failure:
            raise failure.explained(f"GPU {self.uuid}") from failure


def _described(handle: Handle) -> GpuInstance:
    info = reads.gpu_instance(handle)
    place = Placement(int(info.placement.start), int(info.placement.size))
    return GpuInstance(int(info.id), int(info.profileId), place, handle)


def _compute(handle: Handle, *, spans: bool) -> ComputeInstance:
    info = reads.compute_instance(handle)
    return ComputeInstance(int(info.id), int(info.profileId), spans, handle)


def _listed(instance: Handle, profile_id: int) -> list[Handle]:
    """Compute instances of a profile; of one that the GPU lacks after all there are none."""
    try:
        return reads.compute_instances(instance, profile_id)
    except CallFailed as failure:
        if failure.absent:
            return []
        raise


def _first_possible(instance: Handle, profile_ids: list[int]) -> ComputeInstance:
    """Make the first of these compute instances that can be made; raises why none can be."""
    failures: list[CallFailed] = []
    for profile_id in profile_ids:
        try:
            handle = writes.create_compute_instance(instance, profile_id)
        except CallFailed as failure:
            if failure.lost or failure.driver_gone:
                raise
            failures.append(failure)
        else:
            return _compute(handle, spans=True)
    missing = CallFailed(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo", pynvml.NVML_ERROR_NOT_SUPPORTED
    )
    raise min(failures, key=lambda failure: failure.absent, default=missing)
