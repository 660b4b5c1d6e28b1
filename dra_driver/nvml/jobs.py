"""Work on one GPU at a time, by any instance of this driver."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from dra_driver.config import Settings
from dra_driver.host import RangeLock
from dra_driver.nvml.mig_gpu import MigGpu

T = TypeVar("T")

_JOB_SECONDS: Final = 20.0  # for all calls about one device; a mode switch takes seconds
_LOCK_SECONDS: Final = 10.0


class Gpus(Protocol):
    """Whoever can run a job alone with one GPU, as `nvml.Discovery.on_gpu` does."""

    def on_gpu(self, uuid: str, job: Callable[[MigGpu], T], timeout: float) -> T:
        """Run it on that GPU's own thread."""


class GpuJobs:
    """Runs jobs on a GPU's own thread, under a lock that other instances respect.

    It is held until the job is over, however long ago its caller gave up.
    """

    def __init__(self, gpus: Gpus, settings: Settings) -> None:
        """Reach the hardware through `gpus`."""
        self._gpus = gpus
        self._locks = settings.data_folder / "gpus.lock"

    def run(self, gpu_uuid: str, job: Callable[[MigGpu], T]) -> T:
        """Give what the job gives; raises what it raises, and what `on_gpu` raises."""

        def locked(gpu: MigGpu) -> T:
            with RangeLock(self._locks, gpu_uuid, _LOCK_SECONDS):
                return job(gpu)

        return self._gpus.on_gpu(gpu_uuid, locked, _JOB_SECONDS)
