"""Large blocks go back to the system, whatever was allocated before."""

import subprocess
import sys

import pytest

_SCRIPT = """
import ctypes, sys
from dra_driver.host import give_large_blocks_back

class Info(ctypes.Structure):  # struct mallinfo2 of malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                 "uordblks", "fordblks", "keepcost")]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
if "set" in sys.argv:
    give_large_blocks_back()
block = bytearray(8 << 20)
del block
before = ask().hblks
block = bytearray(4 << 20)
print(ask().hblks - before)
"""


@pytest.mark.parametrize(("arguments", "own"), [([], "0"), (["set"], "1")])
def test_a_large_block_lies_by_itself(arguments: list[str], own: str) -> None:
    """Without the setting a block is put where a larger one was freed: that is what it is for."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == own
