"""CDI kinds, device ids and file names; whatever becomes part of a path is checked here."""

import re
from dataclasses import dataclass
from typing import Final

from dra_driver.model.errors import Bug

COMMON: Final = "common"
_CLAIM_CLASS: Final = "claim"
_COMMON_CLASS: Final = "driver"
# Kubernetes UIDs, device names and share ids all fit in here. No dot and no slash: a name can't
# leave its folder.
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,251}[A-Za-z0-9])?"
_NAME_PATTERN: Final = re.compile(_NAME)
_UID: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_UID_PATTERN: Final = re.compile(_UID)


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """What is needed to give one device of a claim to a container; NVML is not."""

    name: str  # published device name, such as gpu-0
    gpu_uuid: str
    gpu_minor: int
    gi_id: int | None = None  # set for a partition
    ci_id: int | None = None
    uuid: str = ""  # of the GPU or of the partition
    share_id: str | None = None
    mps_folders: tuple[str, str] | None = None  # of its control daemon: sockets, and /dev/shm
    environment: tuple[str, ...] = ()  # further variables of its containers, `NAME=value`


@dataclass(frozen=True, slots=True)
class Names:
    """Names for one driver name: two drivers on a node never touch each other's files."""

    driver_name: str

    @property
    def claim_kind(self) -> str:
        """Kind of the devices of claims, `k8s.gpu.nvidia.com/claim` by default."""
        return f"{self._vendor}/{_CLAIM_CLASS}"

    @property
    def common_kind(self) -> str:
        """Kind of the one device that stands for what all GPUs share."""
        return f"{self._vendor}/{_COMMON_CLASS}"

    @property
    def common_id(self) -> str:
        """Id that every container with a GPU gets besides those of its devices."""
        return f"{self.common_kind}={COMMON}"

    @property
    def common_file(self) -> str:
        """File name of the common device."""
        return f"{self._vendor}-{_COMMON_CLASS}.json"

    @property
    def note_key(self) -> str:
        """Annotation of a claim's file that holds the caller's note."""
        return f"{self.driver_name}/claim-record"

    @property
    def prefix(self) -> str:
        """What the names of all our files begin with."""
        return f"{self._vendor}-"

    def device_name(self, claim_uid: str, device: CdiDevice) -> str:
        """Name of a claim's device within its kind. Raises Bug for what no API server sends."""
        parts = [_checked(claim_uid, _UID_PATTERN), _checked(device.name, _NAME_PATTERN)]
        if device.share_id is not None:
            parts.append(_checked(device.share_id, _NAME_PATTERN))
        return "-".join(parts)

    def claim_id(self, claim_uid: str, device: CdiDevice) -> str:
        """Fully qualified id of a claim's device."""
        return f"{self.claim_kind}={self.device_name(claim_uid, device)}"

    def claim_file(self, claim_uid: str) -> str:
        """File name of a claim. Raises Bug for a UID that no API server gives."""
        return f"{self._claim_prefix}{_checked(claim_uid, _UID_PATTERN)}.json"

    def prior_file(self, claim_uid: str) -> str:
        """File name that NVIDIA's driver in Go gives a claim."""
        return f"{self._claim_prefix}{_checked(claim_uid, _UID_PATTERN)}.yaml"

    def prior_uid(self, file_name: str) -> str | None:
        """UID of the claim for which NVIDIA's driver in Go wrote this file, else None."""
        pattern = rf"{re.escape(self._claim_prefix)}({_UID})\.yaml"
        match = re.fullmatch(pattern, file_name)
        return match.group(1) if match else None

    def claim_uid(self, file_name: str) -> str | None:
        """UID of the claim whose file this is, None for files that are not ours."""
        pattern = rf"{re.escape(self._claim_prefix)}({_UID})\.json"
        match = re.fullmatch(pattern, file_name)
        return match.group(1) if match else None

    @property
    def _vendor(self) -> str:
        return f"k8s.{self.driver_name}"

    @property
    def _claim_prefix(self) -> str:
        return f"{self._vendor}-{_CLAIM_CLASS}_"


def _checked(text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise Bug(f"{text!r} cannot be part of a CDI id: letters, digits and '-' are expected")
    return text
