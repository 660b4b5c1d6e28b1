"""Shares of GPU memory: as many as there is room for, each limited on the cgroup of its Pod.

The GPU driver is simulated, and so is the limit. Which cgroup a Pod has, and that its programs are
in it, is the kubelet's and the runtime's doing.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dra_driver.allocation import Claim, DeviceClass, Refusal, Slice, allocate, devices_in_use
from dra_driver.simulator.node_file import alike
from tests.cluster import cgroups, linux, view
from tests.cluster.api import Object
from tests.cluster.claims import from_template, template
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import RESOURCE_API, Namespace, pod

_CONFIG: Final = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- shares: {by: memory, reserve: 1Gi}
"""
_CLASS: Final = "gpu.nvidia.com"
_GIB: Final = 1 << 30
_SHARE: Final = 10 * _GIB
_ROOM: Final = 7  # shares of 10Gi in 81,559 MiB less 1 GiB
_GIVEN_OUT: Final = (  # as docs/troubleshooting.md has it
    "--output=custom-columns=NAMESPACE:.metadata.namespace,CLAIM:.metadata.name,"
    "DEVICE:.status.allocation.devices.results[*].device,"
    "TAKES:.status.allocation.devices.results[*].consumedCapacity"
)
_FIRST_USER: Final = 10_001
_CLIENT: Final = "usr/bin/sim-mps-client"


@contextmanager
def sharing_on(installed: Driver) -> Iterator[Driver]:
    """Let the node have one GPU, whose driver limits memory by the kubelet's own cgroups."""
    made = Driver(installed.cluster, alike("h100-80gb", 1, "615.10.05"), _CONFIG)
    with _kubelet_cgroups(made.node.root), made.in_place_of(installed):
        yield made


@contextmanager
def _kubelet_cgroups(root: Path) -> Iterator[None]:
    """Show the kubelet's cgroups in the simulated node's /sys as cgroups of version 2.

    Where this machine has version 1 they are those of its hierarchy for memory, without what
    version 2 has in each folder; only their names and processes matter here.
    """
    first = cgroups.hierarchies()[0]
    source = first.mount if first.unified else first.mount.parent / "memory"
    place = root / "sys/fs/cgroup/kubepods"
    place.mkdir(parents=True)
    (place.parent / "cgroup.controllers").write_text("memory\n")
    linux.mount(str(source / "kubepods"), place, flags=linux.MS_BIND)
    try:
        yield
    finally:
        linux.unmount(place)


@pytest.fixture(scope="module")
def installed_sharing(installed: Driver) -> Iterator[Driver]:
    """Give the node a GPU that is shared by memory."""
    with sharing_on(installed) as made:
        yield made


@pytest.fixture
def sharing(installed_sharing: Driver) -> Driver:
    """Give the driver with its GPU published."""
    installed_sharing.wait_settled()
    return installed_sharing


def test_seven_of_eight_pods_have_their_memory_and_no_more(sharing: Driver) -> None:
    """In four namespaces, by four users; the scheduler does not say of what there is too little."""
    assert sharing.attributes()["gpu-0"]["memoryLimit"] == {"string": "cgroup"}
    with _namespaces(sharing, 4) as namespaces:
        places = [(namespaces[number % 4], f"pod-{number}") for number in range(_ROOM + 1)]
        for number, (namespace, name) in enumerate(places[:-1]):
            namespace.place(_client(sharing, name, _FIRST_USER + number % 4))
        (last_namespace, last), (first_namespace, first) = places[-1], places[0]
        last_namespace.apply(_client(sharing, last, _FIRST_USER + 3))
        told = last_namespace.wait_unschedulable(last)
        assert "cannot allocate all claims" in told
        assert "memory" not in told
        why = _why_not(sharing, last_namespace, last)
        assert why == "capacity memory: 10Gi wanted, 8855Mi left"
        given = sharing.cluster.kubectl("get", "resourceclaims", "--all-namespaces", _GIVEN_OUT)
        assert given.count("map[memory:10Gi]") == _ROOM

        for number, (namespace, name) in enumerate(places[:-1]):
            namespace.wait_pod(name, "Running")
            assert view.devices_of(namespace, name) == ["gpu-0"]
            assert view.nodes_seen(namespace, name).nodes == (
                view.expected(sharing.node, ["gpu-0"]).nodes
            )
            _check_limit(namespace, name, _FIRST_USER + number % 4)
            (claim,) = namespace.claims_of(name).values()
            namespace.wait_memory_limit(claim["metadata"]["name"], "10Gi", "cgroup")
        assert _limits(sharing) == _pods(places[:-1])

        first_namespace.delete_pod(first)
        last_namespace.wait_pod(last, "Running")
        _check_limit(last_namespace, last, _FIRST_USER + 3)
        assert _limits(sharing) == _pods(places[1:])
    eventually(lambda: _limits(sharing) == {}, "no limit is left")


