"""The gRPC probe: what it answers when all is well, and each reason when it is not."""

import socket

import grpc
import pytest

from dra_driver.model.errors import SettingInvalid
from dra_driver.plugin.probes import HealthPort
from dra_driver.rpc import health_check_pb2
from dra_driver.rpc.health_check_pb2_grpc import HealthStub
from dra_driver.simulator.kubelet import Kubelet
from tests.support.kubelet import DRIVER, PluginSide


def test_ports_that_are_taken_are_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
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
            assert HealthStub(channel).Check(request, timeout=60).status == status.SERVING
            reasons.append("a reason")
            assert HealthStub(channel).Check(request, timeout=60).status == status.NOT_SERVING
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
    kubelet.wait_registered(DRIVER, 60)
    reasons["slices"] = ""
    assert checks.ready() == []
    services.leave(0).wait(60)
    services.close()
    side.services.clear()
    folder = side.folder
    assert [text.split(":")[0] for text in checks.alive()] == [
        f"{folder}/registry/gpu.nvidia.com-reg.sock does not answer",
        f"{folder}/plugins/gpu.nvidia.com/dra.sock does not answer",
    ]
