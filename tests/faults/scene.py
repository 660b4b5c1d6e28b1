"""One plugin process on one node, hurt again and again, and what must be true afterwards."""

import re
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from dra_driver.model import ClaimRef
from dra_driver.sharing.mps_spec import set_id
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.kubelet_plugin import CallFailed, Device
from dra_driver.simulator.node_file import NodeSpec
from tests.support.kubelet import DRIVER, eventually
from tests.support.mps_agent import MpsNodeBed, mps_config
from tests.support.node import SimulatedNode
from tests.support.plugin_process import NODE, PluginProcess

PATIENCE = 60.0  # seconds; each wait takes a small part of it or something is broken
_RETRY = "--prepare-retry=1s"
_REASON = re.compile(r"ResourceClaim \S+: ([A-Za-z]+): \S")
_SPEC = NodeSpec.model_validate(
    # Ampere: it keeps its MIG mode over a reboot.
    {
        "driverVersion": "615.10.05",  # limits memory
        "gpus": [{"model": "h100-80gb", "count": 4}, {"model": "a100-80gb", "migMode": True}],
    }
)
TARGET, BYSTANDER, OTHER, DYNAMIC, MIG = range(5)  # GPUs by minor
_CONFIG = f"""\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {{index: [{TARGET}]}}
  shares: {{by: memory}}
- match: {{index: [{DYNAMIC}]}}
  partitioning: {{mode: Dynamic}}
"""
POD = "5d5ba0d6-d33d-4b2c-924d-9e3d8d2b8a77"
LONG_SLICES = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
_PLACES = 7  # of 1g.10gb on a GPU
MADE = f"gpu-{DYNAMIC}-mig-2g20gb-14-2"  # a partition that is made for a claim


