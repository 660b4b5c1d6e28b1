"""Claims: what the API server says was allocated, and what this node has prepared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.gpu import Placement
from dra_driver.model.sharing import MemoryLimitLevel


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The three words with which the kubelet names a claim. Only `uid` identifies it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"UID {self.uid}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of `status.allocation.devices.results` that belongs to this driver."""

    request: str  # `main` or `main/sub`
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_request(self) -> str:
        """Request name as Pods use it: without the `/sub` of `firstAvailable`."""
        return self.request.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One opaque config addressed to this driver, as written by a class or a claim."""

    requests: tuple[str, ...]  # empty: all requests
    source: str  # `FromClass` or `FromClaim`
    parameters: Mapping[str, Any]  # raw object with apiVersion and kind


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """An allocated claim without the results and configs of other drivers."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[DeviceConfig, ...] = ()
    pods: tuple[str, ...] = ()  # UIDs of the Pods that may use it
    by_container: bool = False  # made by the scheduler: each request is for one container


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, with what the kubelet is answered."""

    request: str  # main request name
    pool: str
    device: str
    uuid: str  # of the physical GPU or of the partition the claim was first prepared with
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """The answer to the kubelet for one claim."""

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device of a claim as the claim's status tells it: what no slice can say.

    A partition that was made for the claim has its UUID and its instance ids only since then. How
    much memory a share may use, and how hard that holds, depends on the claims beside it.
    """

    pool: str
    device: str
    uuid: str
    parent_uuid: str  # of the GPU, also where the device is the whole GPU
    profile: str  # `1g.10gb`; empty for a GPU, or when it does not answer any more
    placement: Placement | None  # None: the whole GPU
    gi_id: int | None = None
    ci_id: int | None = None
    share_id: str | None = None
    memory_limit: int | None = None  # bytes; only for a share by memory
    limit_level: MemoryLimitLevel = MemoryLimitLevel.NONE
    driver_version: str = ""  # of the GPU driver, as it says it; empty: not known


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """What is to be told in the status of a prepared claim: all of our devices that need it.

    Equal each time for the same preparation, `since` too: a server that has it writes nothing.
    """

    ref: ClaimRef
    since: int  # Unix seconds from which on the devices are ready
    devices: tuple[DeviceStatus, ...]
