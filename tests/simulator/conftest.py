"""Fixtures of the simulator's tests."""

from tests.support.node import make_node

__all__ = ["make_node"]
