"""Fixtures of the cluster level, and its refusal to run outside of the sandbox."""

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec, alike
from tests.chart.helm import Helm
from tests.cluster.binaries import DEFAULT_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.driver import CHECKOUT, Driver
from tests.cluster.release import Release
from tests.cluster.settings import Settings, inside
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
_RELEASE_GPUS = NodeSpec(
    gpus=(
        GpuSpec(model="h100-80gb", count=9),
        GpuSpec(
            model="h100-80gb",
            partitions=tuple(PartitionSpec(profile=name) for name in ("3g.40gb", "1g.10gb")),
        ),
        GpuSpec(model="t4"),
    )
)
_DYNAMIC = CHECKOUT / "examples/nodeconfigs/dynamic.yaml"
_SETTINGS = inside()


_left_out: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not run on this cluster, all where there is none; the summary says so."""
    here = [item for item in items if item.path.is_relative_to(_HERE)]
    whole = {item.path for item in here} == set(_HERE.glob("test_*.py"))
    reasons = {
        item: why for item in here if (why := _left_out_because(item, _SETTINGS, whole=whole))
    }
    _left_out.update(reasons.values())
    config.hook.pytest_deselected(items=list(reasons))
    items[:] = [item for item in items if item not in reasons]
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Sort by who has to wait for others.

    The release takes the place of the driver that other tests have, for the rest of the run, until
    it is `removed`; what looks at the whole run comes after that.
    """
    if item.get_closest_marker("last"):
        return 3
    fixtures = getattr(item, "fixturenames", ())
    return 2 if "removed" in fixtures else int("released" in fixtures)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests of this folder did not run."""
    for reason, count in _left_out.items():
        terminalreporter.write_line(f"tests/cluster: {count} not run: {reason}")


def _left_out_because(item: pytest.Item, settings: Settings | None, *, whole: bool) -> str:
    """Say why a test does not run on this cluster; empty if it does.

    The newest release runs everything that its gates allow; others run what is marked, and with
    gates of their own only what these are for. What looks at the others' results needs a run of the
    `whole` folder.
    """
    if settings is None:
        return "they need a sandbox: python -m tests.cluster run"
    wanted, unwanted = (
        {str(gate) for mark in item.iter_markers(name) for gate in mark.args}
        for name in ("gate", "no_gate")
    )
    for gate in sorted(wanted | unwanted):
        if settings.has(gate) != (gate in wanted):
            return f"{gate} is {'off' if gate in wanted else 'on'} in this cluster"
    marks = {mark.name for mark in item.iter_markers()}
    if "last" in marks and not whole:
        return "they judge a run of the whole folder"
    if settings.version == DEFAULT_VERSION or "every_cluster" in marks:
        return ""
    fitting = {"gate"} if settings.feature_gates else {"no_gate", "every_release"}
    return "" if marks & fitting else f"they run on {DEFAULT_VERSION} or with other gates"


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


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give Helm, which needs no cluster to render the chart."""
    assert _SETTINGS is not None
    return Helm(Path(_SETTINGS.program("helm")), tmp_path_factory.mktemp("helm"))


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
    """Give the driver, with all of its devices published."""
    installed.wait_settled()
    return installed


@pytest.fixture(scope="session")
def released(installed: Driver, helm: Helm) -> Iterator[Release]:
    """Remove the driver that other tests have, and install it as Pods by Helm."""
    installed.remove()
    made = Release(installed, helm, _RELEASE_GPUS)
    made.install()
    yield made
    made.close()


@pytest.fixture
def release(released: Release) -> Release:
    """Give the driver as Pods, with all of its devices published."""
    released.wait_settled()
    return released


@pytest.fixture
def release_namespace(release: Release) -> Iterator[Namespace]:
    """Make a namespace for one test; afterwards nothing of its claims is on the node."""
    with release.namespace() as made:
        yield made


@pytest.fixture(scope="module")
def installed_partitioning(installed: Driver) -> Iterator[Driver]:
    """Give the node other GPUs, of which partitions are made for claims."""
    newest = installed.cluster.settings.version == DEFAULT_VERSION
    made = Driver(installed.cluster, alike("h100-80gb", 8 if newest else 2), _DYNAMIC.read_text())
    with made.in_place_of(installed):
        yield made


@pytest.fixture
def partitioning(installed_partitioning: Driver) -> Driver:
    """Give the driver that makes partitions for claims, with all that can be made published."""
    installed_partitioning.wait_settled()
    return installed_partitioning


@pytest.fixture
def gpu_namespace(driver: Driver) -> Iterator[Namespace]:
    """Make a namespace for one test; afterwards nothing of its claims is on the node."""
    with driver.namespace() as made:
        yield made
