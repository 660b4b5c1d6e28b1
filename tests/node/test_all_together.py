"""All ways to share GPUs on one node at the same time, and what goes on there meanwhile."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from dra_driver.model import ClaimRef
from dra_driver.simulator.kubelet_plugin import CallFailed
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.mps_agent import MakeMpsBed, MpsNodeBed, mps_config

GIB: Final = 1 << 30
BY_MEMORY, DYNAMIC, STATIC, SLICED, BY_COUNT, ALONE = range(6)
SPEC = NodeSpec.model_validate(
    {
        "driverVersion": "615.10.05",  # limits memory
        "gpus": [
            {"model": "h100-80gb", "count": 2},
            {"model": "a100-80gb", "migMode": True},
            {"model": "a100-80gb"},
            {"model": "l40s", "count": 2},
        ],
    }
)
HEAD = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
inventory: {interval: 300ms}
rules:
"""
RULES = f"""\
- match: {{index: [{BY_MEMORY}]}}
  shares: {{by: memory, reserve: 1Gi}}
- match: {{index: [{DYNAMIC}]}}
  partitioning: {{mode: Dynamic}}
- match: {{index: [{STATIC}]}}
  partitioning: {{mode: Static, layout: all-balanced}}
- match: {{index: [{BY_COUNT}]}}
  shares: {{count: 4, rename: true}}
  sharing: {{strategy: MPS, mps: {{defaultActiveThreadPercentage: 25}}}}
"""
OTHER_RULES = f"""\
- shares: {{unlimited: true}}
  sharing: {{strategy: TimeSlicing, interval: Short}}
- match: {{index: [{STATIC}]}}
  partitioning: {{mode: Static, layout: all-1g.10gb}}
"""
SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
SMALL, LARGE = f"gpu-{DYNAMIC}-mig-1g10gb-19-6", f"gpu-{DYNAMIC}-mig-3g40gb-9-0"
# Of the simulator's state: what programs do while they run.
_LIVE_ONLY = ("nvmlCalls", "processes", "open", "server", "clients", "pending")


class Everything:
    """A node with GPUs of each kind, and the claims that have them."""

    def __init__(self, bed: MpsNodeBed) -> None:
        self.bed = bed
        self.claims: dict[str, ClaimRef] = {}
        self._config = bed.folder / "node.yaml"
        self.configure(RULES)
        cgroups = bed.node.root / "sys/fs/cgroup"
        self.pods = [str(uuid4()) for _ in range(2)]
        for pod in self.pods:
            (cgroups / "kubepods" / f"pod{pod}").mkdir(parents=True)
        (cgroups / "cgroup.controllers").write_text("memory\n")
        bed.start_agent()
        self.serve()
        applied = 'gpu_dra_driver_layouts{state="applied"}'
        eventually(lambda: bed.metric(applied) == 1, "the layout is applied")
        eventually(lambda: len(self.offered(STATIC)) == 4, "its partitions are offered")

    def configure(self, rules: str) -> None:
        self._config.write_text(HEAD + rules)

    def serve(self) -> None:
        self.bed.serve(f"--config={self._config}")

    def offered(self, gpu: int) -> list[str]:
        return sorted(name for name in self.bed.device_names() if re.match(rf"gpu-{gpu}\b", name))

    def allocate(self) -> None:
        """Let the scheduler give a device of each kind to a claim, or a share to two."""
        config = mps_config(defaultPinnedDeviceMemoryLimit="10Gi")
        mig_config = mps_config("MigDeviceConfig", defaultPinnedDeviceMemoryLimit="2Gi")
        self._claim("sliced", f"gpu-{SLICED}", config=[SLICING])
        self._claim("mps", f"gpu-{ALONE}", config=[config])
        self._claim("made", SMALL, config=[mig_config])
        self._claim("made-plain", LARGE)
        self._claim("standing", self.offered(STATIC)[0])
        for number, pod in enumerate(self.pods):
            self._claim(f"counted-{number}", _share(BY_COUNT))
            memory = {"consumedCapacity": {"memory": f"{10 * (number + 1)}Gi"}}
            self._claim(f"memory-{number}", _share(BY_MEMORY) | memory)
            self._reserve(f"memory-{number}", pod)

    def state(self) -> dict[str, Any]:
        """What claims have of the hardware, by the simulator."""
        shown = self.bed.node.show()
        for part in (shown, *shown["gpus"], *shown["mps"]):
            for key in _LIVE_ONLY:
                part.pop(key, None)
        shown["mps"].sort(key=lambda daemon: daemon["pid"])
        return shown

    def files(self) -> dict[str, str]:
        """CDI files and records of claims, with what containers see of them."""
        return {path.name: path.read_text() for path in self.bed.cdi_folder.glob("*claim*")}

    def at_once(self, call: Callable[[ClaimRef], None], names: Iterable[str]) -> None:
        """Let the kubelet do it for many Pods at the same time."""
        with ThreadPoolExecutor(len(self.claims)) as pods:
            list(pods.map(call, [self.claims[name] for name in names]))

    def taints(self) -> dict[str, set[str]]:
        """Taints of published devices that have any."""
        return {
            device["name"]: {taint["key"].partition("/")[2] for taint in device["taints"]}
            for each in self.bed.slices()
            for device in each["spec"].get("devices", ())
            if device.get("taints")
        }

    def sick(self) -> set[str]:
        """Devices that are not well, as the kubelet was told."""
        reports = self.bed.kubelet.wait_registered(DRIVER, 60).health.reports
        return {name for (_, name), report in list(reports.items()) if report.state != "HEALTHY"}

    def _claim(self, name: str, device: str | dict[str, Any], **more: Any) -> None:
        self.claims[name] = self.bed.claim(name, device, **more)

    def _reserve(self, name: str, pod: str) -> None:
        claim = self.bed.api.objects.get("resourceclaims", name, "default")
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": pod}]
        self.bed.api.objects.replace("resourceclaims", claim, part="status")


