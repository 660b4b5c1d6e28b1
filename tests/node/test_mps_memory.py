"""Shares by memory that MPS limits: what programs get, what claims are told, what is refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.sharing.mps_shares import LIMIT_VARIABLE
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import GpuSpec, NodeSpec, PartitionSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.mps_agent import QUICK, MakeMpsBed, MpsNodeBed, mps_config

MIB = 1 << 20
SWEEP = "--sweep-interval=500ms"
PARTITION = "gpu-0-mig-1g10gb-19-0"
RULE = "{shares: {by: memory, reserve: 1Gi}, sharing: {strategy: MPS}%s}"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 500ms}
rules:
- %s
"""


def write(bed: MpsNodeBed, rule: str) -> str:
    path = bed.folder / "node.yaml"
    path.write_text(CONFIG % rule)
    return f"--config={path}"


def by_memory(
    make_mps_bed: MakeMpsBed, more: str = "", spec: NodeSpec | None = None, *flags: str
) -> MpsNodeBed:
    """Make a node with a GPU that is shared by memory through MPS."""
    bed = make_mps_bed(start=False, spec=spec)
    bed.start_agent()
    bed.serve(QUICK, write(bed, RULE % more), *flags)
    return bed


def share(
    bed: MpsNodeBed, name: str, memory: str, *, device: str = "gpu-0", **settings: Any
) -> ClaimRef:
    result = {"device": device, "shareID": str(uuid4()), "consumedCapacity": {"memory": memory}}
    config = [mps_config(**settings)] if settings else []
    return bed.claim(name, result, config=config)


def defaults(bed: MpsNodeBed) -> list[int]:
    """MiB that each daemon leaves each client; 0: no limit, or none yet."""
    return [daemon["pinnedMemoryLimits"].get("0", 0) // MIB for daemon in bed.daemons()]


def told(bed: MpsNodeBed, name: str) -> list[tuple[str, str]]:
    """Limits in the claim's status, and how hard they hold."""
    claim = bed.api.objects.get("resourceclaims", name)
    return [
        (entry["data"]["memoryLimit"], entry["data"]["memoryLimitLevel"])
        for entry in claim["status"].get("devices", ())
        if entry["driver"] == DRIVER
    ]


def wait_told(bed: MpsNodeBed, name: str, *wanted: tuple[str, str]) -> None:
    eventually(lambda: told(bed, name) == list(wanted), f"{name} tells {wanted}")


def published(bed: MpsNodeBed, name: str = "gpu-0") -> tuple[str, bool]:
    """Attribute `memoryLimit` of a device, and whether several claims may have it."""
    (device,) = [
        device
        for obj in bed.slices()
        for device in obj["spec"].get("devices", ())
        if device["name"] == name
    ]
    return (
        device["attributes"]["memoryLimit"]["string"],
        device.get("allowMultipleAllocations", False),
    )


def test_equal_shares_are_limited_by_the_daemon(make_mps_bed: MakeMpsBed) -> None:
    bed = by_memory(make_mps_bed, ", requireMemoryLimit: mps")
    assert published(bed) == ("mps", True)
    first, second = share(bed, "first", "10Gi"), share(bed, "second", "10Gi")
    bed.prepare(first)
    bed.prepare(second)
    assert defaults(bed) == [10240]
    for ref in (first, second):
        for unset in ((), (LIMIT_VARIABLE,)):
            program = bed.attach(ref, unset=unset)
            assert program.refused_by("10241Mi") in ("mps", "client")
            program.gets("10Gi")
            program.kill()
        wait_told(bed, ref.name, ("10Gi", "mps"))
    bigger = share(bed, "bigger", "20Gi")
    with pytest.raises(
        CallFailed, match=r"default/bigger is shared with claim default/\w+, which has 10Gi.* 20Gi"
    ):
        bed.prepare(bigger)
    slicing = bed.claim(
        "slicing",
        {"device": "gpu-0", "shareID": "s-1", "consumedCapacity": {"memory": "10Gi"}},
        config=[
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "GpuConfig",
                "sharing": {"strategy": "TimeSlicing"},
            }
        ],
    )
    with pytest.raises(CallFailed, match=r"default/slicing: gpu-0: .*strategy TimeSlicing, and"):
        bed.prepare(slicing)
    for ref in (first, second):
        bed.unprepare(ref)
    bed.prepare(bigger)
    assert defaults(bed) == [20480]
    bed.unprepare(bigger)
    assert bed.leftovers() == []


def test_unequal_shares_are_limited_by_the_variables_of_their_containers(
    make_mps_bed: MakeMpsBed,
) -> None:
    bed = by_memory(make_mps_bed, "", None, SWEEP)
    assert published(bed) == ("mps-client", True)
    small = share(bed, "small", "10Gi")
    bed.prepare(small)
    wait_told(bed, "small", ("10Gi", "mps"))
    assert bed.environment(small)[LIMIT_VARIABLE] == "0=10240M"
    large = share(bed, "large", "10500Mi")  # the daemon shows both limits as 10G
    bed.prepare(large)
    assert defaults(bed) == [10500]
    wait_told(bed, "small", ("10Gi", "mps-client"))
    wait_told(bed, "large", ("10500Mi", "mps-client"))
    program = bed.attach(small)
    assert program.refused_by("10241Mi") == "client"
    program.gets("10Gi")
    loose = bed.attach(small, unset=(LIMIT_VARIABLE,))
    assert loose.refused_by("10501Mi") == "mps"
    loose.gets("10500Mi")
    bed.attach(large).gets("10500Mi")
    bed.unprepare(large)
    # At once, or with the next sweep where the agent takes too long.
    eventually(lambda: defaults(bed) == [10240], "new clients have no more than who stays")
    wait_told(bed, "small", ("10Gi", "mps"))


