"""How Python methods become gRPC services whose methods cannot starve each other."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Service: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


def unary(
    method: Callable[[Request, grpc.ServicerContext], Answer],
    request: type[Request],
    pool: ThreadPoolExecutor,
) -> Method:
    """Handle calls with one answer in threads of `pool`."""
    return grpc.unary_unary_rpc_method_handler(_InPool(method, pool), request.FromString, _to_wire)


def stream(
    method: Callable[[Request, grpc.ServicerContext], Iterator[Answer]],
    request: type[Request],
    pool: ThreadPoolExecutor,
) -> Method:
    """Handle calls with many answers; each occupies one thread of `pool` until it ends."""
    return grpc.unary_stream_rpc_method_handler(_InPool(method, pool), request.FromString, _to_wire)


def service(description: ServiceDescriptor, methods: Mapping[str, Method]) -> Service:
    """Offer `methods`, which must be all of them, under the names in the protocol file."""
    assert set(methods) == set(description.methods_by_name)  # noqa: S101 - a slip of ours
    return grpc.method_handlers_generic_handler(description.full_name, dict(methods))


class _InPool(Generic[Request, Result]):
    """A method that grpcio runs in a pool of its own instead of the server's.

    grpcio reads the attribute of this name (grpc/_server.py, _select_thread_pool_for_behavior); a
    test watches that it still does.
    """

    def __init__(
        self,
        method: Callable[[Request, grpc.ServicerContext], Result],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._method = method
        self.experimental_thread_pool = pool

    def __call__(self, request: Request, context: grpc.ServicerContext) -> Result:
        return self._method(request, context)


def _to_wire(message: Message) -> bytes:
    return message.SerializeToString()
