"""Several Pods on one GPU by MPS: who attaches, what limits hold, and what is left afterwards."""

import json
import secrets
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from dra_driver.allocation import (
    Claim,
    DeviceClass,
    Refusal,
    Slice,
    allocate,
    devices_in_use,
)
from dra_driver.simulator.node_file import alike
from tests.cluster import view
from tests.cluster.api import Object
from tests.cluster.claims import claim, profile_class, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.mps import MpsNode, with_config
from tests.cluster.workload import RESOURCE_API, Namespace, pod
from tests.support.mps import CudaTalk

_SHARED, _PARTITIONED, _SLICED, _OWN, _BY_MEMORY = range(5)  # positions of the GPUs
_CONFIG: Final = f"""\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {{index: [{_SHARED}]}}
  shares: {{count: 4}}
  sharing:
    strategy: MPS
    mps: {{defaultActiveThreadPercentage: 25, defaultPinnedDeviceMemoryLimit: 10Gi}}
- match: {{index: [{_PARTITIONED}]}}
  partitioning: {{mode: Dynamic}}
- match: {{index: [{_BY_MEMORY}]}}
  shares: {{by: memory, reserve: 1Gi}}
  sharing: {{strategy: MPS}}
  requireMemoryLimit: mps
"""
_SEEN: Final = "tr '\\0' '\\n' </proc/1/environ; echo; cat /proc/1/mountinfo"
_GIVEN: Final = ["attached", "allocated"]
_PAST_MPS: Final = "CUDA_MPS_PIPE_DIRECTORY=/none sim-mps-client alloc 1Mi || true"


@pytest.fixture(scope="module")
def installed_mps(installed: Driver) -> Iterator[MpsNode]:
    """Give the node other GPUs, one of them shared, and the MPS agent."""
    with MpsNode.in_place_of(installed, alike("h100-80gb", 5), _CONFIG) as mps:
        yield mps


@pytest.fixture
def mps(installed_mps: MpsNode) -> MpsNode:
    """Give the node with all its devices published and the agent running."""
    installed_mps.driver.wait_settled()
    installed_mps.agent.check()
    return installed_mps


@pytest.fixture
def new_namespace(mps: MpsNode) -> Iterator[Callable[[], Namespace]]:
    """Make namespaces; when they are gone nothing may be left of their claims on the node."""
    namespaces: list[Namespace] = []

    def make() -> Namespace:
        made = Namespace(mps.driver.cluster, f"mps-{secrets.token_hex(4)}")
        made.create()
        namespaces.append(made)
        return made

    yield make
    for namespace in namespaces:
        print("\n".join(namespace.warnings()))
        namespace.remove()
    assert mps.driver.leftovers() == set()
    if not mps.agent.running:  # the test has failed
        mps.agent.start()
        eventually(lambda: not mps.leftovers(), "the next agent has cleared up")
    assert mps.leftovers() == []


@pytest.fixture
def namespace(new_namespace: Callable[[], Namespace]) -> Namespace:
    return new_namespace()


def test_pods_of_several_users_and_namespaces_share_a_gpu(
    mps: MpsNode, new_namespace: Callable[[], Namespace]
) -> None:
    one, other = new_namespace(), new_namespace()
    one.apply(mps.claim("alone", _SHARED), mps.claim("both", _SHARED))
    other.apply(mps.claim("alone", _SHARED))
    users = {(one, "a"): 1001, (other, "b"): 1002, (one, "c"): 1003, (one, "d"): 0}
    for (where, name), user in users.items():
        where.apply(mps.pod(where, name, "both" if name in "cd" else "alone", user=user))
    programs = [mps.attached(*place) for place in users]
    wanted = view.expected(mps.node, [f"gpu-{mps.node.gpu(_SHARED)['minor']}"])
    assert view.seen(one, "a") == wanted
    daemon = mps.daemon()
    assert daemon["multiUser"]
    assert sorted(mps.clients().values()) == sorted(users.values())
    assert mps.modes()[_SHARED] == "EXCLUSIVE_PROCESS"
    for program in programs:
        assert program.start["activeThreadPercentage"] == 25
        program.gets("10Gi")
        assert program.refused_by("1Mi") == "mps"
    assert len({_mps_mounts(*place) for place in users}) == 1
    one.exec("a", ["touch", "/dev/shm/of-a"])
    assert other.exec("b", ["ls", "/dev/shm"]).split().count("of-a") == 1
    told = map(json.loads, other.exec("b", ["sh", "-c", _PAST_MPS]).splitlines())
    assert "unavailable" in [event["event"] for event in told]
    assert len(mps.mounts()) == 1

    for place in list(users)[1:]:
        place[0].delete_pod(place[1])
    assert mps.daemon()["pid"] == daemon["pid"]
    programs[0].tell("free")
    programs[0].gets("10Gi")
    one.delete_pod("a")
    assert mps.leftovers() == []


