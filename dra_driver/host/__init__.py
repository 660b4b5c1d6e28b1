"""The machine below: durable files, locks, child processes, `/proc` and `/sys` of the host.

The only package that imports subprocess, fcntl or mount calls.
"""

from dra_driver.host.children import Child
from dra_driver.host.failpoints import failpoint, failpoints_of
from dra_driver.host.files import (
    ensure_folder,
    fsyncs,
    link_atomically,
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
from dra_driver.host.mounts import is_mounted, mount_tmpfs, set_label, unmount
from dra_driver.host.programs import Finished, programs_run, run_program
from dra_driver.host.roots import HostProcess, HostRoot, inside
from dra_driver.host.signals import told_to_stop
from dra_driver.host.strays import end_strays, strays

__all__ = [
    "Child",
    "FileLock",
    "Finished",
    "HostProcess",
    "HostRoot",
    "MarkedLock",
    "RangeLock",
    "end_strays",
    "ensure_folder",
    "failpoint",
    "failpoints_of",
    "fsyncs",
    "give_large_blocks_back",
    "inside",
    "is_mounted",
    "link_atomically",
    "list_folder",
    "mount_tmpfs",
    "programs_run",
    "read_file",
    "remove_durably",
    "remove_file",
    "run_program",
    "set_label",
    "strays",
    "sweep_unfinished",
    "told_to_stop",
    "unmount",
    "write_atomically",
    "write_durably",
]
