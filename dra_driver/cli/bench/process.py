"""What the kernel says of the measured process."""

import re
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FIELD: Final = re.compile(r"^(VmRSS|VmHWM|Threads):\s*(\d+)", re.MULTILINE)
_CREDENTIALS: Final = "3i"  # struct ucred: pid, uid, gid
_SECONDS: Final = 2.0
_SCHEDULED: Final = 2  # CPUCLOCK_SCHED: what the scheduler counts


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process."""

    resident_mb: float  # of 10^6 bytes, as the promises count them
    peak_mb: float
    threads: int
    files: int  # open descriptors; -1 where they may not be listed
    cpu_seconds: float  # since it began, of all threads


def usage(pid: int) -> Usage | None:
    """Look at a process; None when it is gone or out of sight."""
    folder = Path("/proc", str(pid))
    try:
        fields = dict(_FIELD.findall((folder / "status").read_text(encoding="ascii")))
        return Usage(
            resident_mb=int(fields["VmRSS"]) * 1024 / 1e6,
            peak_mb=int(fields["VmHWM"]) * 1024 / 1e6,
            threads=int(fields["Threads"]),
            files=_open_files(folder),
            cpu_seconds=_cpu_seconds(pid),
        )
    except (OSError, KeyError, ValueError):
        return None


def listener(path: Path) -> int | None:
    """Process that listens on a unix socket, None when it is out of sight (another namespace)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_SECONDS)
        try:
            probe.connect(str(path))
            size = struct.calcsize(_CREDENTIALS)
            answer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        except OSError:
            return None
    pid: int = struct.unpack(_CREDENTIALS, answer)[0]
    return pid or None


def _open_files(folder: Path) -> int:
    try:
        return sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return -1


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads, also of those that have ended, in nanoseconds' resolution.

    The clock's number is what clock_getcpuclockid(3) makes of a process id on Linux; the figures
    in `/proc/<pid>/stat` have ticks of 10 ms.
    """
    return time.clock_gettime((~pid << 3) | _SCHEDULED)
