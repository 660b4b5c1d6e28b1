"""The node configuration: what an administrator says of a node's GPUs, in one YAML file."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from dra_driver.config.durations import parse_duration
from dra_driver.config.layouts import Layout, LayoutName, Wanted, is_shipped, resolve_layout
from dra_driver.config.shares import SharesRule, SharingRule
from dra_driver.config.strict import Several, StrictModel, read_strictly
from dra_driver.config.told import IDLE, UNSHARED, Told
from dra_driver.config.yaml_text import Path
from dra_driver.model import Gpu, GpuPolicy, Inventory, MemoryLimitLevel, Partitioning

API_VERSION: Final = "config.gpu-dra-driver.dev/v1alpha1"
KIND: Final = "NodeConfig"
_SHORTEST_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 3600.0
_LARGEST_XID: Final = 2**31 - 1
_UUID_PATTERN: Final = r"^GPU-[0-9A-Za-z-]+$"
_PCI: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


def _gpu_uuid(text: str) -> str:
    if not re.match(_UUID_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!r} is not a GPU's UUID such as `nvidia-smi -L` shows: GPU-…")
    return text


def _pci_bus_id(text: str) -> str:
    """Spell it as `Gpu.pci_bus_id` is; NVML's own has eight digits and capitals."""
    match = _PCI.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI bus id such as 0000:1b:00.0")
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def _interval(text: str) -> str:
    if not _SHORTEST_SECONDS <= parse_duration(text) <= _LONGEST_SECONDS:
        raise ValueError(f"{text!r} is not allowed; allowed: 100ms to 1h")
    return text


_Index = Annotated[int, Field(ge=0, le=255)]
_Text = Annotated[str, Field(min_length=1)]
_Uuid = Annotated[
    str,
    AfterValidator(_gpu_uuid),
    Field(json_schema_extra={"pattern": _UUID_PATTERN}),
    Told(values="`GPU-…`"),
]
_PciBusId = Annotated[
    str,
    AfterValidator(_pci_bus_id),
    Told(values="`0000:1b:00.0`, `1b:00.0` or `00000000:1B:00.0`"),
]
_Xid = Annotated[int, Field(ge=0, le=_LARGEST_XID), Told(values="numbers")]
_Interval = Annotated[
    str, AfterValidator(_interval), Told(values="`100ms` to `1h`; units `ms`, `s`, `m`, `h`")
]


class Match(StrictModel):
    """Which GPUs a rule is about: all that is given must fit; nothing given fits every GPU."""

    model: _Text | None = Field(
        default=None,
        description="Product names like this one (`nvidia-smi -L`), with `*` and `?`; capital "
        "letters do not matter.",
    )
    index: Several[_Index] = Field(
        default=(),
        description="These places in PCI order, as `nvidia-smi` and mig-parted count; a GPU that "
        "has fallen off the bus is not counted.",
    )
    uuid: Several[_Uuid] = Field(default=(), description="GPUs with these UUIDs.")
    pci: Several[_PciBusId] = Field(default=(), description="GPUs at these PCI addresses.")
    node_labels: Mapping[str, str] = Field(
        default_factory=dict, description="Nodes that have all these labels."
    )

    def fits(self, gpu: Gpu, index: int, node_labels: Mapping[str, str]) -> bool:
        """Whether the GPU with that place in PCI order is meant."""
        return (
            (self.model is None or _like(gpu.product_name, self.model))
            and (not self.index or index in self.index)
            and (not self.uuid or gpu.uuid in self.uuid)
            and (not self.pci or gpu.pci_bus_id in self.pci)
            and self.node_labels.items() <= node_labels.items()
        )


class PartitioningRule(StrictModel):
    """Who makes a GPU's partitions; what is not given stays as earlier rules have it."""

    mode: Annotated[
        Literal["Existing", "Dynamic", "Static"] | None,
        Told(default="Existing", counts=f"to or from `Dynamic`: {UNSHARED}; to `Static`: {IDLE}"),
    ] = Field(
        default=None,
        description="`Existing`: partitions are taken as somebody else makes them. `Dynamic`: they "
        "are made for claims and removed after them. `Static`: those of `layout` are made.",
    )
    layout: Annotated[_Text | None, Told(counts=IDLE)] = Field(
        default=None, description="Name of a layout; with `mode: Static`, in the same rule."
    )
    allow_reset: Annotated[bool | None, Told(default="false")] = Field(
        default=None,
        description="MIG mode may be switched where that resets the GPU, as on Ampere; Hopper and "
        "later need no reset.",
    )
    strategy: Annotated[Literal["mixed", "single"] | None, Told(default="mixed")] = Field(
        default=None,
        description="`single`: the partitions of a GPU that is cut into equal ones count as `gpu`.",
    )


