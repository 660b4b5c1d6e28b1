"""CDI documents: what container runtimes give to the containers of a claim.

One file per claim names the claim's devices; what all GPUs share (libraries, control nodes,
sockets, firmware, the hook) is one further device that a container gets once, however many claims
it has, since runtimes deduplicate CDI ids.
"""

from dra_driver.cdi.names import CdiDevice
from dra_driver.cdi.specs import ClaimSpecs

__all__ = ["CdiDevice", "ClaimSpecs"]
