"""NVML: the only package that talks to the GPU driver's management library.

Read `discovery` first: one thread keeps a `model.Inventory` up to date. It opens a `session` (one
use of one library), whose `worker` threads make the calls that may hang; `gpu`, `partitions` and
`condition` turn the answers of `reads` into the model, `snapshot` compares looks, `errors` says
what each NVML error means. Jobs that change a GPU run on its worker, too, and see it as `mig_gpu`
shows it, on top of `writes`. Between the looks `event_service` listens for `events`.
"""

from dra_driver.nvml.discovery import Discovery, Look
from dra_driver.nvml.errors import GpuAbsent, GpuLost
from dra_driver.nvml.events import EventKind, HardwareEvent
from dra_driver.nvml.jobs import GpuJobs, Gpus
from dra_driver.nvml.library import find_library
from dra_driver.nvml.mig_gpu import ComputeInstance, GpuInstance, MigGpu

__all__ = [
    "ComputeInstance",
    "Discovery",
    "EventKind",
    "GpuAbsent",
    "GpuInstance",
    "GpuJobs",
    "GpuLost",
    "Gpus",
    "HardwareEvent",
    "Look",
    "MigGpu",
    "find_library",
]
