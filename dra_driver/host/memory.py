"""How the C library handles the memory of a process that runs for months."""

import ctypes
from contextlib import suppress
from typing import Final

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE: Final = 128 * 1024  # bytes; the C library's own value to begin with


def give_large_blocks_back() -> None:
    """Let blocks from 128 KiB on lie by themselves, so that freeing them gives them back.

    By default the limit rises to the largest block ever freed, and what is freed below it leaves
    holes. Python moves its table of interned strings (2 MB here) each time that so many new file
    names came by, so that 16,000 claims took 10 MB. Does nothing where the C library has no such
    setting. To be called before threads are started.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
