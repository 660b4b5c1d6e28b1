"""The machine below: durable files, locks, child processes, `/proc` and `/sys` of the host.

The only package that imports subprocess, fcntl or mount calls.
"""

from dra_driver.host.children import Child
from dra_driver.host.failpoints import failpoint, failpoints_of
from dra_driver.host.files import (
    ensure_folder,
    fsyncs,
    list_folder,
    read_file,
    remove_durably,
    remove_file,
    sweep_unfinished,
    write_atomically,
    write_durably,
)
from dra_driver.host.locks import FileLock, MarkedLock, RangeLock
from dra_driver.host.memory import give_large_blocks_back
from dra_driver.host.programs import Finished, run_program
from dra_driver.host.roots import HostProcess, HostRoot, inside
from dra_driver.host.signals import told_to_stop

__all__ = [
    "Child",
    "FileLock",
    "Finished",
    "HostProcess",
    "HostRoot",
    "MarkedLock",
    "RangeLock",
    "ensure_folder",
    "failpoint",
    "failpoints_of",
    "fsyncs",
    "give_large_blocks_back",
    "inside",
    "list_folder",
    "read_file",
    "remove_durably",
    "remove_file",
    "run_program",
    "sweep_unfinished",
    "told_to_stop",
    "write_atomically",
    "write_durably",
]