def test_programs_outlive_the_plugin(mps: MpsNode, namespace: Namespace) -> None:
    driver, names = mps.driver, ["a", "b"]
    programs = [_attached(mps, namespace, name) for name in names]
    pid, clients = mps.daemon()["pid"], dict(mps.clients())

    def check() -> None:
        assert mps.daemon()["pid"] == pid
        assert dict(mps.clients()) == clients
        for program in programs:
            program.gets("1Gi")

    driver.main.process.kill()
    check()
    driver.main.start()
    check()
    driver.main.process.stop()
    driver.main.start()
    check()
    newer = driver.instance(f"--pod-uid={uuid.uuid4()}")
    try:
        newer.start()
        driver.main.process.stop()
        check()
        programs.append(_attached(mps, namespace, "c"))
        assert clients.items() < mps.clients().items()
        clients = dict(mps.clients())
        check()
        namespace.delete_pod("a")
        assert mps.daemon()["pid"] == pid
        newer.process.stop()
    finally:
        for instance in (newer, driver.main):
            if instance.process.running:
                instance.process.kill()
        driver.main.start()
    assert "MpsInterrupted" not in [event["reason"] for event in namespace.events("b")]
    for name in ("b", "c"):
        namespace.delete_pod(name)
    assert mps.leftovers() == []


def test_claims_say_that_their_agent_was_killed_and_new_ones_work(
    mps: MpsNode, namespace: Namespace
) -> None:
    program = _attached(mps, namespace, "old")
    pid, mounts = mps.daemon()["pid"], mps.mounts()
    namespace.wait_health("old", "old", "Healthy")
    mps.agent.kill()
    lost = namespace.wait_event("old", "MpsInterrupted")["message"]
    assert f"lost gpu-{mps.node.gpu(_SHARED)['minor']}" in lost
    message = mps.driver.cluster.settings.has("ResourceHealthStatusMessage")
    namespace.wait_health("old", "old", "Unhealthy", "MPS agent" if message else "")
    mps.agent.start()
    assert program.event("lost")
    namespace.wait_event("old", "MpsRestored")
    namespace.wait_health("old", "old", "Healthy")
    assert mps.daemon()["pid"] != pid
    new = _attached(mps, namespace, "new")
    new.gets("10Gi")
    assert new.refused_by("1Mi") == "mps"
    again = namespace.exec("old", ["sim-mps-client", "alloc", "10Gi"])
    assert [json.loads(line)["event"] for line in again.splitlines()][:2] == _GIVEN
    assert mps.mounts() == mounts
    namespace.delete_pod("old")
    namespace.delete_pod("new")
    assert mps.leftovers() == []


def test_programs_share_a_partition_that_was_made_for_their_claim(
    mps: MpsNode, namespace: Namespace
) -> None:
    part = claim("part", profile_class("1g.10gb"))
    settings = {"defaultPinnedDeviceMemoryLimit": "4Gi"}
    sharing = {"strategy": "MPS", "mpsConfig": settings}
    namespace.apply(with_config(part, "MigDeviceConfig", sharing))
    names = ["a", "b"]
    namespace.apply(*(mps.pod(namespace, name, "part", user=1001) for name in names))
    programs = [mps.attached(namespace, name) for name in names]
    (device,) = view.devices_of(namespace, "a")
    _, instance = view.device(mps.node, device)
    (made,) = instance["computeInstances"]
    daemon = mps.daemon()
    assert daemon["visibleDevices"] == made["uuid"]
    assert made["computeMode"] == "EXCLUSIVE_PROCESS"
    assert list(mps.clients().values()) == [1001, 1001]
    for program in programs:
        program.gets("4Gi")
        assert program.refused_by("1Mi") == "mps"
    for name in names:
        namespace.delete_pod(name)
    assert view.partitions(mps.node) == []
    assert mps.leftovers() == []


def test_a_pod_has_time_slicing_on_one_gpu_and_mps_on_another(
    mps: MpsNode, namespace: Namespace
) -> None:
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    namespace.apply(mps.claim("sliced", _SLICED, **slicing), mps.claim("own", _OWN, strategy="MPS"))
    made = mps.pod(namespace, "user", "own")
    made["spec"]["resourceClaims"] += pod("", claims=use("sliced"))["spec"]["resourceClaims"]
    beside = pod("", claims=use("sliced"))["spec"]["containers"][0]
    made["spec"]["containers"].append({**beside, "name": "beside"})
    namespace.apply(made)
    mps.attached(namespace, "user").gets("1Gi")
    modes = {position: mps.modes()[position] for position in (_SLICED, _OWN)}
    assert modes == {_SLICED: "DEFAULT", _OWN: "EXCLUSIVE_PROCESS"}
    slices = [mps.node.gpu(position)["timeslice"] for position in (_SLICED, _OWN)]
    assert slices == [3, 0]
    _mps_mounts(namespace, "user")
    assert "nvidia-mps" not in namespace.exec("user", ["cat", "/proc/1/mountinfo"], "beside")
    for container in ("main", "beside"):
        names = view.devices_of(namespace, "user", container)
        assert view.seen(namespace, "user", container) == view.expected(mps.node, names)
    namespace.delete_pod("user")
    assert mps.leftovers() == []


