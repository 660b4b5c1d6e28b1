"""The clusters of a complete run: the newest release runs everything, an older one what differs."""

from dataclasses import dataclass
from typing import Final

from tests.cluster.binaries import DEFAULT_VERSION

OLDEST: Final = "1.34.4"

_GATES: Final = (
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "ResourceHealthStatus",
)
_TAINT_RULES: Final = "resource.k8s.io/v1alpha3=true"
_OLDER_APIS: Final = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"


@dataclass(frozen=True, slots=True)
class Variant:
    """One cluster: a Kubernetes release, and arguments of `python -m tests.cluster run`."""

    name: str
    version: str
    more: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments that choose it."""
        return (f"--version={self.version}", *self.more)


VARIANTS: Final = (
    Variant("1.37", DEFAULT_VERSION),
    Variant("1.34", OLDEST),
    Variant(
        "1.34-gates",
        OLDEST,
        (
            "--feature-gates=" + ",".join(f"{gate}=true" for gate in _GATES),
            # With DRADeviceTaints scheduler and controller manager of 1.34 wait for this API.
            f"--runtime-config={_TAINT_RULES},{_OLDER_APIS}",
        ),
    ),
)
