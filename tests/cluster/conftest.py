"""Fixtures of the cluster level, and its refusal to run outside of the sandbox."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec
from tests.cluster.cluster import Cluster
from tests.cluster.driver import Driver
from tests.cluster.settings import inside
from tests.cluster.workload import Namespace

_HERE = Path(__file__).parent
_GPUS = NodeSpec(
    gpus=(
        GpuSpec(model="t4"),
        GpuSpec(model="h100-80gb", count=8),
        GpuSpec(model="h100-80gb", partitions=(PartitionSpec(profile="1g.10gb"),)),
        GpuSpec(
            model="h100-80gb",
            partitions=tuple(PartitionSpec(profile=name) for name in ("3g.40gb", "1g.10gb")),
        ),
    )
)
_SETTINGS = inside()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave this folder's tests out where there is no sandbox; the summary says so."""
    if _SETTINGS is None:
        here = [item for item in items if item.path.is_relative_to(_HERE)]
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why nothing of this folder ran."""
    if _SETTINGS is None:
        terminalreporter.write_line(
            "tests/cluster: not run, needs its sandbox: python -m tests.cluster run"
        )


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Boot a cluster with one Ready node."""
    assert _SETTINGS is not None
    started = time.monotonic()
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[{time.monotonic() - started:5.1f}s] {message}", end="", flush=True)

    booted = Cluster(_SETTINGS)
    try:
        booted.boot(say)
        yield booted
    finally:
        booted.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """Make a namespace for one test; afterwards its Pods and claims are gone."""
    made = Namespace(cluster, f"test-{secrets.token_hex(4)}")
    made.create()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Iterator[Driver]:
    """Make the node one of GPUs of several kinds, and install the driver on it."""
    made = Driver(cluster, _GPUS)
    made.install()
    yield made
    made.close()


@pytest.fixture
def driver(installed: Driver) -> Driver:
    """Give the driver, ready: an earlier test may have disturbed it."""
    installed.main.wait_ready()
    return installed


@pytest.fixture
def gpu_namespace(driver: Driver) -> Iterator[Namespace]:
    """Make a namespace for one test; afterwards nothing of its claims is on the node."""
    with driver.namespace() as made:
        yield made
