"""A simulated node's state as text for people."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dra_driver.cli.tables import table
from dra_driver.simulator.native_library import FOR_EVER

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_TIMESLICES: Final = ("default", "short", "medium", "long")


def node_text(shown: dict[str, Any]) -> str:
    """Describe a node: driver, GPUs, partitions, processes, memory limits, faults."""
    gpus = shown["gpus"]
    parts = [
        f"driver {shown['driverVersion']}, CUDA {shown['cudaVersion']}, boot {shown['bootId']}",
        table(("GPU", "MINOR", "MODEL", "PCI", "UUID", "MIG", "STATE"), map(_gpu_row, gpus)),
        *_optional(("GPU", "GI", "PROFILE", "PLACE", "CI", "UUID"), gpus, _partition_rows),
        *_optional(("GPU", "GI", "CI", "PID", "TYPE", "MEMORY", "SM"), gpus, _process_rows),
        *_optional(("GPU", "CGROUP", "SOFT", "HARD"), gpus, _limit_rows),
    ]
    if shown["mps"]:
        columns = ("MPS DAEMON", "PIPES", "DEVICES", "THREADS", "SERVER", "STATUS", "CLIENTS")
        parts.append(table(columns, map(_mps_row, shown["mps"])))
    if shown["faults"]:
        head = ("FAULT AT GPU", "CALL", "ERROR", "TIMES", "HANG")
        parts.append(table(head, map(_fault_row, shown["faults"])))
    return "\n\n".join(parts)


def calls_text(calls: list[dict[str, Any]]) -> str:
    """List calls that changed something, oldest first."""
    head = ("TIME", "PROCESS", "CALL", "ARGUMENTS", "RESULT")
    return table(
        head,
        (
            (
                call["time"],
                f"{call['process']}[{call['pid']}]",
                call["call"],
                call["arguments"],
                call["result"],
            )
            for call in calls
        ),
    )


_Rows = Callable[[dict[str, Any]], Iterable[Sequence[object]]]


def _optional(head: Sequence[str], gpus: list[dict[str, Any]], rows: _Rows) -> list[str]:
    found = [row for gpu in gpus for row in rows(gpu)]
    return [table(head, found)] if found else []


def _gpu_row(gpu: dict[str, Any]) -> Sequence[object]:
    return (
        gpu["index"],
        gpu["minor"],
        gpu["model"],
        gpu["pci"],
        gpu["uuid"],
        _mig_word(gpu["mig"]),
        ", ".join(_states(gpu)) or "-",
    )


def _mig_word(mig: dict[str, bool]) -> str:
    if not mig["supported"]:
        return "-"
    word = "on" if mig["current"] else "off"
    if mig["current"] == mig["pending"]:
        return word
    return f"{word} (pending {'on' if mig['pending'] else 'off'})"


def _states(gpu: dict[str, Any]) -> list[str]:
    states = []
    if gpu["lost"]:
        states.append("lost")
    if gpu["open"]:
        states.append("open")
    if gpu["persistence"]:
        states.append("persistence")
    if gpu["computeMode"] != "DEFAULT":
        states.append(gpu["computeMode"].lower().replace("_", "-"))
    if gpu["timeslice"]:
        states.append(f"time-slice {_TIMESLICES[gpu['timeslice']]}")
    if gpu["ecc"]["volatile"]:
        states.append(f"{gpu['ecc']['volatile']} ECC errors")
    if gpu["recoveryAction"]:
        states.append(f"recovery action {gpu['recoveryAction']}")
    return states


def _partition_rows(gpu: dict[str, Any]) -> Iterable[Sequence[object]]:
    for instance in gpu["instances"]:
        place = f"{instance['start']}:{instance['size']}"
        head = (gpu["index"], instance["id"])
        if not instance["computeInstances"]:
            yield (*head, instance["profile"], place, "-", "-")
        for compute in instance["computeInstances"]:
            yield (*head, compute["profile"], place, compute["id"], compute["uuid"])


def _process_rows(gpu: dict[str, Any]) -> Iterable[Sequence[object]]:
    for process in gpu["processes"]:
        yield (
            gpu["index"],
            "-" if process["gi"] is None else process["gi"],
            "-" if process["ci"] is None else process["ci"],
            process["pid"],
            process["type"],
            _amount(process["memoryBytes"]),
            f"{process['smPercent']}%",
        )


def _limit_rows(gpu: dict[str, Any]) -> Iterable[Sequence[object]]:
    for limit in gpu["memoryLimits"]:
        soft, hard = _amount(limit["softBytes"]), _amount(limit["hardBytes"])
        yield gpu["index"], limit["cgroup"], soft, hard


def _fault_row(fault: dict[str, Any]) -> Sequence[object]:
    return (
        "all" if fault["gpu"] is None else fault["gpu"],
        fault["call"],
        "-" if fault["error"] == "SUCCESS" else fault["error"],
        fault["times"] or "for ever",
        _seconds(fault["hangMs"]),
    )


def _seconds(milliseconds: int) -> str:
    if milliseconds / 1000 == FOR_EVER:
        return "for ever"
    return f"{milliseconds / 1000:g} s" if milliseconds else "-"


def _mps_row(mps: dict[str, Any]) -> Sequence[object]:
    server = mps["server"]
    waiting = f" (+{mps['pending']} waiting)" if mps["pending"] else ""
    return (
        mps["pid"],
        mps["pipeDirectory"],
        mps["visibleDevices"] or "all",
        f"{mps['activeThreadPercentage']:g}%",
        "-" if server is None else server["pid"],
        "-" if server is None else server["status"].lower(),
        f"{0 if server is None else len(server['clients'])}{waiting}",
    )


def _amount(amount: int) -> str:
    if amount % _GIB == 0:
        return f"{amount // _GIB}Gi"
    return f"{amount // _MIB}Mi" if amount % _MIB == 0 else str(amount)
