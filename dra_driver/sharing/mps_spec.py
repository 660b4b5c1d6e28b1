"""What one control daemon of MPS is to serve and how: the words of plugin and agent alike."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dra_driver.model.errors import ConfigInvalid
from dra_driver.rpc import mps_v1_pb2 as pb

MIB: Final = 2**20
# What containers have where nobody says otherwise (containerd, runc).
DEFAULT_SHM_BYTES: Final = 64 * MIB

_ID: Final = re.compile(r"[0-9a-f]{16}")
_GPU: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_DEVICE: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,96}")
_LABEL: Final = re.compile(r"[a-zA-Z0-9_.:,-]{0,255}")
_MOST_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class MpsDevice:
    """One device of a daemon."""

    uuid: str  # of the GPU or of the partition
    gpu_uuid: str
    limit_mib: int | None = None  # that each client may pin of it; None: all


@dataclass(frozen=True, slots=True)
class MpsSpec:
    """A set of devices that have one daemon; their places are the daemon's ordinals."""

    id: str
    devices: tuple[MpsDevice, ...]
    thread_percentage: int | None = None
    multi_user: bool = False
    shm_bytes: int = DEFAULT_SHM_BYTES
    selinux_label: str = ""

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the devices, in the daemon's order."""
        return tuple(device.uuid for device in self.devices)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that the devices are, or are parts of."""
        return tuple(sorted({device.gpu_uuid for device in self.devices}))

    def __str__(self) -> str:
        return f"MPS set {self.id} ({', '.join(self.uuids)})"

    def check(self) -> None:
        """Raise ConfigInvalid for what can't be right: ids become paths, the rest arguments."""
        problems = {
            "id": not _ID.fullmatch(self.id),
            "devices": not self.devices or len(set(self.uuids)) < len(self.devices),
            "device UUID": not all(map(_DEVICE.fullmatch, self.uuids)),
            "GPU UUID": not all(map(_GPU.fullmatch, self.gpus)),
            "pinned memory limit": any(device.limit_mib == 0 for device in self.devices),
            "thread percentage": (self.thread_percentage or 0) > _MOST_PERCENT,
            "shm size": self.shm_bytes < MIB,
            "SELinux label": not _LABEL.fullmatch(self.selinux_label),
        }
        for field, is_wrong in problems.items():
            if is_wrong:
                raise ConfigInvalid(f"MPS set {self.id!r}: {field} is not allowed")

    def differences(self, other: "MpsSpec") -> Iterator[str]:
        """Yield what a running daemon of `other` would have to be ended for, in words."""
        if self.uuids != other.uuids:
            yield f"devices: {', '.join(self.uuids)} against {', '.join(other.uuids)}"
        for name in ("multi_user", "shm_bytes", "selinux_label"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                yield f"{name}: {mine!r} against {theirs!r}"
        if self.thread_percentage is None and other.thread_percentage is not None:
            yield f"thread_percentage: not set against {other.thread_percentage}"
        for mine, theirs in zip(self.devices, other.devices, strict=False):
            if mine.limit_mib is None and theirs.limit_mib is not None:
                yield f"limit of {mine.uuid}: not set against {theirs.limit_mib}M"


def set_id(devices: Iterable[str]) -> str:
    """Id of a set of devices, each named by what stays when it is made anew."""
    return hashlib.sha256("\n".join(sorted(set(devices))).encode()).hexdigest()[:16]


def to_message(spec: MpsSpec) -> pb.Set:
    """Set as it goes over the socket."""
    return pb.Set(
        id=spec.id,
        devices=[
            pb.Device(
                uuid=device.uuid,
                gpu_uuid=device.gpu_uuid,
                pinned_memory_limit_mib=device.limit_mib or 0,
            )
            for device in spec.devices
        ],
        active_thread_percentage=spec.thread_percentage,
        multi_user=spec.multi_user,
        shm_bytes=spec.shm_bytes,
        selinux_label=spec.selinux_label,
    )


def from_message(message: pb.Set) -> MpsSpec:
    """Set as it came over the socket."""
    has_percentage = message.HasField("active_thread_percentage")
    return MpsSpec(
        id=message.id,
        devices=tuple(
            MpsDevice(device.uuid, device.gpu_uuid, device.pinned_memory_limit_mib or None)
            for device in message.devices
        ),
        thread_percentage=message.active_thread_percentage if has_percentage else None,
        multi_user=message.multi_user,
        shm_bytes=message.shm_bytes or DEFAULT_SHM_BYTES,
        selinux_label=message.selinux_label,
    )
