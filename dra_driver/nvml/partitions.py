"""MIG partitions of one GPU as they are, whoever made them.

GPU instances are enumerated themselves, since one without compute instance has no MIG device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pynvml

from dra_driver.model import MigProfile, Partition, Placement
from dra_driver.nvml import reads
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.errors import CallFailed, Notes

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_NO_PROFILE: Final = -1  # not known before there is a GPU instance, or there is none that spans it
_EIGHTHS: Final = 8  # NVIDIA counts a partition's memory in eighths of the GPU

# What the variants of a slice count are called (nvml.h: NVML_GPU_INSTANCE_PROFILE_…).
_SUFFIXES: Final[dict[int, str]] = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}


def profile_name(index: int, info: Any, memory_bytes: int | None) -> str:  # noqa: ANN401
    """Name of a GPU-instance profile: the driver's own text, or as NVIDIA computes it.

    The text is exact and needs no rule; drivers whose profile info is of version 1 have none
    (field reports dra #1480, op #351).
    """
    text = str(getattr(info, "name", "")).removeprefix("MIG ").strip()
    if text:
        return text
    size = _gigabytes(info.memorySizeMB, memory_bytes)
    return f"{info.sliceCount}g.{size}gb{_SUFFIXES.get(index, '')}"


def _gigabytes(profile_mib: int, memory_bytes: int | None) -> int:
    """Round as NVIDIA does: the GPU's memory in full GiB, times the next full eighth of it."""
    if not memory_bytes:
        return math.ceil(profile_mib * _MIB / _GIB)
    eighths = math.ceil(profile_mib * _MIB / memory_bytes * _EIGHTHS)
    return math.floor(eighths * math.ceil(memory_bytes / _GIB) / _EIGHTHS + 0.5)


def mig_profile(index: int, info: Any, memory_bytes: int | None) -> MigProfile:  # noqa: ANN401
    """GPU-instance profile as NVML describes it; which compute instance spans it is left open."""
    return MigProfile(
        name=profile_name(index, info, memory_bytes),
        gi_profile_id=info.id,
        ci_profile_id=_NO_PROFILE,
        memory_bytes=info.memorySizeMB * _MIB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
    )


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads the partitions of one GPU; what fails costs that partition or profile only."""

    device: Handle
    gpu_uuid: str
    memory_bytes: int | None  # of the GPU; names need it where the driver has no text
    notes: Notes

    def read(self) -> tuple[Partition, ...]:
        """All GPU instances, by placement. Raises CallFailed when the GPU lists no profiles."""
        uuids = self._uuids()
        found: list[Partition] = []
        for index, info in reads.gi_profiles(self.device):
            profile = mig_profile(index, info, self.memory_bytes)
            for instance in self._listed(profile):
                try:
                    gi = reads.gpu_instance(instance)
                except CallFailed as failure:
                    self.notes.failed(failure, f"one {profile.name} partition is left out")
                    continue
                found.append(self._partition(profile, info.sliceCount, instance, gi, uuids))
        return tuple(sorted(found, key=lambda part: (part.placement.start, part.gi_id)))

    def _listed(self, profile: MigProfile) -> list[Handle]:
        try:
            return reads.gpu_instances(self.device, profile.gi_profile_id)
        except CallFailed as failure:
            self.notes.failed(failure, f"partitions of profile {profile.name} are left out")
            return []

    def _partition(
        self,
        profile: MigProfile,
        slices: int,
        instance: Handle,
        gi: Any,  # noqa: ANN401
        uuids: Mapping[tuple[int, int], str],
    ) -> Partition:
        """Describe one GPU instance; without usable compute instance it only takes up its place."""
        subject = f"GPU instance {gi.id} ({profile.name})"
        ci_id, ci_profile_id, uuid = None, _NO_PROFILE, None
        try:
            ci_id, ci_profile_id = self._spanning(instance, slices)
        except CallFailed as failure:
            self.notes.failed(failure, f"{subject} is not given out")
        if ci_id is not None:
            uuid = uuids.get((gi.id, ci_id))
        elif any(gi_id == gi.id for gi_id, _ in uuids):
            self.notes.say(f"{subject} is cut into smaller compute instances; it is not given out")
        return Partition(
            parent_uuid=self.gpu_uuid,
            profile=replace(profile, ci_profile_id=ci_profile_id),
            placement=Placement(gi.placement.start, gi.placement.size),
            gi_id=gi.id,
            ci_id=ci_id if uuid else None,
            uuid=uuid,
        )

    def _spanning(self, instance: Handle, slices: int) -> tuple[int | None, int]:
        """Id and profile id of the compute instance that takes all `slices` of a GPU instance.

        Several profiles span a GPU instance of seven slices, under one name; which one is in use
        says the instance itself (field report dra #1480). Without instance: the first that spans.
        """
        first = _NO_PROFILE
        for _, info in reads.ci_profiles(instance):
            if info.sliceCount != slices:
                continue
            first = info.id if first == _NO_PROFILE else first
            try:
                handles = reads.compute_instances(instance, info.id)
            except CallFailed as failure:
                if not failure.absent:
                    raise
                continue
            if handles:
                compute_instance = reads.compute_instance(handles[0])
                return compute_instance.id, compute_instance.profileId
        return None, first

    def _uuids(self) -> dict[tuple[int, int], str]:
        """UUIDs of the MIG devices by ids of GPU instance and compute instance."""
        uuids: dict[tuple[int, int], str] = {}
        try:
            for mig_device in reads.mig_devices(self.device):
                try:
                    uuids[reads.mig_device_ids(mig_device)] = reads.uuid(mig_device)
                except CallFailed as failure:
                    self.notes.failed(failure, "one partition is not given out")
        except CallFailed as failure:
            self.notes.failed(failure, "partitions are not given out")
        return uuids
