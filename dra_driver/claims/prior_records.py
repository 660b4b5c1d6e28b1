"""Records of claims that NVIDIA's driver in Go has prepared: from its words to hardware. Pure.

What can't be found is held all the same: nobody else gets it, and its own claim gets an error.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dra_driver.config import resolve_configs, stored_form
from dra_driver.kube import claim_from_json
from dra_driver.model import (
    AllocatedDevice,
    BadClaim,
    ClaimRef,
    DeviceConfig,
    Gpu,
    GpuPolicy,
    Inventory,
    Partition,
    Partitioning,
    PublishedDevice,
    ResourceClaim,
    Slot,
    Strategy,
)
from dra_driver.model.errors import RecordDamaged
from dra_driver.state import (
    ClaimRecord,
    DeviceRecord,
    Phase,
    PriorClaim,
    PriorDevice,
    PriorKind,
    PriorState,
)
from dra_driver.telemetry import logger

log = logger(__name__)

_PARTITION_NAME: Final = re.compile(r"gpu-(\d+)-mig-[a-z0-9-]*[a-z][a-z0-9-]*-(\d+)-(\d+)")
_GPU_NAME: Final = re.compile(r"gpu-(?:vfio-)?(\d+)(?:-.*)?")
_ANYWHERE: Final = (
    0,
    64,
)  # more memory slices than a GPU has: where a partition stood is not known

MpsFolders = Callable[[str], tuple[str, str]]  # of a control daemon: its sockets, and /dev/shm


@dataclass(frozen=True, slots=True)
class _Found:
    """One device of a claim, as allocated, as prepared, and as it is on the hardware."""

    allocated: AllocatedDevice
    prior: PriorDevice
    gpu: Gpu | None
    partition: Partition | None = None
    slot: Slot | None = None


class PriorRecords:
    """Makes records for claims of one checkpoint, with the hardware as one snapshot has it."""

    def __init__(
        self,
        state: PriorState,
        inventory: Inventory,
        driver_name: str,
        pool: str,
        mps_folders: MpsFolders,
    ) -> None:
        """Take part in nothing: `pool` is the one that the driver before gave its devices."""
        self._inventory = inventory
        self._driver_name = driver_name
        self._pool = pool
        self._mps_folders = mps_folders
        self._boot_id = state.boot_id
        known = [device for claim in state.claims for device in claim.devices]
        self._prior_uuids = {device.uuid for device in known}
        self._prior_names = {name for claim in state.claims for name in claim.names}

    def completed(self, claim: PriorClaim) -> ClaimRecord:
        """Record of a claim whose containers may run; raises RecordDamaged when it tells nothing.

        `cdi_ids` are left to the caller.
        """
        of_api = self._as_api_has_it(claim)
        if not claim.devices and of_api.devices:
            raise RecordDamaged("it has devices, and does not tell which")
        found = [self._find(each, prior) for each, prior in _paired(of_api.devices, claim.devices)]
        sharing = _sharing(of_api, found)
        devices = [self._device(each, shared) for each, shared in zip(found, sharing, strict=True)]
        return self._record(
            claim, Phase.PREPARED, devices, tuple(self._left_behind(found, devices))
        )

    def begun(self, claim: PriorClaim) -> ClaimRecord | None:
        """Record of a claim whose Prepare was cut off; None when it has left nothing.

        Only a partition made on request may be left. It is found by its name.
        """
        allocated = self._as_api_has_it(claim).devices
        prior = [
            PriorDevice(PriorKind.MIG, each.device, each.pool, each.request, uuid="")
            for each in allocated
            if not each.admin_access
        ]
        found = [self._find(each, own) for each, own in _paired(allocated, prior)]
        devices = [self._device(each, None) for each in found if each.partition is not None]
        made = [device for device in devices if device.made]
        return self._record(claim, Phase.PREPARING, made, ()) if made else None

    def _as_api_has_it(self, claim: PriorClaim) -> ResourceClaim:
        """Allocation and configs, as far as the checkpoint has them in a form that is right."""
        ref = ClaimRef(claim.namespace, claim.name, claim.uid)
        named = {"namespace": claim.namespace or "-", "name": claim.name or "-", "uid": claim.uid}
        obj = {"metadata": named, "status": claim.status}
        try:
            return replace(claim_from_json(obj, self._driver_name, self._pool), ref=ref)
        except BadClaim as error:
            log.warning("the allocation of a claim is not known", claim=ref, err=error)
            return ResourceClaim(ref, ())

    def _find(self, allocated: AllocatedDevice, prior: PriorDevice) -> _Found:
        if prior.kind is not PriorKind.MIG:
            return _Found(allocated, prior, self._inventory.gpu(prior.uuid))
        for owner in self._inventory.gpus:
            for part in owner.partitions:
                if prior.uuid and part.uuid == prior.uuid:
                    return _Found(allocated, prior, owner, part)
        gpu = self._by_parent(prior)
        name = _PARTITION_NAME.fullmatch(prior.name)
        if gpu is None or name is None:
            return _Found(allocated, prior, gpu)
        profile, start = int(name[2]), int(name[3])
        slot = next((each for each in _slots(gpu) if _is_at(each, profile, start)), None)
        there = next((each for each in gpu.partitions if slot and _stands_at(each, slot)), None)
        return _Found(allocated, prior, gpu, there, slot)

    def _by_parent(self, prior: PriorDevice) -> Gpu | None:
        if prior.parent_uuid:
            return self._inventory.gpu(prior.parent_uuid)
        minor = _minor(prior.name)  # an old release tells no more
        return next((gpu for gpu in self._inventory.gpus if gpu.minor == minor), None)

    def _device(self, found: _Found, sharing: dict[str, Any] | None) -> DeviceRecord:
        allocated, prior, gpu = found.allocated, found.prior, found.gpu
        gpu_uuid = gpu.uuid if gpu else prior.parent_uuid or prior.uuid
        record = DeviceRecord(
            request=allocated.request,
            pool=allocated.pool,
            device=allocated.device,
            share_id=allocated.share_id,
            admin_access=allocated.admin_access,
            gpu_uuid=gpu_uuid,
            gpu_minor=gpu.minor if gpu else _minor(prior.name),
            uuid=prior.uuid or gpu_uuid,
            sharing=sharing,
            mps_folders=self._mps_folders(prior.mps_daemon) if prior.mps_daemon else None,
        )
        if prior.kind is not PriorKind.MIG:
            return record
        return record.model_copy(update=self._place(found))

    def _place(self, found: _Found) -> Mapping[str, Any]:
        """Fields of a partition's record."""
        made = self._is_made(found.gpu)
        fields = {"made": made, "may_reset": made and _allows_reset(found.gpu)}
        if found.partition is not None:
            part = found.partition
            return fields | {
                "placement": (part.placement.start, part.placement.size),
                "gi_profile_id": part.profile.gi_profile_id,
                "ci_profile_id": part.profile.ci_profile_id,
                "gi_id": part.gi_id,
                "ci_id": part.ci_id,
                "uuid": part.uuid or "",
            }
        if found.slot is not None:
            profile, placement = found.slot.profile, found.slot.placement
            return fields | {
                "placement": (placement.start, placement.size),
                "gi_profile_id": profile.gi_profile_id,
            }
        return {"placement": _ANYWHERE}

    def _is_made(self, gpu: Gpu | None) -> bool:
        """Whether partitions of the GPU are this driver's to remove when their claims end.

        The checkpoint does not tell those that were made on request. They are where this driver is
        told to make them, too, unless one stands there that no claim has: then somebody else cuts
        the GPU.
        """
        if gpu is None or gpu.policy.partitioning is not Partitioning.DYNAMIC:
            return False
        return all(self._is_prior(gpu, part) for part in gpu.partitions)

    def _is_prior(self, gpu: Gpu, part: Partition) -> bool:
        if part.uuid in self._prior_uuids:
            return True
        place = (gpu.minor, part.profile.gi_profile_id, part.placement.start)
        names = (_PARTITION_NAME.fullmatch(name) for name in self._prior_names)
        return any(name and tuple(map(int, name.groups())) == place for name in names)

    def _record(
        self,
        claim: PriorClaim,
        phase: Phase,
        devices: Iterable[DeviceRecord],
        left: tuple[str, ...],
    ) -> ClaimRecord:
        return ClaimRecord(
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            phase=phase,
            boot_id=self._boot_id,
            planned=int(time.time()),
            devices=tuple(devices),
            taken_over=True,
            left_behind=left,
        )

    def _left_behind(self, found: list[_Found], devices: list[DeviceRecord]) -> Iterable[str]:
        """Say what stays of the driver before when the claim has ended, and who can remove it."""
        for daemon in dict.fromkeys(each.prior.mps_daemon for each in found):
            if daemon:
                _, shm = self._mps_folders(daemon)
                yield (
                    f"Deployment mps-control-daemon-{daemon} of the driver before still runs: "
                    f"delete it, then on the node: umount {shm}"
                )
        for each, device in zip(found, devices, strict=True):
            if each.prior.kind is PriorKind.VFIO:
                yield f"GPU {device.gpu_uuid} stays bound to vfio-pci; bind it to nvidia again"
            elif each.prior.kind is PriorKind.MIG and not device.made:
                yield (
                    f"partition {device.device} stays: no rule with mode Dynamic says that it was "
                    "made for the claim; if it was, remove it with nvidia-smi mig -dci and -dgi"
                )


