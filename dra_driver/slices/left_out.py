"""What is not published, and why: each reason goes to the log, an Event and a metric."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


class Why(Enum):
    """Why something is not published; the values are metric labels."""

    INVALID = "invalid"  # the API server would refuse it
    REFUSED = "refused"  # the API server did refuse it
    UNHEALTHY = "unhealthy"  # sick, and this server keeps no taints
    HELD = "held"  # a GPU of which a claim holds a partition that is not there
    HELD_BACK = "held-back"  # a change of the GPU waits, and this server keeps no taints
    NO_COUNTERS = "no-counters"  # partitions on request, and this server keeps no counters
    FOREIGN = "foreign"  # a partition that this driver did not make stands there
    NOT_SHARED = "not-shared"  # published, but for one claim at a time, although configured so


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device, or one value of it, that is not published."""

    device: str  # `gpu-0-mig-*`: several partitions of one GPU
    field: str  # attribute or capacity; empty: the whole device
    why: Why
    message: str

    def __str__(self) -> str:
        """One line for a person."""
        if self.why is Why.NOT_SHARED:
            return f"device {self.device} is not shared: {self.message}"
        what = f"{self.field} of device {self.device}" if self.field else f"device {self.device}"
        return f"{what} is not published: {self.message}"


def partitions_of(gpu: str) -> str:
    """Name that stands for all partitions of the GPU with that device name."""
    return f"{gpu}-mig-*"


def told_once(gpu: str, left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Say once what is so for several partitions of that GPU, instead of once for each."""
    together: dict[LeftOut, list[LeftOut]] = {}
    for entry in left_out:
        every = entry if entry.device == gpu else replace(entry, device=partitions_of(gpu))
        together.setdefault(every, []).append(entry)
    return [every if len(same) > 1 else same[0] for every, same in together.items()]
