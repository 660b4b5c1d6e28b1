"""The examples of one device each, all at once: each sees exactly what it says it asks for.

As all examples, with the driver as Helm installs it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.cluster import examples, view
from tests.cluster.api import Object
from tests.cluster.driver import eventually
from tests.cluster.release import Release
from tests.cluster.workload import Namespace

_GIB: Final = 1 << 30
_WANTED_GPU: Final = 8  # for example 05: the last whole one, which nobody gets by chance

Wanted = Callable[[Any, Any], bool]  # of the simulator's GPU, and its GPU instance or None


def _whole(_: Any, instance: Any) -> bool:
    return instance is None


_WANTED: Final[Mapping[str, Wanted]] = {
    "01-one-gpu": _whole,
    "02-unchanged-pod": _whole,
    "03-by-memory": lambda gpu, part: part is None and gpu["memoryBytes"] >= 40 * _GIB,
    "04-by-model": lambda gpu, part: part is None and "H100" in gpu["name"],
    "05-by-uuid": lambda gpu, part: part is None and gpu["index"] == _WANTED_GPU,
    "06-mig-profile": lambda _, part: part is not None and part["profile"] == "1g.10gb",
    "07-two-containers": _whole,
    "08-two-pods": _whole,
    "09-first-available": lambda _, part: part is not None and part["memoryMiB"] >= 38 * 1024,
}


@dataclass(frozen=True, slots=True)
class Running:
    """All examples, running at the same time."""

    namespace: Namespace
    pods: Mapping[str, list[Object]]  # by the file's name without `.yaml`

    def containers(self, example: str) -> list[tuple[str, str]]:
        """Names of an example's Pods and containers."""
        return [
            (pod["metadata"]["name"], container["name"])
            for pod in self.pods[example]
            for container in pod["spec"]["containers"]
        ]

    def devices(self, example: str) -> set[str]:
        """Names of the devices that an example's containers have."""
        return {
            name
            for pod, container in self.containers(example)
            for name in view.devices_of(self.namespace, pod, container)
        }


@pytest.fixture(scope="module")
def running(released: Release) -> Iterator[Running]:
    """Apply all examples together and wait until their Pods run."""
    released.wait_settled()
    uuid = released.node.gpu(_WANTED_GPU)["uuid"]
    manifests = {name: examples.objects(name, uuid) for name in _WANTED}
    pods = {
        name: [item for item in objects if item["kind"] == "Pod"]
        for name, objects in manifests.items()
    }
    with released.namespace() as namespace:
        certain = "05-by-uuid"  # first, since only one GPU will do
        namespace.apply(*manifests.pop(certain))
        namespace.wait_pod("by-uuid", "Running")
        namespace.apply(*(item for objects in manifests.values() for item in objects))
        for pod in (pod for group in pods.values() for pod in group):
            namespace.wait_pod(pod["metadata"]["name"], "Running")
        yield Running(namespace, pods)


@pytest.mark.parametrize("example", _WANTED)
def test_an_example_sees_exactly_its_devices(
    released: Release, running: Running, example: str
) -> None:
    (name,) = running.devices(example)
    assert _WANTED[example](*view.device(released.node, name))
    wanted = view.expected(released.node, [name])
    for pod, container in running.containers(example):
        assert view.seen(running.namespace, pod, container) == wanted

        def shown(pod: str = pod, container: str = container) -> bool:
            return running.namespace.logs(pod, container) == "\n".join([*wanted.gpus, ""])

        eventually(shown, f"{pod}'s log shows its devices")


def test_no_two_examples_have_the_same_device(running: Running) -> None:
    names = [name for example in _WANTED for name in running.devices(example)]
    assert len(names) == len(set(names)) == len(_WANTED)


def test_the_unchanged_pod_has_a_claim_that_the_scheduler_made(running: Running) -> None:
    pod = running.namespace.pod("unchanged-pod")
    assert "resourceClaims" not in pod["spec"]
    made = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert made.startswith("unchanged-pod-extended-resources-")


def test_the_cdi_files_are_valid(released: Release, running: Running) -> None:
    files = released.cdi_files()
    assert len(files) == len(_WANTED) + 1  # what all GPUs share has one of its own
    released.cluster.validate_cdi(*files)
