"""Prepare and Unprepare: the engine that every claim on this node goes through."""

from dra_driver.claims.effects import CdiEffect, Effect
from dra_driver.claims.engine import Engine
from dra_driver.claims.janitor import Janitor

__all__ = ["CdiEffect", "Effect", "Engine", "Janitor"]
