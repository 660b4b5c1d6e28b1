"""A stand-in for the Kubernetes API server: real HTTP, objects in memory, faults on request."""

from dra_driver.simulator.api_server.kinds import ApiError
from dra_driver.simulator.api_server.server import ApiServer

__all__ = ["ApiError", "ApiServer"]
