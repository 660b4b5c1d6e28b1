"""ResourceSlices: a pure builder, and the publisher that keeps the API server in line with it."""

from dra_driver.slices.abilities import ServerAbilities
from dra_driver.slices.builder import PoolPlan, SlicePlan, build_slices, slice_object
from dra_driver.slices.devices import resource_name
from dra_driver.slices.left_out import LeftOut, Why
from dra_driver.slices.publisher import Publisher
from dra_driver.slices.rules import Violation, check_device, check_spec

__all__ = [
    "LeftOut",
    "PoolPlan",
    "Publisher",
    "ServerAbilities",
    "SlicePlan",
    "Violation",
    "Why",
    "build_slices",
    "check_device",
    "check_spec",
    "resource_name",
    "slice_object",
]
