"""Partitions made for claims: as many as there is room for, never two in one place."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, from_template, profile_class, template
from tests.cluster.driver import Driver
from tests.cluster.workload import Namespace, deployment, pod

_wherever_counters_are = pytest.mark.gate("DRAPartitionableDevices")

_WHOLE: Final = "whole"
_ON_EACH: Final = 7  # partitions 1g.10gb on one GPU
_ALL_RUN_SECONDS: Final = 300.0
_CLASSES: Final = {
    _WHOLE: GPU_CLASS,
    **{name: profile_class(name) for name in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb")},
}


@_wherever_counters_are
def test_every_gpu_holds_as_many_as_it_can_and_is_whole_again(partitioning: Driver) -> None:
    node, published = partitioning.node, partitioning.published()
    gpus = {f"gpu-{gpu['minor']}" for gpu in node.show()["gpus"]}
    with _namespace(partitioning) as namespace:
        namespace.apply(deployment(_waits("1g.10gb", "small"), len(gpus) * _ON_EACH))
        running = _all_run(namespace, "small", len(gpus) * _ON_EACH)
        namespace.apply(_waits("1g.10gb", "surplus"))
        assert "cannot allocate all claims" in namespace.wait_unschedulable("surplus")

        names = _each_sees_its_own(partitioning, namespace, running)
        _check_hardware(partitioning, names)
        assert Counter(map(_gpu_of, names)) == dict.fromkeys(gpus, _ON_EACH)
        assert namespace.pod("surplus")["status"]["phase"] == "Pending"
        namespace.scale("small", len(running) - 1)
        namespace.wait_pod("surplus", "Running")
        _each_sees_its_own(partitioning, namespace, ["surplus"])

        namespace.delete_pod("surplus")
        namespace.delete_deployment("small", _ALL_RUN_SECONDS)
        assert view.partitions(node) == []
        assert not any(gpu["mig"]["current"] for gpu in node.show()["gpus"])
        assert partitioning.published() == published

        namespace.apply(deployment(_waits(_WHOLE), len(gpus)))
        running = _all_run(namespace, _WHOLE, len(gpus))
        assert set(_each_sees_its_own(partitioning, namespace, running)) == gpus
        namespace.apply(_waits("1g.10gb", "too-late"))
        assert "cannot allocate all claims" in namespace.wait_unschedulable("too-late")


@_wherever_counters_are
def test_partitions_of_all_sizes_lie_beside_each_other(partitioning: Driver) -> None:
    """In an order that fits on two GPUs whichever the scheduler tries first."""
    with _namespace(partitioning) as namespace:
        for number, kind in enumerate((_WHOLE, "1g.10gb", "2g.20gb", "4g.40gb")):
            namespace.run(_waits(kind, f"pod-{number}"))
        pods = [f"pod-{number}" for number in range(4)]
        whole, *parts = _each_sees_its_own(partitioning, namespace, pods)
        _check_hardware(partitioning, [whole, *parts])
        assert len(set(map(_gpu_of, parts))) == 1

        namespace.delete_pod("pod-0")
        for name in ("pod-4", "pod-5"):
            namespace.run(_waits("3g.40gb", name))
        parts += _each_sees_its_own(partitioning, namespace, ["pod-4", "pod-5"])
        _check_hardware(partitioning, parts)


def test_partitions_fill_the_first_gpus_and_whole_ones_are_the_last(partitioning: Driver) -> None:
    """Before Kubernetes 1.36 the scheduler tries slices in no certain order."""
    wanted = [
        ("1g.10gb", "gpu-0-mig-1g10gb-19-6"),
        (_WHOLE, "gpu-7"),
        ("2g.20gb", "gpu-0-mig-2g20gb-14-4"),
        ("4g.40gb", "gpu-0-mig-4g40gb-5-0"),
        ("3g.40gb", "gpu-1-mig-3g40gb-9-4"),
        (_WHOLE, "gpu-6"),
        ("1g.10gb", "gpu-1-mig-1g10gb-19-3"),
        ("2g.20gb", "gpu-1-mig-2g20gb-14-0"),
    ]
    pods = [f"pod-{number}" for number in range(len(wanted))]
    with _namespace(partitioning) as namespace:
        for name, (kind, _) in zip(pods, wanted, strict=True):
            namespace.run(_waits(kind, name))
        names = _each_sees_its_own(partitioning, namespace, pods)
        assert names == [device for _, device in wanted]
        _check_hardware(partitioning, names)


@contextmanager
def _namespace(driver: Driver) -> Iterator[Namespace]:
    """Make a namespace with templates of all kinds; in the end no partition is left."""
    with driver.namespace() as made:
        made.apply(*(template(kind, name) for kind, name in _CLASSES.items()))
        yield made
    assert view.partitions(driver.node) == []


def _waits(of: str, name: str = "") -> Object:
    """Build a Pod that has a claim from a template and ends as soon as it is told to."""
    command = ("sh", "-c", "trap exit TERM; sleep 100000 & wait")
    return pod(name or of, *command, claims=from_template(of))


def _gpu_of(device: str) -> str:
    return device.partition("-mig-")[0]


def _all_run(namespace: Namespace, name: str, count: int) -> list[str]:
    """Wait until all Pods of a Deployment run; gives their names."""
    namespace.wait_deployed(name, _ALL_RUN_SECONDS)
    running = namespace.pods(f"app={name}", phase="Running")
    assert len(running) == count
    return running


def _each_sees_its_own(driver: Driver, namespace: Namespace, pods: Iterable[str]) -> list[str]:
    """Look into each Pod, which has one device; gives the names of the devices."""
    names = []
    for name in pods:
        (device,) = view.devices_of(namespace, name)
        assert view.seen(namespace, name) == view.expected(driver.node, [device])
        names.append(device)
    return names


def _check_hardware(driver: Driver, names: Iterable[str]) -> None:
    """See that exactly these devices are made, and that no two share a part of a GPU."""
    taken: list[tuple[int, int]] = []
    for name in names:
        gpu, instance = view.device(driver.node, name)
        start, size = (instance["start"], instance["size"]) if instance else (0, 8)
        taken += ((gpu["index"], start + offset) for offset in range(size))
    assert len(set(taken)) == len(taken)
    made = [name for name in names if "-mig-" in name]
    assert sorted(view.partitions(driver.node)) == sorted(made)
