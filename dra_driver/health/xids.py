"""XIDs: the error numbers by which the GPU driver says what went wrong."""

from typing import Final

# The fault of the program that ran, as the device plugin and the driver we follow have it.
APPLICATION: Final = frozenset({13, 31, 43, 45, 68, 109})

# Says that the recovery action changed, also to none: the action itself is read, not the news.
ANNOUNCEMENT: Final = 154

# In our words, after NVIDIA's "XID errors" document; only for people to read.
_MEANINGS: Final[dict[int, str]] = {
    13: "the program did something invalid",
    31: "the program accessed memory that is not its own",
    43: "the program was stopped by the GPU",
    45: "the program was ended",
    48: "double-bit memory error",
    62: "the GPU's own controller halted",
    63: "a memory row was remapped or a page retired",
    64: "a memory row could not be remapped or a page retired",
    68: "video processor exception",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "memory error, contained",
    95: "memory error, not contained",
    109: "context switch timeout",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "memory errors that are not corrected",
}


def meaning(xid: int) -> str:
    """`XID 79 (the GPU has fallen off the bus)`."""
    return f"XID {xid} ({_MEANINGS[xid]})" if xid in _MEANINGS else f"XID {xid}"
