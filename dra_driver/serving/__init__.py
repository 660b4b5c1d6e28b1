"""gRPC services on unix sockets of our own, as the plugin and the MPS agent offer them."""

from dra_driver.serving.leaving import leave
from dra_driver.serving.methods import Method, Service, service, stream, unary
from dra_driver.serving.sockets import SocketServer, is_served, sweep_dead_sockets

__all__ = [
    "Method",
    "Service",
    "SocketServer",
    "is_served",
    "leave",
    "service",
    "stream",
    "sweep_dead_sockets",
    "unary",
]
