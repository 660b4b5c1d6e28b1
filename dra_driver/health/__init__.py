"""How well the GPUs are: what polling finds and what NVML's events tell, put into the snapshot.

Read `hardware` first: it has the snapshot that slices and claims use. `findings` decides which
device an event concerns and when that is over, `xids` which XIDs are the hardware's fault,
`notices` what people are told. `other_allocators` finds who else gives the GPUs out.
"""

from dra_driver.health.hardware import Hardware
from dra_driver.health.other_allocators import OtherAllocators

__all__ = ["Hardware", "OtherAllocators"]
