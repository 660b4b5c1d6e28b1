"""Prepare and Unprepare: the engine that every claim on this node goes through."""

from dra_driver.claims.effects import CdiEffect, Effect
from dra_driver.claims.engine import Engine

__all__ = ["CdiEffect", "Effect", "Engine"]
