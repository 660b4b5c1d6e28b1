"""The few kernel calls that the sandbox needs and Python 3.11 lacks."""

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SHARED = 0x100000

_MNT_DETACH = 0x2
_PR_SET_PDEATHSIG = 1
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the shared namespaces of these kinds for new ones."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Attach a file system, or change how one is attached; the arguments are the system call's."""
    status = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(status, f"mount of {kind or source} on {target}")


def unmount(target: str | Path) -> None:
    """Detach a file system from its place now, and for good when nobody uses it any more."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount of {target}")


def set_host_name(name: str) -> None:
    """Set the host name of this UTS namespace."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def be_killed_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends from now on."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or has ended already.

    `parent` is a file descriptor of the parent process, opened before the fork.
    """
    be_killed_with_parent()
    if select.select([parent], [], [], 0)[0]:  # it ended before the call
        os._exit(1)


def bring_up_loopback(*addresses: str) -> None:
    """Bring up `lo` of this network namespace and give it further IPv4 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
        for number, address in enumerate(addresses):
            alias = f"lo:{number}".encode()
            _give_address(control, alias, address)


def add_loopback_address(address: str, label: str) -> None:
    """Give `lo` of this network namespace one more IPv4 address, under a label of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _give_address(control, f"lo:{label}".encode(), address)


def _give_address(control: socket.socket, alias: bytes, address: str) -> None:
    for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
        fcntl.ioctl(control, request, _interface_request(alias, value))


def _interface_request(name: bytes, address: str) -> bytes:
    return struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
