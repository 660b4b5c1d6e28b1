"""The examples about partitions, all at once on GPUs whose partitions are made for claims."""

from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.cluster import examples, view
from tests.cluster.driver import eventually
from tests.cluster.release import Release
from tests.cluster.workload import Namespace

# Profiles that each container has, in any order; on these H100 they are of one GPU.
_WANTED: Final[Mapping[str, Mapping[str, list[str]]]] = {
    "06-mig-profile": {"main": ["1g.10gb"]},
    "16-mig-class": {"main": ["1g.10gb"]},
    "17-four-of-one-gpu": {"main": ["1g.10gb"] * 4},
    "18-at-least-20gi": {"main": ["3g.40gb"]},  # the smallest: 2g.20gb has 19.6 GiB
    "19-big-and-small": {"server": ["4g.40gb"], "workers": ["1g.10gb"] * 3},
    "20-unchanged-mig-pod": {"main": ["1g.10gb"]},
}


# One of each GPU that can be cut: those of one with partitions of others are not offered.
_DYNAMIC: Final = {f"gpu-{minor}-mig-1g10gb-19-6" for minor in range(9)}


@pytest.fixture(scope="module")
def running(released: Release) -> Iterator[Namespace]:
    """Apply all of them and wait until their Pods run; in the end their partitions are gone."""
    before = view.partitions(released.node)
    with released.configured(examples.node_config("dynamic.yaml")):
        eventually(lambda: released.device_names() >= _DYNAMIC, "what can be made is published")
        with released.namespace() as namespace:
            namespace.apply(*(item for name in _WANTED for item in examples.objects(name)))
            for name in _WANTED:
                namespace.wait_pod(_pod(name), "Running")
            yield namespace
        assert view.partitions(released.node) == before
    released.wait_settled()


@pytest.mark.parametrize("example", _WANTED)
def test_an_example_sees_exactly_its_partitions(
    released: Release, running: Namespace, example: str
) -> None:
    node, pod, parents = released.node, _pod(example), set()
    for container, profiles in _WANTED[example].items():
        names = view.devices_of(running, pod, container)
        found = [view.device(node, name) for name in names]
        assert [instance["profile"] for _, instance in found] == profiles
        parents |= {gpu["uuid"] for gpu, _ in found}
        wanted = view.expected(node, names)
        assert view.seen(running, pod, container) == wanted

        def shown(container: str = container, lines: tuple[str, ...] = wanted.gpus) -> bool:
            return running.logs(pod, container) == "\n".join([*lines, ""])

        eventually(shown, f"the log of {pod}, {container}, shows its devices")
    assert len(parents) == 1


def test_no_two_examples_share_a_partition(released: Release, running: Namespace) -> None:
    names = [
        name
        for example, containers in _WANTED.items()
        for container in containers
        for name in view.devices_of(running, _pod(example), container)
    ]
    others = [name for name in view.partitions(released.node) if name.startswith("gpu-9-")]
    assert sorted([*names, *others]) == sorted(view.partitions(released.node))


def _pod(example: str) -> str:
    return example[3:]
