"""Fixtures of the faults level, and the order of its tests."""

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.support.node import make_node
from tests.support.plugin_process import make_bed

__all__ = ["make_bed", "make_node"]


@pytest.fixture
def fast_machine() -> Iterator[None]:
    """Do not wait for the disk, or long for a listener that ends: both happen often here."""
    with (
        mock.patch("dra_driver.host.files.os.fsync"),
        mock.patch("dra_driver.nvml.listener.WAIT_MILLISECONDS", 20),
        mock.patch("dra_driver.mig.partition._PATIENCE_SECONDS", 0.1),
    ):
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what looks at the others' results behind them, after the random order was chosen."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
