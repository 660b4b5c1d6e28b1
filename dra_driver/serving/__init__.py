"""gRPC services on unix sockets of our own, as the plugin and the MPS agent offer them."""

from dra_driver.serving.leaving import leave
from dra_driver.serving.methods import Method, Service, service, stream, unary
from dra_driver.serving.sockets import SocketServer, sweep_dead_sockets

__all__ = [
    "Method",
    "Service",
    "SocketServer",
    "leave",
    "service",
    "stream",
    "sweep_dead_sockets",
    "unary",
]
