"""Fixtures of the node level."""

from tests.support.discovery import watch
from tests.support.hardware import ward
from tests.support.layouts import layout_bed
from tests.support.mig import mig_bed
from tests.support.mps import mps
from tests.support.mps_agent import make_mps_bed
from tests.support.node import make_node
from tests.support.plugin_process import make_bed

__all__ = [
    "layout_bed",
    "make_bed",
    "make_mps_bed",
    "make_node",
    "mig_bed",
    "mps",
    "ward",
    "watch",
]
