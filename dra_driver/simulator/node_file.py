"""What a simulated node shall consist of: from `--model` and `--gpus`, or from a NODE.yaml.

driverVersion: 580.95.05       # default: 580.95.05
nvswitches: 4                  # default: 0
gpus:                          # 1 to 16 in all
- model: h100-80gb
  count: 2                     # default: 1
  persistenceMode: true        # default: false
  migMode: true                # default: false, but on where partitions are given
  partitions:                  # made on each of the GPUs, in this order
  - profile: 3g.40gb
    start: 4                   # default: where the driver puts it
  - profile: 1g.10gb
    computeInstance: false     # default: true
- model: gb10
  uuid: GPU-5d5ba0d6-d33d-4b2c-924d-9e3d8d2b8a77   # these three: only where count is 1
  pci: "000f:01:00.0"          # default: a usual address for the model
  numaNode: 1
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.identities import GpuIdentity, identity
from dra_driver.simulator.models import GpuModel, model

DEFAULT_DRIVER_VERSION: Final = "580.95.05"
MAX_GPUS: Final = 16  # SIM_MAX_GPUS in native/sim.h

_DRIVER_VERSION = re.compile(r"\d{2,4}(\.\d{1,4}){1,3}")
_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.0")
_UUID = r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def check_driver_version(version: str) -> str:
    """Give the version back; it becomes part of file names.

    Raises:
        SettingInvalid: it does not look like one.

    """
    if _DRIVER_VERSION.fullmatch(version) is None:
        raise SettingInvalid(f"driver version {version!r} should look like 580.95.05")
    return version


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False
    )


class PartitionSpec(_Strict):
    """A partition that exists from the start, as if an administrator had made it."""

    profile: str
    start: int | None = Field(default=None, ge=0)
    compute_instance: bool = True


class GpuSpec(_Strict):
    """GPUs that are alike."""

    model: str
    count: int = Field(default=1, ge=1, le=MAX_GPUS)
    persistence_mode: bool = False
    mig_mode: bool = False
    partitions: tuple[PartitionSpec, ...] = ()
    uuid: Annotated[str, Field(pattern=_UUID)] | None = None
    pci: str | None = None
    numa_node: int | None = Field(default=None, ge=-1)

    @field_validator("pci")
    @classmethod
    def _pci_is_an_address(cls, value: str | None) -> str | None:
        if value is not None and _PCI.fullmatch(value) is None:
            raise ValueError("should look like 0000:1b:00.0")
        return value

    @model_validator(mode="after")
    def _one_identity_for_one_gpu(self) -> Self:
        if self.count > 1 and (self.uuid or self.pci):
            raise ValueError("uuid and pci need count 1")
        return self


class NodeSpec(_Strict):
    """A whole node."""

    driver_version: str = DEFAULT_DRIVER_VERSION
    nvswitches: int = Field(default=0, ge=0, le=16)
    gpus: tuple[GpuSpec, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        total = sum(spec.count for spec in self.gpus)
        if total > MAX_GPUS:
            raise ValueError(f"{total} GPUs are more than the {MAX_GPUS} a node can have")
        return self


def _explain(error: ValidationError, where: str) -> SettingInvalid:
    first = error.errors()[0]
    field = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
    ).lstrip(".")
    text = first["msg"].removeprefix("Value error, ")
    return SettingInvalid(f"{where}: {field}: {text}" if field else f"{where}: {text}")


def alike(model_key: str, count: int, driver_version: str = DEFAULT_DRIVER_VERSION) -> NodeSpec:
    """Describe a node whose GPUs are all of one model.

    Raises:
        SettingInvalid: the count is out of range.

    """
    if not 0 <= count <= MAX_GPUS:
        raise SettingInvalid(f"{count} GPUs: a node has 0 to {MAX_GPUS}")
    gpus = (GpuSpec(model=model_key, count=count),) if count else ()
    return NodeSpec.model_validate({"driverVersion": driver_version, "gpus": gpus})


def read_node_file(path: Path) -> NodeSpec:
    """Read a NODE.yaml.

    Raises:
        SettingInvalid: it can't be read or is wrong; the message names the file and the field.

    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise SettingInvalid(f"{path} is not YAML: {error}") from error
    try:
        return NodeSpec.model_validate(content)
    except ValidationError as error:
        raise _explain(error, str(path)) from error


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """One GPU of a planned node."""

    model: GpuModel
    identity: GpuIdentity
    spec: GpuSpec


def plan_gpus(specs: Sequence[GpuSpec], seed: str) -> list[PlannedGpu]:
    """Give each GPU its identity; sorted by PCI address, as the kernel finds them.

    Raises:
        SettingInvalid: a model is not known, or two GPUs want one address or one UUID.

    """
    planned: list[PlannedGpu] = []
    wished = [spec for spec in specs if spec.pci]
    last = (0, 0)
    for spec in (*wished, *(spec for spec in specs if not spec.pci)):
        chosen = model(spec.model)
        for _ in range(spec.count):
            taken = [gpu.identity.pci_address for gpu in planned]
            gpu = _identity(chosen, spec, seed, taken, last)
            planned.append(PlannedGpu(chosen, gpu, spec))
            last = last if spec.pci else gpu.pci_address
    for what in ("pci_address", "uuid"):
        values = [getattr(gpu.identity, what) for gpu in planned]
        if len(set(values)) != len(values):
            raise SettingInvalid(f"gpus: two GPUs have the same {what.replace('pci_', 'PCI ')}")
    return sorted(planned, key=lambda gpu: gpu.identity.pci_address)


def _identity(
    chosen: GpuModel,
    spec: GpuSpec,
    seed: str,
    taken: Sequence[tuple[int, int]],
    last: tuple[int, int],
) -> GpuIdentity:
    gpu = identity(chosen, seed, taken, last)
    if spec.pci is not None and (match := _PCI.fullmatch(spec.pci)):
        domain, bus, device = (int(part, 16) for part in match.groups())
        gpu = replace(gpu, pci_domain=domain, pci_bus=bus, pci_device=device)
    if spec.uuid is not None:
        gpu = replace(gpu, uuid=spec.uuid)
    if spec.numa_node is not None:
        gpu = replace(gpu, numa_node=spec.numa_node)
    return gpu