class Rule(StrictModel):
    """What holds for some GPUs."""

    match: Match = Match()
    partitioning: PartitioningRule = PartitioningRule()
    shares: Annotated[SharesRule, Told(counts=UNSHARED)] = SharesRule()
    sharing: Annotated[SharingRule | None, Told(counts=UNSHARED)] = None
    require_memory_limit: Annotated[
        Literal["cgroup", "mps", "none"] | None, Told(default="none", counts=UNSHARED)
    ] = Field(
        default=None,
        description="No shares of devices whose memory is not limited at least so hard.",
    )
    naming: Annotated[Literal["minor", "uuid"] | None, Told(default="minor", counts=UNSHARED)] = (
        Field(
            default=None,
            description="Devices are named by the GPU's minor number (`gpu-0…`) or by its UUID.",
        )
    )

    def applied(self, policy: GpuPolicy) -> GpuPolicy:
        """Policy in which this rule's fields replace those of earlier rules."""
        changes: dict[str, Any] = {}
        part = self.partitioning
        if part.mode is not None:
            changes |= {"partitioning": Partitioning(part.mode), "layout": part.layout or ""}
        if part.allow_reset is not None:
            changes["allow_reset"] = part.allow_reset
        if part.strategy is not None:
            changes["single_strategy"] = part.strategy == "single"
        if self.naming is not None:
            changes["named_by_uuid"] = self.naming == "uuid"
        if self.sharing is not None:
            changes["sharing"] = self.sharing.settings()
        if self.require_memory_limit is not None:
            changes["required_limit"] = MemoryLimitLevel(self.require_memory_limit)
        return replace(policy, shares=self.shares.applied(policy.shares), **changes)

    def problems_with(self, layouts: Iterable[str]) -> Iterator[tuple[Path, str]]:
        """Yield what does not go together, and where."""
        layout = self._layout_problem(layouts)
        if layout:
            yield ("partitioning", "layout"), layout
        for path, problem in self.shares.problems():
            yield ("shares", *path), problem
        for path, problem in self.sharing.problems() if self.sharing else ():
            yield ("sharing", *path), problem

    def _layout_problem(self, layouts: Iterable[str]) -> str:
        """Say what is wrong with mode and layout together; empty: nothing."""
        mode, layout = self.partitioning.mode, self.partitioning.layout
        if mode != "Static":
            return "only allowed together with mode: Static" if layout is not None else ""
        if layout is None:
            return "is missing; mode Static needs it in the same rule"
        if layout in layouts or is_shipped(layout):
            return ""
        known = [*layouts, "all-disabled", "all-enabled", "all-balanced", "all-<profile>"]
        return f"{layout!r} is no layout; allowed: {', '.join(known)} (such as all-1g.10gb)"


class HealthRule(StrictModel):
    """How health is judged, and what follows."""

    ignore_xids: Several[_Xid] = Field(
        default=(),
        description="XIDs that make nothing unhealthy, beside those that are a program's fault.",
    )
    effect: Literal["None", "NoSchedule", "NoExecute"] = Field(
        default="NoSchedule", description="Effect of the taints of unhealthy devices."
    )


class InventoryRule(StrictModel):
    """How the hardware is looked at."""

    interval: _Interval = Field(default="30s", description="Time between two looks.")

    @property
    def seconds(self) -> float:
        """Time between two looks."""
        return parse_duration(self.interval)


class NodeConfig(StrictModel):
    """The configuration of one node or of many alike.

    All rules that fit a GPU are merged in order: the later wins, field by field.
    """

    api_version: Literal["config.gpu-dra-driver.dev/v1alpha1"]
    kind: Literal["NodeConfig"]
    rules: Several[Rule] = Field(default=(), description="All that fit a GPU are merged.")
    layouts: Annotated[Mapping[LayoutName, Layout], Told(counts=IDLE)] = Field(
        default_factory=dict,
        description="By name. Of the entries that match a GPU the last one counts.",
    )
    health: HealthRule = HealthRule()
    inventory: InventoryRule = InventoryRule()

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield what does not go together in each rule, and where."""
        for place, rule in enumerate(self.rules):
            for path, problem in rule.problems_with(self.layouts):
                yield ("rules", place, *path), problem

    @property
    def needs_node_labels(self) -> bool:
        """Whether any rule depends on the labels of the Node."""
        return any(rule.match.node_labels for rule in self.rules)

    def matching(self, gpu: Gpu, index: int, node_labels: Mapping[str, str]) -> tuple[int, ...]:
        """Numbers of the rules, from 0, that fit the GPU with that place in PCI order."""
        return tuple(
            number
            for number, rule in enumerate(self.rules)
            if rule.match.fits(gpu, index, node_labels)
        )

    def policy(self, gpu: Gpu, index: int, node_labels: Mapping[str, str]) -> GpuPolicy:
        """Merge the rules for the GPU with that place in PCI order."""
        policy = GpuPolicy(taint_effect=self.health.effect)
        for number in self.matching(gpu, index, node_labels):
            policy = self.rules[number].applied(policy)
        return policy

    def wanted(self, gpu: Gpu, index: int) -> Wanted | None:
        """Find out what the layout of its policy wants of a GPU; None: leave it as it is.

        Raises SettingInvalid when the GPU cannot have it.
        """
        if gpu.policy.partitioning is not Partitioning.STATIC:
            return None
        return resolve_layout(gpu.policy.layout, self.layouts, gpu, index)


DEFAULT_CONFIG: Final = NodeConfig.model_validate({"apiVersion": API_VERSION, "kind": KIND})


def load(text: str) -> NodeConfig:
    """Read a node configuration; raises SettingInvalid with line, field and what is allowed."""
    return read_strictly(text, NodeConfig)


def configured(
    inventory: Inventory, config: NodeConfig, node_labels: Mapping[str, str]
) -> Inventory:
    """Snapshot in which each GPU has its policy."""
    indexes = gpu_indexes(inventory)
    gpus = (
        replace(gpu, policy=config.policy(gpu, indexes[gpu.uuid], node_labels))
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))


def gpu_indexes(inventory: Inventory) -> Mapping[str, int]:
    """Place of each GPU, by UUID: in PCI order as nvidia-smi and mig-parted count, else by minor.

    Minor numbers follow the order in which the kernel driver met the GPUs, which may be another.
    """
    ordered = sorted(inventory.gpus, key=_place)
    return {gpu.uuid: index for index, gpu in enumerate(ordered)}


def config_schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    schema = NodeConfig.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _place(gpu: Gpu) -> tuple[bool, int, str, int]:
    address = gpu.pci_bus_id or ""
    return not address, len(address), address, gpu.minor


def _like(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())