@contextmanager
def _namespaces(driver: Driver, count: int) -> Iterator[list[Namespace]]:
    """Make namespaces with the template that all Pods use; in the end nothing is left of them."""
    prefix = f"memory-{secrets.token_hex(4)}"
    made = [Namespace(driver.cluster, f"{prefix}-{number}") for number in range(count)]
    with ExitStack() as stack:
        for namespace in made:
            namespace.create()
            stack.callback(namespace.remove)
            requests = {"requests": {"memory": "10Gi"}}
            namespace.apply(template("memory", _CLASS, capacity=requests))
        yield made
    assert driver.leftovers() == set()


def _client(driver: Driver, name: str, user: int) -> Object:
    """Build a Pod whose one program has allocated 6 GiB and keeps them."""
    program = {"name": "client", "mountPath": f"/{_CLIENT}", "readOnly": True}
    made = pod(
        name,
        f"/{_CLIENT}",
        *("alloc", "6Gi", "hold"),
        claims=from_template("memory"),
        securityContext={"runAsUser": user, "runAsGroup": user},
        volumes=[{"name": "client", "hostPath": {"path": str(driver.node.root / _CLIENT)}}],
    )
    (container,) = made["spec"]["containers"]
    container["volumeMounts"] = [program]
    if cgroups.hierarchies()[0].unified:  # then the container's own namespace hides where it is
        uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
        container["env"] = [
            {"name": "POD", "valueFrom": uid},
            {"name": "SIM_NVML_CGROUP", "value": "/kubepods/besteffort/pod$(POD)/container"},
        ]
    return made


def _check_limit(namespace: Namespace, name: str, user: int) -> None:
    """Let a second program of the Pod ask for more than is left of its share, then for the rest."""
    script = f"/{_CLIENT} alloc 5Gi alloc 4Gi alloc 1Mi; id -u"
    *lines, uid = namespace.exec(name, ["sh", "-c", script]).splitlines()
    events = [json.loads(line) for line in lines]
    results = [(each["event"], each.get("by")) for each in events[1:-1]]
    assert results == [("refused", "cgroup"), ("allocated", None), ("refused", "cgroup")]
    assert int(uid) == events[0]["uid"] == user


def _limits(driver: Driver) -> dict[str, int]:
    """Limits that the GPU has, by the UID of the Pod."""
    found = driver.node.gpu(0)["memoryLimits"]
    return {Path(each["cgroup"]).name: each["hardBytes"] for each in found}


def _pods(places: Sequence[tuple[Namespace, str]]) -> dict[str, int]:
    uids = (namespace.pod(name)["metadata"]["uid"] for namespace, name in places)
    return {f"pod{uid}": _SHARE for uid in uids}


def _why_not(driver: Driver, namespace: Namespace, name: str) -> str:
    """Ask the evaluator of this project why the claim of a Pod gets nothing."""
    api = driver.cluster.api
    classes = [
        DeviceClass.parse(each) for each in api.get(f"{RESOURCE_API}/deviceclasses")["items"]
    ]
    claims: list[dict[str, Any]] = api.get(f"{RESOURCE_API}/resourceclaims")["items"]
    (wanted,) = namespace.claims_of(name).values()
    outcome = allocate(
        driver.cluster.node_name,
        [Slice.parse(each) for each in driver.slices()],
        classes,
        [Claim.parse(wanted)],
        devices_in_use(claims),
    )
    assert isinstance(outcome, Refusal)
    (shortfall,) = outcome.shortfalls
    (rejection,) = shortfall.rejections
    return rejection.detail
