"""NVML: the only package that talks to the GPU driver's management library.

Read `discovery` first: one thread keeps a `model.Inventory` up to date. It opens a `session` (one
use of one library), whose `worker` threads make the calls that may hang; `gpu` and `partitions`
turn the answers of `reads` into the model, `snapshot` compares looks, `errors` says what each NVML
error means.
"""

from dra_driver.nvml.discovery import Discovery

__all__ = ["Discovery"]
