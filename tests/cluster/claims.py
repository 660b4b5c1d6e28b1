"""Claims for GPUs, as tests make them."""

from typing import Any, Final

from tests.cluster.api import Object
from tests.cluster.driver import DRIVER
from tests.cluster.workload import RESOURCE_API

GPU_CLASS: Final = "gpu.nvidia.com"
MIG_CLASS: Final = "mig.nvidia.com"


def claim(name: str, device_class: str = GPU_CLASS, selector: str = "", **exactly: Any) -> Object:
    """Build a ResourceClaim with one request; further arguments are fields of it."""
    request: Object = {"deviceClassName": device_class, **exactly}
    if selector:
        request["selectors"] = [{"cel": {"expression": selector}}]
    return {
        "apiVersion": RESOURCE_API.removeprefix("/apis/"),
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
    }


def template(name: str, device_class: str, **exactly: Any) -> Object:
    """Build a ResourceClaimTemplate with one request."""
    made = claim(name, device_class, **exactly)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def from_template(name: str) -> dict[str, Object]:
    """Let a Pod have a claim of its own from this template."""
    return {"gpu": {"resourceClaimTemplateName": name}}


def use(*names: str) -> dict[str, Object]:
    """Let a Pod use these claims, each under its own name."""
    return {name: {"resourceClaimName": name} for name in names}


def profile_class(profile: str) -> str:
    """Name of the DeviceClass of a MIG profile."""
    return f"mig-{profile}.{GPU_CLASS}"


def by_uuid(uuid: str) -> str:
    """Select one GPU or partition."""
    return f"device.attributes['{DRIVER}'].?uuid.orValue('') == '{uuid}'"


def of_parent(uuid: str) -> str:
    """Select the partitions of one GPU."""
    return f"device.attributes['{DRIVER}'].?parentUUID.orValue('') == '{uuid}'"
