"""A stand-in API server and a client for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.config import Settings
from dra_driver.kube import KubeClient
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import settings_for


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def settings(server: ApiServer, tmp_path: Path) -> Settings:
    return settings_for(server, tmp_path)


@pytest.fixture
def kube(settings: Settings) -> Iterator[KubeClient]:
    client = KubeClient(settings)
    yield client
    client.close()
