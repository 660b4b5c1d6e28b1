"""Fixtures of the simulator's tests."""

from tests.support.mps import mps
from tests.support.node import make_node
from tests.support.nvml import nvml_node, use_nvml

__all__ = ["make_node", "mps", "nvml_node", "use_nvml"]
