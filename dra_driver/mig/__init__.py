"""MIG partitions: made for claims as one step of Prepare and Unprepare, and for layouts.

`effect` is the step, `layout` what layouts need, `partition` what is done to one GPU, `refusals`
what is said when it can't be, and `nvml.jobs` who works on a GPU when.
"""

from dra_driver.mig.effect import MigEffect
from dra_driver.mig.layout import LayoutEffect, Standing, StandingPartition
from dra_driver.nvml.jobs import Gpus

__all__ = ["Gpus", "LayoutEffect", "MigEffect", "Standing", "StandingPartition"]
