"""What the tests of CDI documents share."""

from pathlib import Path

import pytest

from tests.support.driver_tree import DriverTree


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return DriverTree(tmp_path / "root").build()
