"""How the measured claims share their devices, and what a node needs for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from dra_driver.cli.bench.offer import GPU, MIG

_HEAD: Final = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\nrules:\n"
_API: Final = "resource.nvidia.com/v1beta1"


class Sharing(Enum):
    """What each claim asks for beside its device; values are those of --sharing."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    SHARES = "shares"
    MEMORY = "memory"
    MPS = "mps"


_STRATEGIES: Final[Mapping[Sharing, Mapping[str, Any]]] = {
    Sharing.TIME_SLICING: {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    Sharing.MPS: {"strategy": "MPS"},
}
_CONSUMED: Final[Mapping[Sharing, Mapping[str, str]]] = {
    Sharing.SHARES: {"shares": "1"},
    Sharing.MEMORY: {"memory": "100Mi"},
    Sharing.MPS: {"shares": "1"},
}
_RULES: Final[Mapping[Sharing, str]] = {
    Sharing.SHARES: "- shares: {count: 1000}\n",
    Sharing.MEMORY: "- shares: {by: memory, reserve: 1Gi}\n",
    Sharing.MPS: "- shares: {count: 1000}\n",
}
# Live claims of each device. Before branch 590 of the GPU driver a daemon has 48 clients, and the
# simulated node keeps 256 limits for its up to 16 GPUs (SIM_MAX_LIMITS in native/state.h).
_MOST: Final[Mapping[Sharing, int]] = {Sharing.MPS: 40, Sharing.MEMORY: 12}


@dataclass(frozen=True, slots=True)
class Wish:
    """What claims are measured."""

    devices: str = GPU  # or MIG
    sharing: Sharing = Sharing.NONE

    @property
    def consumed(self) -> Mapping[str, str] | None:
        """What a share takes of its device; None: a claim has its device alone."""
        return _CONSUMED.get(self.sharing)

    @property
    def most(self) -> int | None:
        """Live claims that one device can have; None: as many as one likes."""
        return _MOST.get(self.sharing)

    @property
    def config(self) -> dict[str, Any] | None:
        """Opaque config of each claim."""
        if self.sharing not in _STRATEGIES:
            return None
        return {"apiVersion": _API, "kind": "GpuConfig", "sharing": _STRATEGIES[self.sharing]}

    @property
    def node_config(self) -> str:
        """Configuration that a node needs for it; empty: none."""
        rules = "- partitioning: {mode: Dynamic}\n" if self.devices == MIG else ""
        rules += _RULES.get(self.sharing, "")
        return rules and _HEAD + rules

    @property
    def words(self) -> str:
        """What is added to the description of a simulated node."""
        mode = ", partitions on request" if self.devices == MIG else ""
        return mode if self.sharing is Sharing.NONE else f"{mode}, {self.sharing.value}"
