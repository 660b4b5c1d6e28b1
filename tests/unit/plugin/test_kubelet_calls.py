"""Registration, Prepare and Unprepare over real sockets, seen by the kubelet stand-in."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote

import grpc
import pytest

from dra_driver.model import PreparedClaim, PreparedDevice
from dra_driver.model.errors import ApiUnavailable
from dra_driver.rpc.registration_v1_pb2 import InfoRequest
from dra_driver.rpc.registration_v1_pb2_grpc import RegistrationStub
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.kubelet_plugin import CallFailed, PluginConnection, introduce, notify
from tests.support.kubelet import DRIVER, PluginSide, claim, eventually, prepared


def test_the_kubelet_finds_and_registers_the_plugin(side: PluginSide, kubelet: Kubelet) -> None:
    side.build().start()
    plugin = kubelet.wait_registered(DRIVER, 60)
    assert plugin.introduction.kind == "DRAPlugin"
    assert plugin.introduction.endpoint == side.folder / "plugins/gpu.nvidia.com/dra.sock"
    assert plugin.introduction.versions == (
        "v1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )
    assert side.registered.wait(60)
    assert b"gpu_dra_driver_registered 1.0" in side.metrics.exposition()


def test_the_metric_tells_of_the_registration_that_counts(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is offered anew while the kubelet's word on the old one is still being noted."""
    services = side.build()
    services.start()
    set_metric = side.metrics.set
    offered = threading.Thread(target=services._registration.offered_anew)

    def slow(name: str, value: float, **labels: str) -> None:
        if value:
            offered.start()
            offered.join(0.2)
        set_metric(name, value, **labels)

    monkeypatch.setattr(side.metrics, "set", slow)
    notify(side.settings().registration_socket, "")
    offered.join()
    assert "has not asked" in services._registration.problem
    assert b"gpu_dra_driver_registered 0.0" in side.metrics.exposition()


@pytest.mark.parametrize("authority", ["localhost", "quoted path", "raw path"])
def test_every_spelling_of_the_authority_is_taken(side: PluginSide, authority: str) -> None:
    """Releases of grpc-go send the socket's path, as it is or percent-encoded, or localhost."""
    side.build().start()
    path = str(side.settings().registration_socket)
    name = {"localhost": "localhost", "quoted path": quote(path, safe=""), "raw path": path}
    options = (("grpc.default_authority", name[authority]),)
    with grpc.insecure_channel(f"unix:{path}", options) as channel:
        info = RegistrationStub(channel).GetInfo(InfoRequest(), timeout=60)
    assert info.name == DRIVER


def test_an_error_after_the_registration_is_not_the_kubelets(side: PluginSide) -> None:
    def fail() -> None:
        raise RuntimeError("not now")

    services = side.build(on_registered=fail)
    services.start()
    notify(side.settings().registration_socket, "")
    assert services.checks().ready() == []


