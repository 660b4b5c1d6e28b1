"""Probes over HTTP and gRPC: what they answer when all is well, and each reason when it is not."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from dra_driver.model.errors import SettingInvalid
from dra_driver.plugin.http_server import HttpServer, Page
from dra_driver.plugin.probes import HealthPort, http_endpoint
from dra_driver.rpc import health_check_pb2
from dra_driver.rpc.health_check_pb2_grpc import HealthStub
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.telemetry import Metrics
from tests.support.kubelet import DRIVER, PluginSide, eventually


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Endpoint:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.server = http_endpoint(
            "127.0.0.1:0", lambda: self.reasons, lambda: self.reasons, Metrics()
        )


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    endpoint.server.start()
    yield endpoint
    endpoint.server.stop()


def test_http_answers_ok_or_one_line_per_reason(endpoint: Endpoint) -> None:
    port = endpoint.server.port
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz?verbose=1") == (200, "ok\n")
    endpoint.reasons = ["not\nregistered", "no slices"]
    assert get(port, "/healthz") == (503, "not registered\nno slices\n")
    assert get(port, "/readyz") == (503, "not registered\nno slices\n")
    assert get(port, "/metrics")[0] == 200
    assert "gpu_dra_driver_registered 0.0" in get(port, "/metrics")[1]
    assert get(port, "/etc/passwd") == (404, "no such page\n")


def test_http_survives_clients_that_say_nothing(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.plugin.http_server._Handler.timeout", 1.0)
    address = ("127.0.0.1", endpoint.server.port)
    silent = [socket.create_connection(address) for _ in range(20)]
    eventually(lambda: _answers(endpoint.server.port), "an answer in spite of silent clients")
    for client in silent:
        client.close()


def _answers(port: int) -> bool:
    try:
        return get(port, "/healthz") == (200, "ok\n")
    except OSError:
        return False


def test_http_listens_on_ipv4_and_ipv6_when_no_host_is_given() -> None:
    server = HttpServer(":0", {"/": lambda: Page(b"here")})
    server.start()
    assert get(server.port, "/") == (200, "here")
    if socket.has_dualstack_ipv6():
        with urllib.request.urlopen(f"http://[::1]:{server.port}/", timeout=30) as answer:
            assert answer.read() == b"here"
    server.stop()


@pytest.mark.parametrize("address", ["8080", ":port", ":70000", "host", ""])
def test_a_bad_http_address_is_named(address: str) -> None:
    with pytest.raises(SettingInvalid, match=r"--http-endpoint: .* is not an address"):
        HttpServer(address, {})


def test_ports_that_are_taken_are_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalid, match=f"--http-endpoint: .*:{port}: Address already"):
            HttpServer(f":{port}", {}).start()
        with pytest.raises(SettingInvalid, match=f"--healthcheck-port: .* port {port}"):
            HealthPort(port, list).start()


def test_the_grpc_health_service_answers_by_service_name() -> None:
    reasons: list[str] = []
    with socket.create_server(("", 0)) as free:
        number = free.getsockname()[1]
    port = HealthPort(number, lambda: reasons)
    port.start()
    status = health_check_pb2.HealthCheckResponse.ServingStatus
    with grpc.insecure_channel(f"127.0.0.1:{number}") as channel:
        for service in ("", "liveness"):
            request = health_check_pb2.HealthCheckRequest(service=service)
            assert HealthStub(channel).Check(request, timeout=30).status == status.SERVING
            reasons.append("a reason")
            assert HealthStub(channel).Check(request, timeout=30).status == status.NOT_SERVING
            reasons.clear()
        with pytest.raises(grpc.RpcError) as error:
            HealthStub(channel).Check(
                health_check_pb2.HealthCheckRequest(service="other"), timeout=30
            )
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
    port.stop()


def test_ready_names_each_reason(side: PluginSide, kubelet: Kubelet) -> None:
    services = side.build()
    reasons = {"slices": "slices are not complete"}
    checks = services.checks(lambda: reasons["slices"], lambda: "")
    kubelet.stop()
    services.start()
    assert checks.alive() == []
    assert checks.ready() == [
        "the kubelet has not asked for this plugin yet",
        "slices are not complete",
    ]
    kubelet.start()
    kubelet.wait_registered(DRIVER, 10)
    reasons["slices"] = ""
    assert checks.ready() == []
    services.leave(0).wait(5)
    services.close()
    side.services.clear()
    folder = side.folder
    assert [text.split(":")[0] for text in checks.alive()] == [
        f"{folder}/registry/gpu.nvidia.com-reg.sock does not answer",
        f"{folder}/plugins/gpu.nvidia.com/dra.sock does not answer",
    ]
