"""Prepare and Unprepare: the engine that every claim on this node goes through.

And what changes a node without a call: the `janitor` and the `layouts`.
"""

from dra_driver.claims.effects import CdiEffect, Effect, GpuEffects
from dra_driver.claims.engine import Engine
from dra_driver.claims.janitor import Janitor
from dra_driver.claims.layout_label import LayoutLabel
from dra_driver.claims.layout_status import LayoutReports
from dra_driver.claims.layouts import Layouts
from dra_driver.claims.waiting_policies import WaitingPolicies

__all__ = [
    "CdiEffect",
    "Effect",
    "Engine",
    "GpuEffects",
    "Janitor",
    "LayoutLabel",
    "LayoutReports",
    "Layouts",
    "WaitingPolicies",
]