def test_silence_of_the_kubelet_is_reported_once(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("dra_driver.plugin.keeper._SILENCE_SECONDS", 0.2)
    monkeypatch.setattr("dra_driver.plugin.keeper._log.error", lambda text, **_: said.append(text))
    side.build().start()
    eventually(lambda: said, "a word about the silence")
    path = side.settings().service_socket
    path.unlink()
    eventually(path.exists, "several looks later")
    (text,) = said
    assert "no kubelet has asked for this plugin" in text


def test_an_answer_carries_every_field(side: PluginSide, kubelet: Kubelet) -> None:
    ids = ("k8s.gpu.nvidia.com/claim=a", "k8s.gpu.nvidia.com/driver=common")
    first, second = claim(1), claim(2)
    side.engine.answers = {
        first.uid: PreparedClaim(
            first, (PreparedDevice("gpus", "node-a", "gpu-3", "GPU-3", ids, share_id="s-1"),)
        ),
        second.uid: PreparedClaim(second, ()),
    }
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    answer = kubelet.prepare(DRIVER, [first, second])
    (device,) = answer[first.uid]
    assert (device.requests, device.pool, device.name) == (("gpus",), "node-a", "gpu-3")
    assert (device.cdi_ids, device.share_id) == (ids, "s-1")
    assert answer[second.uid] == ()
    assert side.engine.asked == [("prepare", (first, second))]


def test_an_error_has_its_reason_word_and_one_line(side: PluginSide, kubelet: Kubelet) -> None:
    side.engine.answers = {claim(1).uid: ApiUnavailable("no answer\nfrom the API server")}
    side.engine.unprepared = {claim(1).uid: ApiUnavailable("not now")}
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    with pytest.raises(CallFailed, match=r"claim-1: ApiUnavailable: no answer from the API"):
        kubelet.prepare(DRIVER, [claim(1)])
    with pytest.raises(CallFailed, match=r"claim-1: ApiUnavailable: not now$"):
        kubelet.unprepare(DRIVER, [claim(1)])
    text = side.metrics.exposition().decode()
    for operation in ("prepare", "unprepare"):
        of = f'operation="{operation}"'
        count = "gpu_dra_driver_request_duration_seconds_count"
        assert f'{count}{{{of},result="error"}} 1.0' in text
        assert f'{count}{{{of},result="ok"}} 0.0' in text
        for name in ("requests_total", "requests_inflight", "request_duration_seconds_count"):
            assert f'nvidia_dra_{name}{{driver="",{of}}} 0.0' in text, "successes only"


def test_a_claim_that_the_engine_forgets_is_answered_too(
    side: PluginSide, kubelet: Kubelet
) -> None:
    side.engine.answers = {claim(1).uid: prepared(claim(1)), "other": prepared(claim(3))}
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    with pytest.raises(CallFailed, match="claim-2: Bug: the engine gave no answer"):
        kubelet.prepare(DRIVER, [claim(1), claim(2)])


def test_an_engine_that_raises_is_explained(
    side: PluginSide, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("nobody")

    monkeypatch.setattr(side.engine, "prepare", fail)
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    with pytest.raises(CallFailed, match="claim-1: Bug: KeyError: 'nobody'"):
        kubelet.prepare(DRIVER, [claim(1)])


def test_a_call_that_the_kubelet_gave_up_is_cancelled(side: PluginSide, kubelet: Kubelet) -> None:
    side.engine.hang = True
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        kubelet.prepare(DRIVER, [claim(1)], timeout=0.2)
    assert side.engine.cancelled.wait(60)


def test_prepares_that_hang_hold_up_nothing_else(side: PluginSide, kubelet: Kubelet) -> None:
    """As many hanging Prepares as there are threads: all else answers, registration in a second."""
    side.engine.hang = True
    services = side.build()
    services.start()
    plugin = kubelet.wait_registered(DRIVER, 60)
    with ThreadPoolExecutor(70) as callers:
        calls = [callers.submit(kubelet.prepare, DRIVER, [claim(n)]) for n in range(70)]
        eventually(lambda: len(side.engine.asked) >= 64, "all threads hang")
        kubelet.unprepare(DRIVER, [claim(1)], timeout=60)
        received = plugin.health.received
        services.health_changed()
        eventually(lambda: plugin.health.received > received, "a health report")
        assert services.checks().alive() == []
        kubelet.restart()
        kubelet.wait_registered(DRIVER, 60)
        print(f"GetInfo took {kubelet.history[-1].seconds:.4f} s")
        assert kubelet.history[-1].what == "registered"
        side.engine.release.set()
        for call in calls:
            call.exception(60)  # ended with the kubelet, or answered: it did not hang


def test_stop_lets_calls_finish_but_not_for_ever(side: PluginSide) -> None:
    side.engine.hang = True
    services = side.build()
    services.start()
    connection = PluginConnection(introduce(side.settings().registration_socket), minor=37)
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(connection.prepare, [claim(1)], 45)
        eventually(lambda: side.engine.asked, "the call is there")
        idle = services.leave(1.0)
        assert not side.settings().registration_socket.exists()
        assert not idle.is_set(), "the call has its grace"
        assert idle.wait(60), "the call is cut off"
        with pytest.raises(CallFailed):
            call.result(60)
        side.engine.release.set()
    connection.close()


def test_hanging_up_waits_for_the_thread_that_watches_the_link(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would raise on a closed channel, and here it is slow at the place where that happens."""
    watching, goes_on = threading.Event(), threading.Event()

    def slow_time() -> float:
        if sys._getframe(1).f_code.co_name == "_poll_connectivity":
            watching.set()
            goes_on.wait(60)
        return time.time()

    side.build().start()
    clock = SimpleNamespace(time=slow_time, perf_counter=time.perf_counter)
    monkeypatch.setattr("grpc._channel.time", clock)
    connection = PluginConnection(introduce(side.settings().registration_socket), minor=37)
    assert watching.wait(60)
    later = threading.Timer(0.3, goes_on.set)
    later.start()
    connection.close()
    later.join()


def test_the_kubelet_does_not_cut_a_call_of_an_instance_that_leaves(
    side: PluginSide, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the connection when the registration socket is gone, calls in progress or not."""
    monkeypatch.setattr("dra_driver.plugin.kubelet_services._CALM_SECONDS", 60.0)
    side.engine.hang = True
    services = side.build()
    services.start()
    kubelet.wait_registered(DRIVER, 60)
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(kubelet.prepare, DRIVER, [claim(1)])
        eventually(lambda: side.engine.asked, "the call is there")
        leaving = threads.submit(services.leave, 1.0)
        time.sleep(0.5)  # ten times what the stand-in takes to see that a socket is gone
        assert side.settings().registration_socket.exists()
        side.engine.release.set()
        assert len(call.result(60)) == 1
        assert leaving.result(60).wait(60)
    kubelet.wait_gone(DRIVER, 60)
