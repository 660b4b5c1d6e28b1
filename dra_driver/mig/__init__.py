"""MIG partitions made for claims: one step of Prepare and Unprepare.

`effect` is the step, `partition` what it does to one GPU, `refusals` what it says when it can't.
"""

from dra_driver.mig.effect import Gpus, MigEffect

__all__ = ["Gpus", "MigEffect"]
