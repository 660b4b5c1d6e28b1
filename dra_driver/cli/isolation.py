"""What is kept apart between those who share a device, for each way of sharing.

The one place where this is written down: `dra-driver devices` shows it, and a test keeps the table
of docs/sharing-configs.md equal to it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dra_driver.cli.tables import table
from dra_driver.config import read_stored
from dra_driver.model import MemoryLimitLevel, PublishedDevice, SharesMode, Strategy
from dra_driver.slices.shares import wants_shares
from dra_driver.state import DeviceRecord


@dataclass(frozen=True, slots=True)
class Isolation:
    """What each of those who share a device has for itself, and what another can do to it."""

    key: str  # as `dra-driver devices` shows it
    way: str
    memory: str = "one pool"
    limit: str = "none"  # of memory: for whom it holds, and who holds it
    faults: str = "own"
    compute: str = "in turns"
    shm: str = "own"  # /dev/shm of the containers
    socket: str = "none"  # of the control daemon


_MPS: Final = {"faults": "end all", "compute": "at once", "shm": "shared", "socket": "shared"}
_BY_HARDWARE: Final = {
    "memory": "own, by hardware",
    "limit": "its size, by hardware",
    "compute": "own, by hardware",
}
_BY_MEMORY: Final = "shares by memory"

WAYS: Final = (
    Isolation("alone", "a GPU for one claim", memory="own", limit="its size", compute="own"),
    Isolation("partition", "partitions of one GPU", **_BY_HARDWARE),
    Isolation("claim", "one claim, several Pods"),
    Isolation("time-slices", "TimeSlicing", compute="turns as set"),
    Isolation("shares", "shares by count"),
    Isolation("memory-cgroup", _BY_MEMORY, limit="each Pod, by the GPU driver"),
    Isolation("memory-mps", f"{_BY_MEMORY}, MPS", limit="each process, by the daemon", **_MPS),
    Isolation(
        "memory-mps-client", f"{_BY_MEMORY}, MPS", limit="each process, can be undone", **_MPS
    ),
    Isolation("memory-none", _BY_MEMORY, limit="none, only counted"),
    Isolation("mps", "MPS", limit="each process, if set", **_MPS),
)
NOTES: Final = (
    """\
Programs never see each other's GPU memory. Of one pool each may take what is left, up to its limit.
A fault that is the GPU's and not a program's ends all programs on it, on its partitions too.""",
    """\
A device with several keys has the weaker word of each column among those who share it; partition
is what holds towards the GPU's other partitions. Pods that have one claim together are to each
other as the row claim says.""",
    """\
For tenants who do not trust each other take partitions. Where a GPU is shared whole, the
recommended way is memory-cgroup without MPS: it needs GPU driver 615 or later, cgroup v2, and
whole GPUs. The limit is the GPU driver's: no program can undo it, and it is for all processes of a
Pod together, not for each. A program's fault ends that program only, and there is no daemon, no
socket and no /dev/shm by which tenants reach each other.""",
)
_HEAD: Final = (
    *("KEY", "WAY", "MEMORY", "MEMORY LIMIT", "FAULTS", "COMPUTE", "/DEV/SHM", "SOCKET"),
)


def isolation_text() -> str:
    """Give the table for people, and what it does not say."""
    return "\n\n".join((table(_HEAD, map(_cells, WAYS)), *NOTES))


def isolation_document() -> list[dict[str, Any]]:
    """Give the table as JSON."""
    return [asdict(way) for way in WAYS]


def markdown() -> str:
    """Give the table as it stands in the documentation."""
    head = [name.capitalize() for name in _HEAD]
    head[_HEAD.index("/DEV/SHM")] = "`/dev/shm`"
    rows = [f"| `{way.key}` | {' | '.join(_cells(way)[1:])} |" for way in WAYS]
    return "\n".join((f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows))


def keys_of(device: PublishedDevice, held: Sequence[DeviceRecord]) -> str:
    """Say which ways hold for a device, by its configuration and by what claims have of it."""
    mine = [each for each in held if not each.admin_access]
    shares, strategy = _shares(device, mine), _strategy(device, mine)
    found = ["partition"] if device.slot is not None else []
    found += [shares] if shares else []
    if strategy and not shares.startswith(f"memory-{strategy}"):  # which has MPS in it
        found.append(strategy)
    return ", ".join(found) or "alone"


def _shares(device: PublishedDevice, held: Sequence[DeviceRecord]) -> str:
    if wants_shares(device):
        if device.gpu.policy.shares.mode is SharesMode.MEMORY:
            return f"memory-{device.memory_limit.value}"
        return "shares"
    if any(each.memory_limit is not None for each in held):
        return f"memory-{MemoryLimitLevel.CGROUP.value}"
    return "shares" if any(each.share_id is not None for each in held) else ""


def _strategy(device: PublishedDevice, held: Sequence[DeviceRecord]) -> str:
    """Key of what claims have set, which all agree; else of what one gets that says nothing."""
    stored = (read_stored(each.sharing) for each in held)
    settings = next(filter(None, stored), None)
    if settings is None and not held:
        settings = device.gpu.policy.sharing
    if settings is None:
        return ""
    return "mps" if settings.strategy is Strategy.MPS else "time-slices"


def _cells(way: Isolation) -> Sequence[str]:
    return tuple(getattr(way, field.name) for field in fields(way))
