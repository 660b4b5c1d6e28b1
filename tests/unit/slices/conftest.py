"""A stand-in API server with this node in it."""

from collections.abc import Iterator

import pytest

from dra_driver.simulator.api_server import ApiServer
from tests.support.api import add_node


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        add_node(running)
        yield running
