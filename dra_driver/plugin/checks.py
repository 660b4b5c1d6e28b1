"""What the probes find out, each answer a list of reasons why not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.rpc import dra_v1_pb2, health_check_pb2, registration_v1_pb2
from dra_driver.rpc.dra_v1_pb2_grpc import DRAPluginStub
from dra_driver.rpc.health_check_pb2_grpc import HealthStub
from dra_driver.rpc.registration_v1_pb2_grpc import RegistrationStub

_DEADLINE_SECONDS: Final = 5.0
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)  # connect anew for each check


class Checks:
    """Asks this process the questions that the kubelet would ask, over its own sockets."""

    def __init__(
        self,
        registration_socket: Path,
        service_socket: Path,
        problems: Sequence[Callable[[], str]],
    ) -> None:
        """Ready needs an answering plugin, and an empty text from each of `problems`."""
        self._registration_socket = registration_socket
        self._service_socket = service_socket
        self._problems = problems

    def alive(self) -> list[str]:
        """Whether both servers answer. Does not depend on claims that take long."""
        return _reasons(self._ask_info, self._ask_health)

    def ready(self) -> list[str]:
        """Whether this node can be used: answers, registered, complete slices in the API server."""
        return [
            *_reasons(self._ask_info, self._ask_empty_prepare),
            *(problem for ask in self._problems if (problem := ask())),
        ]

    def _ask_info(self) -> str:
        def ask(channel: grpc.Channel) -> None:
            request = registration_v1_pb2.InfoRequest()
            RegistrationStub(channel).GetInfo(request, timeout=_DEADLINE_SECONDS)

        return _call(self._registration_socket, ask)

    def _ask_health(self) -> str:
        def ask(channel: grpc.Channel) -> None:
            request = health_check_pb2.HealthCheckRequest()
            HealthStub(channel).Check(request, timeout=_DEADLINE_SECONDS)

        return _call(self._service_socket, ask)

    def _ask_empty_prepare(self) -> str:
        def ask(channel: grpc.Channel) -> None:
            request = dra_v1_pb2.NodePrepareResourcesRequest()
            DRAPluginStub(channel).NodePrepareResources(request, timeout=_DEADLINE_SECONDS)

        return _call(self._service_socket, ask)


def _reasons(*checks: Callable[[], str]) -> list[str]:
    return [reason for check in checks if (reason := check())]


def _call(path: Path, ask: Callable[[grpc.Channel], None]) -> str:
    """One question to one of our own sockets; the reason when it is not answered in time."""
    with grpc.insecure_channel(f"unix:{quote(str(path))}", _OPTIONS) as channel:
        try:
            ask(channel)
        except grpc.RpcError as error:
            return f"{path} does not answer: {_code(error)} within {_DEADLINE_SECONDS:.0f} s"
    return ""


def _code(error: grpc.RpcError) -> str:
    code = getattr(error, "code", None)  # what a call raises is also a grpc.Call, which has it
    return code().name if callable(code) else "UNKNOWN"
