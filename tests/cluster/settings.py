"""How one cluster is to be: decided by the runner, read inside of the sandbox."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.binaries import DEFAULT_VERSION
from tests.cluster.cache import HarnessError
from tests.cluster.golang import Version, parse_version

NODE = "sim-node"
VARIABLE = "GPU_DRA_DRIVER_TEST_CLUSTER"

# Gates that tests ask for, and since when they are on (pkg/features/kube_features.go).
_ON_SINCE: Mapping[str, Version] = {
    "DRAConsumableCapacity": (1, 36),
    "DRADeviceTaints": (1, 36),
    "DRAExtendedResource": (1, 36),
    "DRAPartitionableDevices": (1, 36),
    "ResourceHealthStatus": (1, 36),
    "ResourceHealthStatusMessage": (1, 36),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One cluster: Kubernetes version, feature gates, and where its parts lie in the cache."""

    version: str = DEFAULT_VERSION
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: tuple[str, ...] = ()  # API groups to serve besides the default ones
    programs: Mapping[str, str] = field(default_factory=dict)
    packages: str = ""
    images: tuple[str, ...] = ()
    driver_images: Mapping[str, str] = field(default_factory=dict)  # archives by tag
    state: str = str(mounts.STATE)

    @property
    def gates_flag(self) -> list[str]:
        """The feature gates as control-plane programs take them: no argument if there are none."""
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in self.feature_gates.items())
        return [f"--feature-gates={gates}"] if gates else []

    def has(self, gate: str) -> bool:
        """Whether a feature gate is on in this cluster, by its settings or by default."""
        if gate in self.feature_gates:
            return self.feature_gates[gate]
        return parse_version(self.version) >= _ON_SINCE[gate]

    def program(self, name: str) -> str:
        """Return the path of one of the built programs."""
        return self.programs[name]

    def package(self, name: str) -> Path:
        """Return the folder of an unpacked Debian package."""
        return Path(self.packages) / name

    def dump(self) -> str:
        """Write it as text for an environment variable."""
        return json.dumps(asdict(self))


def inside() -> Settings | None:
    """Read the settings that the runner handed in; None outside of the sandbox."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    fields = json.loads(text)
    for name in ("runtime_config", "images"):
        fields[name] = tuple(fields[name])
    return Settings(**fields)


def parse_gates(text: str) -> dict[str, bool]:
    """Read `DRADeviceTaints=true,ResourceHealthStatus=false`."""
    gates = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or value not in ("true", "false"):
            raise HarnessError(f"feature gate {item!r}: wanted NAME=true or NAME=false")
        gates[name] = value == "true"
    return gates
