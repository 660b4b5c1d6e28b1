"""What a container sees of the node's GPUs, and what it should see by the simulator's own state."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.api import Object
from tests.cluster.workload import Namespace
from tests.support.node import SimulatedNode

# Published names (gpu-1, gpu-1-mig-2g47gb-14-0) say what they stand for: GPU minor, GPU instance
# profile, first memory slice.
_NAME: Final = re.compile(r"gpu-(\d+)(?:-mig-\w+-(\d+)-(\d+))?")
_NOT_LABEL: Final = re.compile(r"[^a-z0-9]")
_GPU_NODE: Final = re.compile(r"nvidia\d+")
_NODES: Final = "find /dev -name 'nvidia*' ! -type d -exec stat -c '%n %t %T' {} +"


@dataclass(frozen=True, slots=True)
class View:
    """Device nodes as (path, major, minor), and the lines of `nvidia-smi -L`."""

    nodes: frozenset[tuple[str, int, int]]
    gpus: tuple[str, ...]


def seen(namespace: Namespace, pod_name: str, container: str = "main") -> View:
    """Look into a running container."""
    script = f"{_NODES}; echo; nvidia-smi -L"
    nodes, _, gpus = namespace.exec(pod_name, ["sh", "-c", script], container).partition("\n\n")
    return View(_parsed(nodes), tuple(gpus.splitlines()))


def nodes_seen(namespace: Namespace, pod_name: str, container: str = "main") -> View:
    """Look into a running container that has no `nvidia-smi`."""
    return View(_parsed(namespace.exec(pod_name, ["sh", "-c", _NODES], container)), ())


def expected(node: SimulatedNode, names: Iterable[str]) -> View:
    """Say what a container with these devices should see, whole GPUs and partitions."""
    chosen = [device(node, name) for name in set(names)]
    paths = {path for path in (node.root / "dev").iterdir() if _is_common(path)}
    for gpu, instance in chosen:
        paths.add(node.root / f"dev/nvidia{gpu['minor']}")
        if instance is not None:
            (compute,) = instance["computeInstances"]
            for minor in (instance["capabilityMinor"], compute["capabilityMinor"]):
                paths.add(node.root / f"dev/nvidia-caps/nvidia-cap{minor}")
    return View(frozenset(_entry(node.root, path) for path in paths), tuple(_lines(chosen)))


def device(node: SimulatedNode, name: str) -> tuple[Any, Any]:
    """Find the simulator's GPU and GPU instance (None: the whole GPU) behind a published name."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    minor, profile, start = (None if part is None else int(part) for part in match.groups())
    (gpu,) = (gpu for gpu in node.show()["gpus"] if gpu["minor"] == minor)
    if profile is None:
        return gpu, None
    (instance,) = (
        instance
        for instance in gpu["instances"]
        if (instance["profileId"], instance["start"]) == (profile, start)
    )
    return gpu, instance


def partitions(node: SimulatedNode) -> list[str]:
    """Published names of all GPU instances of the simulator."""
    return [
        f"gpu-{gpu['minor']}-mig-{_NOT_LABEL.sub('-', instance['profile'].replace('.', ''))}-"
        f"{instance['profileId']}-{instance['start']}"
        for gpu in node.show()["gpus"]
        for instance in gpu["instances"]
    ]


def uuid(node: SimulatedNode, name: str) -> str:
    """UUID of what stands behind a published name now."""
    gpu, instance = device(node, name)
    if instance is None:
        return str(gpu["uuid"])
    (compute,) = instance["computeInstances"]
    return str(compute["uuid"])


def allocated(claim: Object, request: str = "") -> list[str]:
    """Names of the devices that the scheduler gave to a claim, or to one request of it."""
    return [
        result["device"]
        for result in claim["status"]["allocation"]["devices"]["results"]
        if not request or result["request"].partition("/")[0] == request
    ]


def devices_of(namespace: Namespace, pod_name: str, container: str = "main") -> list[str]:
    """Names of the devices of a container: those of its claims, or of its extended resources."""
    pod = namespace.pod(pod_name)
    (spec,) = (item for item in pod["spec"]["containers"] if item["name"] == container)
    status = pod["status"]
    objects = {
        use["name"]: use.get("resourceClaimName") for use in pod["spec"].get("resourceClaims", [])
    }
    for made in status.get("resourceClaimStatuses", []):
        objects[made["name"]] = made["resourceClaimName"]
    parts = [
        (objects[use["name"]], use.get("request", ""))
        for use in spec["resources"].get("claims", [])
    ]
    if extended := status.get("extendedResourceClaimStatus"):
        parts.append((extended["resourceClaimName"], ""))
    return [name for claim, request in parts for name in allocated(namespace.claim(claim), request)]


def _parsed(listing: str) -> frozenset[tuple[str, int, int]]:
    entries = (line.split() for line in listing.splitlines())
    return frozenset((path, int(major, 16), int(minor, 16)) for path, major, minor in entries)


def _entry(root: Path, path: Path) -> tuple[str, int, int]:
    number = path.stat().st_rdev
    return f"/{path.relative_to(root)}", os.major(number), os.minor(number)


def _is_common(path: Path) -> bool:
    return path.is_char_device() and not _GPU_NODE.fullmatch(path.name)


def _lines(chosen: list[tuple[Any, Any]]) -> Iterable[str]:
    """Print as `nvidia-smi -L`, which counts what it sees in the order of the PCI addresses."""
    gpus = {gpu["index"]: gpu for gpu, _ in chosen}
    for number, index in enumerate(sorted(gpus)):
        gpu = gpus[index]
        yield f"GPU {number}: {gpu['name']} (UUID: {gpu['uuid']})"
        instances = [instance for of, instance in chosen if of["index"] == index and instance]
        for position, instance in enumerate(sorted(instances, key=lambda item: int(item["id"]))):
            (compute,) = instance["computeInstances"]
            name = f"MIG {compute['profile']}"
            yield f"  {name:15} Device {position:2}: (UUID: {compute['uuid']})"
