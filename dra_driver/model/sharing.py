"""How several programs share one GPU or partition: what is wanted, and how hard it holds."""

from dataclasses import dataclass
from enum import Enum
from functools import total_ordering


class Strategy(Enum):
    """Who lets programs take turns; the values are those of the published configs."""

    TIME_SLICING = "TimeSlicing"  # the GPU driver, one program after the other
    MPS = "MPS"  # a control daemon of MPS, several at the same time


class TimeSlice(Enum):
    """How long a program runs before the next has its turn.

    Values are those of `nvidia-smi compute-policy --set-timeslice`.
    """

    DEFAULT = 0
    SHORT = 1
    MEDIUM = 2
    LONG = 3

    @property
    def word(self) -> str:
        """Name in the published configs: `Default`, `Short`, `Medium`, `Long`."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class MpsSettings:
    """What the control daemon of MPS is told; None: its own default."""

    thread_percentage: int | None = None  # of a device's threads, 0 to 100, for each client
    pinned_memory_limit: int | None = None  # bytes of each device, for each client; whole MiB
    per_device_limits: tuple[tuple[str, int], ...] = ()  # ordinal or UUID, bytes; by key
    multi_user: bool = False  # clients of several user ids at the same time
    shm_size: int | None = None  # bytes of the `/dev/shm` that clients have together
    selinux_label: str = ""  # of the folders that clients share


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """What one claim wants for one device, with all defaults filled in.

    Claims on one device agree when theirs are equal.
    """

    strategy: Strategy
    interval: TimeSlice | None = None  # only with TIME_SLICING, and not on partitions
    mps: MpsSettings | None = None  # only with MPS, and always there


class SharesMode(Enum):
    """By what a device is handed out to several claims."""

    NONE = "none"  # not at all: one claim has it alone
    COUNT = "count"  # so many shares, all alike
    MEMORY = "memory"  # by amounts of its memory
    UNLIMITED = "unlimited"  # to as many claims as ask


@dataclass(frozen=True, slots=True)
class SharesPolicy:
    """How a GPU and its partitions are handed out to several claims."""

    mode: SharesMode = SharesMode.NONE
    count: int = 0  # of shares; only with COUNT
    rename: bool = False  # the resource name ends in `.shared`
    reserve_bytes: int = 0  # of each device's memory that is not handed out; only with MEMORY
    fail_requests_greater_than_one: bool = False  # no container gets two shares of one kind


@total_ordering
class MemoryLimitLevel(Enum):
    """How hard a limit of GPU memory holds, from nothing on upwards; values as published."""

    NONE = "none"  # accounted for, not enforced
    MPS_CLIENT = "mps-client"  # by a variable of each container, which a program can undo
    MPS = "mps"  # by the control daemon, for each process
    CGROUP = "cgroup"  # by the GPU driver, for all processes of a Pod together

    def __lt__(self, other: "MemoryLimitLevel") -> bool:
        return _LEVELS.index(self) < _LEVELS.index(other)


_LEVELS = tuple(MemoryLimitLevel)
