"""Health streams: complete, at once, after each change, repeated, and ended in time."""

from pathlib import Path

import pytest

from dra_driver.model import Gpu, Health, HealthState, Inventory
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.kubelet_health import HealthWatch
from dra_driver.simulator.kubelet_plugin import PluginConnection, introduce
from tests.support.kubelet import PluginSide, eventually

GPU_0, GPU_1 = ("node-a", "gpu-0"), ("node-a", "gpu-1")


def connect(side: PluginSide, minor: int) -> PluginConnection:
    return PluginConnection(introduce(side.settings().registration_socket), minor)


def first_report(connection: PluginConnection) -> HealthWatch:
    eventually(lambda: connection.health.received, "a first report")
    return connection.health


@pytest.mark.parametrize(
    ("minor", "version"),
    [(34, "v1alpha1.DRAResourceHealth"), (37, "v1.DRAResourceHealth")],
)
def test_the_first_report_comes_at_once_in_both_versions(
    side: PluginSide, minor: int, version: str
) -> None:
    sick = Gpu("GPU-1", 1, "H100", health=Health(HealthState.UNHEALTHY, "xid", "XID 79"))
    side.inventory = Inventory(gpus=(Gpu("GPU-0", 0, "H100"), sick))
    side.build().start()
    connection = connect(side, minor)
    health = first_report(connection)
    assert health.version == version
    assert set(health.reports) == {GPU_0, GPU_1}
    assert (health.reports[GPU_0].state, health.reports[GPU_0].timeout) == ("HEALTHY", 30)
    assert (health.reports[GPU_1].state, health.reports[GPU_1].message) == ("UNHEALTHY", "XID 79")
    connection.close()


def test_a_change_is_sent_at_once_to_every_stream(side: PluginSide) -> None:
    services = side.build()
    services.start()
    connections = [connect(side, minor) for minor in (36, 37)]
    for connection in connections:
        first_report(connection)
    side.inventory = Inventory(gpus=(Gpu("GPU-0", 0, "H100"), Gpu("GPU-1", 1, "H100")))
    services.health_changed()
    seconds = eventually(
        lambda: all(GPU_1 in connection.health.reports for connection in connections),
        "the new GPU is reported",
    )
    print(f"reported after {seconds:.3f} s")
    for connection in connections:
        connection.close()


def test_reports_are_repeated_while_nothing_changes(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.plugin.health._REPEAT_SECONDS", 0.2)
    side.build().start()
    connection = connect(side, 37)
    eventually(lambda: connection.health.received >= 4, "four reports")
    connection.close()


def test_old_news_is_not_called_healthy(side: PluginSide) -> None:
    services = side.build()
    services.start()
    connection = connect(side, 37)
    first_report(connection)
    side.stale = "the GPU driver does not answer"
    services.health_changed()
    eventually(
        lambda: connection.health.reports[GPU_0].state == "UNKNOWN", "unknown instead of healthy"
    )
    assert connection.health.reports[GPU_0].message == "the GPU driver does not answer"
    connection.close()


def test_before_the_first_inventory_the_list_is_empty(side: PluginSide) -> None:
    side.inventory = None
    side.build().start()
    connection = connect(side, 37)
    assert first_report(connection).reports == {}
    connection.close()


def test_a_long_message_is_cut_between_characters(side: PluginSide) -> None:
    sick = Health(HealthState.UNHEALTHY, "xid", "é" * 1000)
    side.inventory = Inventory(gpus=(Gpu("GPU-0", 0, "H100", health=sick),))
    side.build().start()
    connection = connect(side, 37)
    message = first_report(connection).reports[GPU_0].message
    assert message == "é" * 512
    connection.close()


def test_streams_end_promptly_at_stop_and_give_their_threads_back(side: PluginSide) -> None:
    services = side.build()
    services.start()
    connections = [connect(side, 37) for _ in range(8)]
    for connection in connections:
        first_report(connection)
    assert services.leave(600).wait(60), "streams were not ended, only cut off after the grace"
    for connection in connections:
        connection.close()


def test_more_kubelets_than_streams_come_and_go(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that go away leave no thread behind."""
    monkeypatch.setattr("dra_driver.plugin.health._STREAMS", 2)
    side.build().start()
    for _ in range(6):
        connection = connect(side, 37)
        first_report(connection)
        connection.close()


def test_a_kubelet_forgets_health_when_the_stream_ends(side: PluginSide, kubelet: Kubelet) -> None:
    services = side.build()
    services.start()
    plugin = kubelet.wait_registered("gpu.nvidia.com", 60)
    first_report(plugin)
    services.leave(0).wait(60)
    eventually(lambda: plugin.health.reports == {}, "forgotten")
    assert not Path(plugin.introduction.endpoint).exists()