class Scene:
    """A node with five GPUs, of which one is held by a claim that must never notice anything."""

    def __init__(self) -> None:
        """Start everything."""
        self.folder = Path(tempfile.mkdtemp(prefix="dra"))
        self.node = SimulatedNode.create(
            self.folder / "node", _SPEC, device_nodes=NodeKind.PLAIN, seed="matrix"
        )
        cgroups = self.node.root / "sys/fs/cgroup"
        (cgroups / "kubepods" / f"pod{POD}").mkdir(parents=True)
        (cgroups / "cgroup.controllers").write_text("memory\n")
        self.bed = MpsNodeBed(self.node, self.folder)
        self._order = self.folder / "failpoint"
        self._config = self.folder / "node.yaml"
        self._config.write_text(_CONFIG)
        self._number = self._place = 0
        self.bed.kubelet.start()
        self.bed.start_agent()
        self.process = self._serve()
        self.bystander = self.bed.claim("bystander", f"gpu-{BYSTANDER}")
        self.prepare(self.bystander)
        self._quiet = self._state()

    def close(self) -> None:
        """Stop everything and print what the processes said."""
        self.bed.close()
        self.node.close()
        shutil.rmtree(self.folder)

    def abandon(self) -> None:
        """Stop everything however it is."""
        for process in self.bed.processes:
            if process.running:
                process.kill()
        self.close()

    def show_logs(self) -> None:
        """Print what the last processes said."""
        for process in self.bed.processes[-2:]:
            print(f"---- {process.log.name}\n{process.log.read_text()[-20000:]}")

    # What the kubelet and the scheduler do

    def new_claim(
        self, *devices: str | dict[str, Any], config: Sequence[dict[str, Any]] = ()
    ) -> ClaimRef:
        """Allocate a claim, by default on the target GPU."""
        self._number += 1
        wanted = devices or (f"gpu-{TARGET}",)
        return self.bed.claim(f"claim-{self._number}", *wanted, config=config)

    def new_share(self) -> ClaimRef:
        """Allocate a part of the target GPU's memory to a claim of a Pod, with long time-slices."""
        share = {"shareID": str(uuid4()), "consumedCapacity": {"memory": "10Gi"}}
        ref = self.new_claim({"device": f"gpu-{TARGET}", **share}, config=[LONG_SLICES])
        claim = self.bed.api.objects.get("resourceclaims", ref.name, ref.namespace)
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": POD}]
        self.bed.api.objects.replace("resourceclaims", claim, part="status")
        return ref

    def new_mps_claim(self) -> ClaimRef:
        """Allocate the target GPU to a claim that wants MPS on it."""
        self._number += 1
        share = {"device": f"gpu-{TARGET}", "shareID": str(uuid4())}
        return self.bed.claim(f"claim-{self._number}", share, config=[mps_config()])

    def prepare(self, ref: ClaimRef, timeout: float = 45.0) -> tuple[Device, ...]:
        """Prepare as the kubelet does, and look at the files that containers would get."""
        devices = self.bed.kubelet.prepare(DRIVER, [ref], timeout)[ref.uid]
        assert self.cdi_file(ref).exists()
        assert self.record_file(ref).exists()
        return devices

    def unprepare(self, ref: ClaimRef, timeout: float = 45.0) -> None:
        """Unprepare as the kubelet does."""
        self.bed.kubelet.unprepare(DRIVER, [ref], timeout)

    @contextmanager
    def partition(self) -> Iterator[ClaimRef]:
        """Allocate a claim on a partition that `cut` is to make, each time at another place.

        The last snapshot may still have the one before.
        """
        quiet = self._quiet
        self._place = (self._place + 1) % _PLACES
        yield self.new_claim(f"gpu-{MIG}-mig-1g10gb-19-{self._place}")
        for instance in self.node.gpu(MIG)["instances"]:
            self.node.state.unpartition(MIG, instance["id"])
        self._quiet = quiet

    def cut(self) -> None:
        """Make a partition by hand, once NVML hides it: no snapshot may know it too early."""
        self.node.state.partition(MIG, "1g.10gb", self._place)
        self._quiet = self._state()

    def full_turn(self, ref: ClaimRef) -> None:
        """Prepare twice and unprepare twice: all must work, and leave nothing."""
        first = self.prepare(ref)
        assert [device.pool for device in first] == [NODE]
        assert self.prepare(ref) == first
        self.unprepare(ref)
        self.unprepare(ref)
        self.check_clean()

    # Where things are

    def cdi_file(self, ref: ClaimRef) -> Path:
        """CDI file of a claim."""
        return self.bed.cdi_folder / f"k8s.{DRIVER}-claim_{ref.uid}.json"

    @property
    def common_file(self) -> Path:
        """CDI file that all claims share."""
        return self.bed.cdi_folder / f"k8s.{DRIVER}-driver.json"

    @property
    def records_folder(self) -> Path:
        """Folder of the records."""
        return self.bed.data_folder / "claims"

    def record_file(self, ref: ClaimRef) -> Path:
        """Record of a claim."""
        return self.records_folder / f"{ref.uid}.json"

    @property
    def mps_note(self) -> Path:
        """Note of the MPS agent on the target GPU."""
        return self.bed.sets_folder / f"{set_id([self.node.gpu(TARGET)['uuid']])}.json"

    @property
    def node_lock(self) -> Path:
        """Lock under which devices are reserved."""
        return self.bed.data_folder / "state.lock"

    # What is done to the plugin

    def arm(self, order: str) -> None:
        """Let the process die at a failpoint, or halt with `=stop`; fires once."""
        self._order.with_suffix(".new").write_text(order)
        self._order.with_suffix(".new").replace(self._order)

    def wait_halted(self) -> None:
        """Wait until it has halted where it was asked to."""
        eventually(lambda: _state_letter(self.process.pid) == "T", "halted", PATIENCE)
        assert not self._order.exists()

    def go_on(self) -> None:
        """Let a halted process go on."""
        self.process.signal(signal.SIGCONT)

    def wait_killed(self) -> None:
        """Wait until the failpoint has killed it."""
        assert self.process.wait() == -signal.SIGKILL
        assert not self._order.exists()

    def restart(self) -> None:
        """Start the process again after a kill, and the MPS agent if it is gone, too."""
        if not self.bed.agents[-1].running:
            self.bed.start_agent()
        self.process = self._serve()

    def start_unready(self) -> None:
        """Start the process, which will not be ready for now, and looks at the GPUs often."""
        self.process = self._serve("--poll-interval=200ms", wait=False)

    def wait_registered(self) -> None:
        """Wait until the kubelet calls this process, not the one before."""
        process = self.process
        eventually(lambda: process.lines("registered with the kubelet"), "registered", PATIENCE)

    def reboot(self) -> None:
        """Reboot the node, whose process is dead: the CDI folder is on a tmpfs."""
        assert not self.process.running
        self.bed.agents[-1].kill()
        self.bed.clear()
        shutil.rmtree(self.bed.cdi_folder)
        self.node.reboot()

    def fill_disk(self) -> None:
        """Let no file of the process grow beyond what a lock file needs, as on a full disk."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (64, hard))

    def empty_disk(self) -> None:
        """Give it room again."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    # What must be true

    def wait_idle(self) -> None:
        """Wait until no call is being worked on."""

        def idle() -> bool:
            lines = self.bed.get("/metrics")[1].splitlines()
            return {
                f'nvidia_dra_requests_inflight{{driver="{DRIVER}",operation="{name}"}} 0.0'
                for name in ("prepare", "unprepare")
            } <= set(lines)

        eventually(idle, "no call is worked on", PATIENCE)

    def check_clean(self) -> None:
        """Nothing is left of any claim, and the bystander's has not been touched."""
        begin = time.monotonic()
        while (found := self._state()) != self._quiet:  # the janitor may still be at work
            assert time.monotonic() - begin < PATIENCE, (found, self._quiet)
            time.sleep(0.01)
        whole = {f"gpu-{number}" for number in (TARGET, BYSTANDER, OTHER, DYNAMIC)}
        assert {MADE, *whole} <= self.bed.device_names()

    def _state(self) -> dict[str, Any]:
        """Tell all files of claims with their content, and what the hardware is set to."""
        files = {
            str(path.relative_to(self.folder)): path.read_text()
            for folder in (self.bed.cdi_folder, self.bed.data_folder)
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink() and path.suffix != ".lock"
        }
        gpus = [
            {key: value for key, value in gpu.items() if key not in ("open", "processes")}
            for gpu in self.node.show()["gpus"]
        ]
        return {"files": files, "gpus": gpus, "daemons": self.bed.daemons()}

    def _serve(self, *more: str, wait: bool = True) -> PluginProcess:
        return self.bed.serve(
            _RETRY,
            f"--config={self._config}",
            *more,
            environment={"DRA_DRIVER_FAILPOINT": f"@{self._order}"},
            wait=wait,
        )


def reason_of(call: Callable[[], object]) -> str:
    """Reason word with which a call fails; it must be explained in one line, and be no bug."""
    try:
        call()
    except CallFailed as error:
        found = _REASON.search(str(error))
        assert found is not None, f"no reason: {error}"
        assert "\n" not in str(error)
        assert found[1] not in ("Bug", "Internal", "Cancelled"), str(error)
        return found[1]
    return ""


def is_given_up(call: Callable[[], object]) -> bool:
    """Whether the call ended only because the kubelet gave it up, or the process died."""
    try:
        call()
    except CallFailed as error:
        assert "DEADLINE_EXCEEDED" in str(error) or "UNAVAILABLE" in str(error), str(error)
        return True
    return False


def _state_letter(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]