def _paired(
    allocated: Iterable[AllocatedDevice], prepared: Iterable[PriorDevice]
) -> list[tuple[AllocatedDevice, PriorDevice]]:
    """Give allocated devices in their order with what was prepared, then what else was prepared."""
    by_name = {each.name: each for each in prepared}
    pairs = [(each, by_name[each.device]) for each in allocated if each.device in by_name]
    told = {each.device for each, _ in pairs}
    return pairs + [
        (AllocatedDevice(each.request, each.pool, each.name), each)
        for name, each in by_name.items()
        if name not in told
    ]


def _sharing(claim: ResourceClaim, found: list[_Found]) -> list[dict[str, Any] | None]:
    """Time-slices that were set, as records have them; MPS is the other driver's own."""
    devices = [_published(each) for each in found]
    allocated = tuple(each.allocated for each in found)
    claim = replace(claim, devices=allocated, configs=tuple(_known(claim.configs)))
    try:
        resolved = resolve_configs(claim, devices).devices
    except BadClaim as error:
        log.warning("how a claim shares its devices is not known", claim=claim.ref, err=error)
        return [None] * len(found)
    return [
        stored_form(each.settings) if each and each.settings.strategy is not Strategy.MPS else None
        for each in resolved
    ]


def _known(configs: Iterable[DeviceConfig]) -> Iterable[DeviceConfig]:
    """Yield the configs that this driver has as well: not those for vfio-pci."""
    return (each for each in configs if each.parameters.get("kind") != "VfioDeviceConfig")


def _published(found: _Found) -> PublishedDevice:
    """Device without anything that the node configuration says: it was not there then."""
    gpu = found.gpu or Gpu(found.prior.uuid, _minor(found.prior.name), "")
    gpu = replace(gpu, policy=GpuPolicy())
    slot = found.slot
    if found.partition is not None:
        slot = Slot(found.partition.profile, found.partition.placement)
    return PublishedDevice(found.prior.name, gpu, slot, found.partition)


def _slots(gpu: Gpu) -> Iterable[Slot]:
    yield from (Slot(part.profile, part.placement) for part in gpu.partitions)
    yield from gpu.slots


def _is_at(slot: Slot, profile: int, start: int) -> bool:
    return (slot.profile.gi_profile_id, slot.placement.start) == (profile, start)


def _stands_at(part: Partition, slot: Slot) -> bool:
    place = (slot.profile.gi_profile_id, slot.placement)
    return (part.profile.gi_profile_id, part.placement) == place


def _minor(name: str) -> int:
    found = _GPU_NAME.fullmatch(name)
    return int(found[1]) if found else 0


def _allows_reset(gpu: Gpu | None) -> bool:
    return gpu is not None and gpu.policy.allow_reset
