"""Fixtures of the faults level, and the order of its tests."""

import pytest

from tests.support.node import make_node
from tests.support.plugin_process import make_bed

__all__ = ["make_bed", "make_node"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what looks at the others' results behind them, after the random order was chosen."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
