"""How programs share a device: time-slices, memory limits and MPS, put back after the last claim.

Read `effect` first: it is the step of Prepare and Unprepare. The files named `mps…` are MPS: `mps`
asks the agent (`mps_client`) for what records say (`mps_sets`), `mps_watch` tells what becomes of
it. What plugin and agent have in common is in `mps_spec`, `mps_notes` and `mps_modes`.
"""

from dra_driver.sharing.effect import SharingEffect
from dra_driver.sharing.mps_watch import MpsWatch

__all__ = ["MpsWatch", "SharingEffect"]
