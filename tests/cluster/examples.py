"""The examples as the cluster runs them: as they are, but for the image and one UUID."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import yaml

from tests.cluster import images, view
from tests.cluster.api import Object
from tests.cluster.driver import CHECKOUT, Driver, eventually
from tests.cluster.workload import Namespace

_FOLDER: Final = CHECKOUT / "examples" / "resourceclaims"
_IMAGE: Final = "debian:12-slim"
_ZEROS: Final = "GPU-00000000-0000-0000-0000-000000000000"


def names() -> set[str]:
    """Names of all examples: their files' without `.yaml`."""
    return {path.stem for path in _FOLDER.glob("*.yaml")}


def node_config(name: str) -> str:
    """Text of a node configuration that comes with the examples."""
    return (_FOLDER.parent / "nodeconfigs" / name).read_text()


def objects(name: str, uuid: str = _ZEROS) -> list[Object]:
    """Objects of an example; `uuid` takes the place of the zeros."""
    text = (_FOLDER / f"{name}.yaml").read_text()
    return list(yaml.safe_load_all(text.replace(_IMAGE, images.DEBIAN).replace(_ZEROS, uuid)))


@contextmanager
def own_namespaces(driver: Driver, name: str) -> Iterator[list[Namespace]]:
    """Apply an example that brings its namespaces; in the end they are gone."""
    manifests = objects(name)
    made = [item["metadata"]["name"] for item in manifests if item["kind"] == "Namespace"]
    with ExitStack() as stack:
        namespaces = [Namespace(driver.cluster, each) for each in made]
        for namespace in namespaces:
            stack.callback(namespace.remove)
        driver.cluster.apply(*manifests)
        yield namespaces


# A scheduler that has counted a share twice, of Pods that came at once, tries the last of them
# again after five minutes (docs/kubernetes-versions.md).
_SCHEDULED_AGAIN: Final = 420.0


def running(driver: Driver, namespace: Namespace, label: str, count: int) -> list[set[str]]:
    """Wait until so many Pods run; gives the devices of each, having looked into it."""
    found: list[str] = []

    def all_run() -> bool:
        found[:] = namespace.pods(label, phase="Running")
        return len(found) >= count

    eventually(all_run, f"{count} Pods {label} run", _SCHEDULED_AGAIN)
    return [set(looked_into(driver, namespace, pod)) for pod in found]


def looked_into(
    driver: Driver, namespace: Namespace, pod: str, container: str = "main"
) -> list[str]:
    """Devices of a container, which sees them and no others."""
    devices = view.devices_of(namespace, pod, container)
    assert view.seen(namespace, pod, container) == view.expected(driver.node, devices)
    return devices
