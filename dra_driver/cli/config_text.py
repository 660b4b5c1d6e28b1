"""What `dra-driver config show` says: policies of GPUs, or rules where there is no GPU to ask."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.cli.config_sharing import (
    shares_form,
    shares_rule_text,
    shares_text,
    sharing_form,
    sharing_problem,
    sharing_rule_text,
    sharing_text,
)
from dra_driver.cli.tables import table
from dra_driver.config import NodeConfig, Wanted, configured, gpu_indexes
from dra_driver.model import Gpu, Inventory, Partitioning
from dra_driver.model.errors import SettingInvalid

_HEAD: Final = (
    *("INDEX", "MODEL", "MODE", "LAYOUT", "STRATEGY", "ALLOWRESET"),
    *("SHARES", "SHARING", "NAMING", "RULES"),
)
_WIDE: Final = ("UUID", "PCI", "PARTITIONS", "MEMORYLIMIT")
_RULES_HEAD: Final = (
    *("RULE", "MATCH", "MODE", "LAYOUT", "STRATEGY", "ALLOWRESET"),
    *("SHARES", "SHARING", "MEMORYLIMIT", "NAMING"),
)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """What the configuration says of one GPU."""

    index: int
    gpu: Gpu  # with its policy
    rules: tuple[int, ...]  # that fit it, from 0
    wanted: Wanted | None  # by its layout
    problem: str  # why it can't have that

    def document(self) -> dict[str, Any]:
        """Give it as JSON."""
        policy, wanted = self.gpu.policy, self.wanted
        return {
            "index": self.index,
            "uuid": self.gpu.uuid,
            "pciBusID": self.gpu.pci_bus_id,
            "model": self.gpu.product_name,
            "rules": list(self.rules),
            "partitioning": {
                "mode": policy.partitioning.value,
                "layout": policy.layout or None,
                "allowReset": policy.allow_reset,
                "strategy": _strategy(self.gpu),
            },
            "shares": shares_form(policy.shares),
            "sharing": sharing_form(policy.sharing),
            "requireMemoryLimit": policy.required_limit.value,
            "naming": _naming(self.gpu),
            "migEnabled": None if wanted is None else wanted.mig_enabled,
            "partitions": None if wanted is None else dict(wanted.partitions),
            "problem": self.problem or None,
        }


def gpu_rows(
    config: NodeConfig, inventory: Inventory, node_labels: Mapping[str, str]
) -> list[GpuRow]:
    """Apply the configuration to the GPUs that were found, in PCI order."""
    indexes = gpu_indexes(inventory)
    gpus = sorted(configured(inventory, config, node_labels).gpus, key=lambda g: indexes[g.uuid])
    return [_row(config, gpu, indexes[gpu.uuid], node_labels) for gpu in gpus]


def gpus_document(config: NodeConfig, rows: Sequence[GpuRow]) -> dict[str, Any]:
    """Give them as JSON."""
    return {"gpus": [row.document() for row in rows], **_node_wide(config)}


def gpus_text(rows: Sequence[GpuRow], problems: Sequence[str], *, wide: bool) -> str:
    """Show them as a table, what does not work, and what discovery could not find out."""
    head = _HEAD + _WIDE if wide else _HEAD
    cells = [(*_cells(row), *(_wide_cells(row) if wide else ())) for row in rows]
    misfits = [f"GPU {row.index}: {row.problem}" for row in rows if row.problem]
    parts = [table(head, cells) if rows else "no GPUs", "\n".join(misfits), "\n".join(problems)]
    return "\n\n".join(part for part in parts if part)


def rules_document(config: NodeConfig, why: str) -> dict[str, Any]:
    """Give the rules as JSON, as they stand in a file."""
    rules = config.model_dump(by_alias=True, exclude_unset=True, mode="json").get("rules", [])
    return {"rules": rules, **_node_wide(config), "problem": why}


def rules_text(config: NodeConfig, why: str) -> str:
    """Show the rules as a table, in their order: the later wins."""
    rows = [_rule_cells(number, config) for number in range(len(config.rules))]
    return f"{table(_RULES_HEAD, rows) if rows else 'no rules'}\n\n{why}"


def _row(config: NodeConfig, gpu: Gpu, index: int, node_labels: Mapping[str, str]) -> GpuRow:
    wanted, problems = None, [sharing_problem(gpu)]
    try:
        wanted = config.wanted(gpu, index)
    except SettingInvalid as error:
        problems.append(str(error))
    if gpu.policy.partitioning is Partitioning.DYNAMIC and not gpu.is_dynamic:
        problems.append(_why_not_dynamic(gpu))
    problem = "; ".join(each for each in problems if each)
    return GpuRow(index, gpu, config.matching(gpu, index, node_labels), wanted, problem)


def _why_not_dynamic(gpu: Gpu) -> str:
    if not gpu.mig_capable:
        return f"mode Dynamic: a {gpu.product_name} has no MIG, so it is published as a whole"
    if not gpu.slots:
        return f"mode Dynamic: {gpu.uuid} does not tell which partitions it can have"
    return (
        "mode Dynamic: switching MIG mode on needs a GPU reset; set partitioning.allowReset, or "
        f"switch it on with nvidia-smi -i {gpu.pci_bus_id or gpu.minor} -mig 1"
    )


def _node_wide(config: NodeConfig) -> dict[str, Any]:
    dump = config.model_dump(by_alias=True, mode="json")
    return {"health": dump["health"], "inventory": dump["inventory"]}


def _cells(row: GpuRow) -> Sequence[object]:
    policy = row.gpu.policy
    return (
        row.index,
        row.gpu.product_name,
        policy.partitioning.value,
        policy.layout or "-",
        _strategy(row.gpu),
        _yes_no(policy.allow_reset),
        shares_text(policy.shares),
        sharing_text(policy.sharing),
        _naming(row.gpu),
        ",".join(str(number) for number in row.rules) or "-",
    )


def _wide_cells(row: GpuRow) -> Sequence[object]:
    partitions = row.wanted.partitions if row.wanted else {}
    words = ", ".join(f"{count} x {profile}" for profile, count in partitions.items())
    limit = row.gpu.policy.required_limit.value
    return row.gpu.uuid, row.gpu.pci_bus_id or "-", words or "-", limit


def _rule_cells(number: int, config: NodeConfig) -> Sequence[object]:
    rule = config.rules[number]
    part = rule.partitioning
    return (
        number,
        " ".join(_conditions(rule.match.model_dump(by_alias=True))) or "every GPU",
        part.mode or "-",
        part.layout or "-",
        part.strategy or "-",
        "-" if part.allow_reset is None else _yes_no(part.allow_reset),
        shares_rule_text(rule.shares),
        sharing_rule_text(rule.sharing),
        rule.require_memory_limit or "-",
        rule.naming or "-",
    )


def _conditions(match: Mapping[str, Any]) -> Iterator[str]:
    for name, value in match.items():
        if isinstance(value, dict):
            yield from (f"{key}={text}" for key, text in value.items())
        elif isinstance(value, tuple):
            if value:
                yield f"{name}={','.join(str(each) for each in value)}"
        elif value is not None:
            yield f"{name}={value}"


def _strategy(gpu: Gpu) -> str:
    return "single" if gpu.policy.single_strategy else "mixed"


def _naming(gpu: Gpu) -> str:
    return "uuid" if gpu.policy.named_by_uuid else "minor"


def _yes_no(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "yes" if value else "no"