def test_b36_a_container_with_the_devices_of_two_daemons_is_not_started(
    mps: MpsNode, namespace: Namespace
) -> None:
    positions = {"first": _SLICED, "second": _OWN}
    namespace.apply(*(mps.claim(name, at, strategy="MPS") for name, at in positions.items()))
    namespace.apply(mps.pod(namespace, "both", *positions))
    namespace.wait_event("both", "Failed", "two control daemons of MPS")
    namespace.delete_pod("both")
    assert mps.leftovers() == []
    made = mps.pod(namespace, "each", *positions)
    main = made["spec"]["containers"][0]
    first, second = main["resources"]["claims"]
    beside = {**main, "name": "beside", "command": ["sleep", "1000"], "volumeMounts": []}
    main["resources"] = {"claims": [first]}
    made["spec"]["containers"].append({**beside, "resources": {"claims": [second]}})
    namespace.apply(made)
    mps.attached(namespace, "each").gets("1Gi")
    assert len(mps.node.show()["mps"]) == len(mps.mounts()) == 2
    folders = {_mps_mounts(namespace, "each", container) for container in ("main", "beside")}
    assert len(folders) == 2


def test_mounts_that_the_node_does_not_see_are_refused(mps: MpsNode, namespace: Namespace) -> None:
    other = mps.driver.mps_agent("private")
    mps.agent.stop()
    other.start()
    try:
        namespace.apply(mps.claim("one", _SHARED), mps.pod(namespace, "one", "one"))
        words = "mountPropagation: Bidirectional"
        namespace.wait_event("one", "FailedPrepareDynamicResources", words)
        assert mps.mounts() == []
    finally:
        other.stop()
    mps.agent.start()
    mps.attached(namespace, "one").gets("10Gi")


def test_seven_pods_get_ten_gib_each_and_no_program_gets_more(
    mps: MpsNode, new_namespace: Callable[[], Namespace]
) -> None:
    namespaces = [new_namespace() for _ in range(4)]
    places = [(namespaces[number % 4], f"pod-{number}") for number in range(8)]
    *running, (waiting, surplus) = places

    def user_of_share(number: int) -> Object:
        namespace, name = places[number]
        share = mps.claim(name, _BY_MEMORY)
        capacity = {"requests": {"memory": "10Gi"}}
        share["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = capacity
        namespace.apply(share)
        return mps.pod(namespace, name, name, user=1001 + number % 4)

    for number, (namespace, _) in enumerate(running):
        namespace.place(user_of_share(number))
    programs = [mps.attached(*place) for place in running]
    waiting.apply(user_of_share(7))
    assert "cannot allocate all claims" in waiting.wait_unschedulable(surplus)
    print(refusal := _refusal(mps, waiting.claim(surplus)))
    assert "memory" in refusal
    assert set(mps.clients().values()) == {1001, 1002, 1003, 1004}
    assert mps.daemon()["pinnedMemoryLimits"] == {"0": 10 * 2**30}
    for program in programs:
        program.gets("10Gi")
        assert program.refused_by("1Mi") == "mps"
    for namespace, name in running:
        namespace.wait_memory_limit(name, "10Gi", "mps")
    device = f"gpu-{mps.node.gpu(_BY_MEMORY)['minor']}"
    assert mps.driver.attributes()[device]["memoryLimit"] == {"string": "mps"}
    leaver, name = running[0]
    leaver.delete_pod(name)
    leaver.cluster.api.delete(f"{RESOURCE_API}/namespaces/{leaver.name}/resourceclaims/{name}")
    mps.attached(waiting, surplus).gets("10Gi")


def _refusal(mps: MpsNode, wanted: Object) -> str:
    """Say why a claim is not allocated, by all that the API server has."""
    api = mps.driver.cluster.api
    classes = map(DeviceClass.parse, api.get(f"{RESOURCE_API}/deviceclasses")["items"])
    claims = api.get(f"{RESOURCE_API}/resourceclaims")["items"]
    slices = map(Slice.parse, mps.driver.slices())
    node = mps.driver.cluster.node_name
    found = allocate(node, slices, classes, [Claim.parse(wanted)], devices_in_use(claims))
    assert isinstance(found, Refusal)
    return str(found)


def _attached(mps: MpsNode, namespace: Namespace, name: str) -> CudaTalk:
    """Make a Pod with a share of the shared GPU, by a claim of the same name."""
    namespace.apply(mps.claim(name, _SHARED), mps.pod(namespace, name, name))
    return mps.attached(namespace, name)


def _mps_mounts(
    namespace: Namespace, name: str, container: str = "main"
) -> tuple[tuple[str, ...], ...]:
    """What a container has of MPS, by device and folder on it; its environment names no GPU."""
    environment, _, mounts = namespace.exec(name, ["sh", "-c", _SEEN], container).partition("\n\n")
    variables = [line.partition("=")[0] for line in environment.splitlines()]
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in environment.splitlines()
    assert "CUDA_VISIBLE_DEVICES" not in variables
    fields = [line.split() for line in mounts.splitlines()]
    found = {each[4]: (each[2], each[3]) for each in fields}
    return found["/tmp/nvidia-mps"], found["/dev/shm"]