def test_restarts_keep_the_limits(make_mps_bed: MakeMpsBed) -> None:
    bed = by_memory(make_mps_bed)
    small, large = share(bed, "small", "5Gi"), share(bed, "large", "20Gi")
    bed.prepare(small)
    bed.prepare(large)
    before = bed.environment(small), bed.environment(large)
    bed.agents[0].kill()
    bed.start_agent()
    eventually(lambda: defaults(bed) == [20480], "another daemon")
    bed.processes[-1].kill()
    bed.serve(QUICK, write(bed, RULE % ""), SWEEP)
    bed.prepare(small)
    assert (bed.environment(small), bed.environment(large)) == before
    assert defaults(bed) == [20480]
    bed.agents[-1].kill()
    bed.unprepare(large)  # nobody can be told
    bed.start_agent()
    eventually(lambda: defaults(bed) == [5120], "the sweep sees to it")
    bed.unprepare(small)
    eventually(lambda: bed.leftovers() == [], "nothing is left")


def test_the_smaller_of_share_and_own_limit_counts(make_mps_bed: MakeMpsBed) -> None:
    bed = by_memory(make_mps_bed)
    ref = share(bed, "one", "10Gi", defaultPinnedDeviceMemoryLimit="4Gi")
    bed.prepare(ref)
    assert (defaults(bed), bed.environment(ref)[LIMIT_VARIABLE]) == ([4096], "0=4096M")
    wait_told(bed, "one", ("4Gi", "mps"))
    other = share(bed, "other", "2Gi", defaultPinnedDeviceMemoryLimit="4Gi")
    bed.prepare(other)
    assert (defaults(bed), bed.environment(other)[LIMIT_VARIABLE]) == ([4096], "0=2048M")


def test_several_shares_in_one_claim(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False, gpus=2)
    bed.start_agent()
    bed.serve(QUICK, write(bed, RULE % ""))
    uuids = [bed.node.gpu(number)["uuid"] for number in (0, 1)]
    amounts = {"gpu-0": ("3Gi", "4Gi"), "gpu-1": ("2500.5Mi",)}
    results = [
        {"device": name, "shareID": str(uuid4()), "consumedCapacity": {"memory": memory}}
        for name, shares in amounts.items()
        for memory in shares
    ]
    ref = bed.claim("several", *results)
    bed.prepare(ref)
    limits = {uuids[0]: 7168, uuids[1]: 2500}
    ordered = [limits[uuid] for uuid in sorted(uuids)]
    variable = ",".join(f"{place}={mib}M" for place, mib in enumerate(ordered))
    assert [
        each for edits in bed.edits(ref) for each in edits["env"] if each.startswith(LIMIT_VARIABLE)
    ] == [f"{LIMIT_VARIABLE}={variable}"] * 3
    (daemon,) = bed.daemons()
    assert daemon["pinnedMemoryLimits"] == {
        str(place): mib * MIB for place, mib in enumerate(ordered)
    }
    wait_told(bed, "several", ("7Gi", "mps"), ("7Gi", "mps"), ("2500Mi", "mps"))


def test_each_program_gets_its_share_whoever_begins_and_ends_beside_it(
    make_mps_bed: MakeMpsBed,
) -> None:
    """Many at once, on two sets, through two instances of the plugin as an update has them."""
    bed = make_mps_bed(start=False, gpus=2)
    bed.start_agent()
    for uid in (uuid4(), uuid4()):
        bed.serve("--prepare-retry=30s", f"--pod-uid={uid}", SWEEP, write(bed, RULE % ""))
    amounts = {f"claim-{number}": f"{number + 1}Gi" for number in range(6)}

    def come_and_go(name: str) -> None:
        ref = share(bed, name, amounts[name], device=f"gpu-{int(name[-1]) % 2}")
        for _ in range(3):
            bed.prepare(ref)
            program = bed.attach(ref)
            program.gets(amounts[name])
            program.kill()
            bed.unprepare(ref)

    with ThreadPoolExecutor(len(amounts)) as pods:
        list(pods.map(come_and_go, amounts))
    assert bed.claim_files() == set()
    assert bed.leftovers() == []


def test_a_partition_is_shared_by_memory(make_mps_bed: MakeMpsBed) -> None:
    part = (PartitionSpec(profile="1g.10gb", start=0),)
    gpu = GpuSpec(model="h100-80gb", partitions=part)
    driver = {"driverVersion": "615.10.05"}  # whose limits by cgroup are for whole GPUs
    spec = NodeSpec.model_validate({**driver, "gpus": (gpu,)})
    bed = by_memory(make_mps_bed, ", requireMemoryLimit: mps", spec)
    assert published(bed, PARTITION) == ("mps", True)
    ref = share(bed, "one", "2Gi", device=PARTITION)
    bed.prepare(ref)
    assert defaults(bed) == [2048]
    program = bed.attach(ref)
    program.gets("2Gi")
    assert program.refused_by("1Mi") in ("mps", "client")
    wait_told(bed, "one", ("2Gi", "mps"))
    bed.unprepare(ref)
    assert bed.leftovers() == []


def test_without_mps_nothing_is_limited_and_that_is_told(make_mps_bed: MakeMpsBed) -> None:
    bed = make_mps_bed(start=False)
    bed.serve(QUICK, write(bed, "{shares: {by: memory}}"))
    assert published(bed) == ("none", True)
    bed.prepare(share(bed, "one", "2Gi"))
    wait_told(bed, "one", ("2Gi", "none"))