def _share(gpu: int) -> dict[str, Any]:
    return {"device": f"gpu-{gpu}", "shareID": str(uuid4())}


def traces(bed: MpsNodeBed) -> dict[str, Any]:
    """All that claims may leave: hardware as the simulator has it, files, and mounts."""
    hardware = bed.node.show()
    del hardware["nvmlCalls"]
    for gpu in hardware["gpus"]:
        del gpu["open"]
    folders = (bed.cdi_folder, bed.data_folder)
    files = {str(path.relative_to(bed.folder)) for folder in folders for path in folder.rglob("*")}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "hardware": hardware,
        # The agent links the GPU driver's libraries once, for all daemons that will ever be.
        "files": {name for name in files if not re.search(r"\.lock$|/mps/lib\b", name)},
        "mounts": {line for line in mounts if str(bed.folder) in line},
    }


@pytest.fixture
def node(make_mps_bed: MakeMpsBed) -> Everything:
    return Everything(make_mps_bed(spec=SPEC, start=False))


def test_all_ways_to_share_work_together_and_leave_nothing(node: Everything) -> None:
    bed = node.bed
    before, offered = traces(bed), bed.device_names()
    node.allocate()
    node.at_once(bed.prepare, node.claims)
    _all_have_what_they_want(node)
    programs = {name: bed.attach(node.claims[name]) for name in ("mps", "made", "counted-0")}
    programs["made"].gets("2Gi")
    state, files = node.state(), node.files()

    bed.node.state.xid(SLICED, 79)
    bed.node.state.set_recovery_action(SLICED, 1)
    sick = {f"gpu-{SLICED}": {"xid", "recovery-action"}}
    eventually(lambda: node.taints() == sick, "that GPU alone is tainted")
    with pytest.raises(CallFailed, match="XID 79"):
        bed.prepare(bed.claim("late", f"gpu-{SLICED}"))
    eventually(lambda: node.sick() == {f"gpu-{SLICED}"}, "the kubelet knows")
    bed.node.state.set_recovery_action(SLICED, 0)
    eventually(lambda: node.taints() == {}, "it is well again")

    node.configure(OTHER_RULES)
    eventually(lambda: node.offered(DYNAMIC) == [SMALL, LARGE], "nothing else can be made")
    eventually(lambda: bed.events("LayoutWaiting"), "the other layout waits")
    assert (node.state(), node.files()) == (state, files)
    assert bed.processes[-1].stop() == 0
    node.serve()
    eventually(lambda: node.state() == state, "a restart changes nothing")
    node.at_once(bed.prepare, node.claims)  # Pods may come back
    assert (node.state(), node.files()) == (state, files)
    for program in programs.values():
        program.gets("1Mi") if program is not programs["made"] else program.refused_by("1Mi")

    node.configure(RULES)
    eventually(lambda: len(node.offered(DYNAMIC)) > 2, "they can again")
    for program in programs.values():
        program.kill()
    order = sorted(node.claims)
    node.at_once(bed.unprepare, order[::2])
    for name in reversed(order[1::2]):
        bed.unprepare(node.claims[name])
    after = traces(bed)
    print(f"files left: {sorted(after['files'] ^ before['files'])}")
    assert (after["hardware"], after["mounts"]) == (before["hardware"], before["mounts"])
    eventually(lambda: traces(bed)["files"] == before["files"], "no file is left")
    eventually(lambda: bed.device_names() == offered, "all is offered as before")


def _all_have_what_they_want(node: Everything) -> None:
    state = node.state()
    gpus = state["gpus"]
    assert [gpu["timeslice"] for gpu in gpus] == [0, 0, 0, 3, 0, 0]
    assert [gpu["computeMode"] for gpu in gpus] == ["DEFAULT"] * 4 + ["EXCLUSIVE_PROCESS"] * 2
    limits = {(Path(each["cgroup"]).name, each["hardBytes"]) for each in _limits(gpus)}
    assert limits == {(f"pod{pod}", 10 * (n + 1) * GIB) for n, pod in enumerate(node.pods)}
    made = {each["start"]: each["computeInstances"][0] for each in gpus[DYNAMIC]["instances"]}
    assert {start: each["computeMode"] for start, each in made.items()} == {
        6: "EXCLUSIVE_PROCESS",
        0: "DEFAULT",
    }
    assert {
        daemon["visibleDevices"]: (daemon["pinnedMemoryLimits"], daemon["activeThreadPercentage"])
        for daemon in state["mps"]
    } == {
        gpus[ALONE]["uuid"]: ({"0": 10 * GIB}, 100),
        gpus[BY_COUNT]["uuid"]: ({}, 25),
        made[6]["uuid"]: ({"0": 2 * GIB}, 100),
    }


def _limits(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(not gpu["memoryLimits"] for gpu in gpus if gpu["index"] != BY_MEMORY)
    found: list[dict[str, Any]] = gpus[BY_MEMORY]["memoryLimits"]
    return found
