"""Ports for a program that is started, and asked there, by whoever starts it."""

import errno
import random
import socket
from typing import Final

# Below the ports that Linux gives to clients (net.ipv4.ip_local_port_range begins at 32768): a
# connection of some other program can't take one before its server does.
_RANGE: Final = range(20000, 32000)
_chance: Final = random.SystemRandom()  # tests that run side by side have the same seed


def free_port() -> int:
    """Give a port of the loopback interface that nobody listens on. Raises OSError without one."""
    for port in _chance.sample(_RANGE, len(_RANGE)):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(errno.EADDRINUSE, f"no port from {_RANGE.start} to {_RANGE.stop - 1} is free")
