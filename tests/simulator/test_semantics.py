"""Every line of semantics.yaml: this call in this state gives this answer."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml

from dra_driver.simulator import models
from tests.support.node import MakeNode, SimulatedNode
from tests.support.nvml import UseNvml, error_name

ROWS: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("semantics.yaml").read_text(encoding="utf-8")
)
CASES = [
    pytest.param(row, id=f"{number}-{row['call']}-{row['gives']}")
    for number, row in enumerate(ROWS)
]

_HOLDER = """
import ctypes, sys, pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByIndex(0)
print("open", flush=True)
sys.stdin.read()
"""


class Bench:
    """A node, the handles of its first GPU, and what the steps of a state have started."""

    def __init__(self, node: SimulatedNode, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.handles: dict[str, Any] = {}
        self.holder: subprocess.Popen[str] | None = None

    def step(self, text: str) -> None:
        """Do one step of a state; its argument follows a blank."""
        name, _, argument = text.partition(" ")
        STEPS[name](self, argument)

    def partition(self, argument: str, *, compute_instance: bool) -> None:
        profile, _, start = (argument or "1g.10gb").partition("@")
        gi_id = self.node.state.partition(
            0, profile, int(start or -1), compute_instance=compute_instance
        )
        self.handles["gi"] = pynvml.nvmlDeviceGetGpuInstanceById(self.handles["gpu"], gi_id)
        if compute_instance:
            self.handles["ci"] = pynvml.nvmlGpuInstanceGetComputeInstanceById(self.handles["gi"], 0)
            self.handles["mig"] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handles["gpu"], 0)

    def open_elsewhere(self) -> None:
        self.holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(self.node.library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "open\n"

    def run_in_partition(self) -> None:
        gi_id = pynvml.nvmlDeviceGetGpuInstanceId(self.handles["mig"])
        self.node.state.process(0, 4242, 1 << 30, gi_id=gi_id, ci_id=0)

    def handle(self, name: str) -> Any:
        """Give a handle; a stale one is of a thing that is gone."""
        found = self.handles[name.removeprefix("stale-")]
        if name.startswith("stale-"):
            self.node.state.unpartition(0, self.node.gpu(0)["instances"][0]["id"])
        return found

    def close(self) -> None:
        if self.holder is not None:
            self.holder.communicate("", timeout=60)


STEPS: dict[str, Callable[[Bench, str], None]] = {
    "shutdown": lambda *_: pynvml.nvmlShutdown(),
    "no-control-node": lambda bench, _: (bench.node.root / "dev/nvidiactl").unlink(),
    "no-config-node": lambda bench, _: (bench.node.root / "dev/nvidia-caps/nvidia-cap1").unlink(),
    "hide-second": lambda bench, _: (bench.node.root / "dev/nvidia1").unlink(),
    "lose": lambda bench, _: bench.node.state.lose(0),
    "remove": lambda bench, _: bench.node.state.remove_gpu(0),
    "reload": lambda bench, _: bench.node.state.driver_reload(),
    "upgrade": lambda bench, _: bench.node.set_driver_version("590.44.01"),
    "driver-615": lambda *_: None,  # the node is made with it
    "mig": lambda bench, _: bench.node.state.set_mig_mode(0, on=True),
    "mig-pending": lambda bench, _: bench.node.state.set_mig_mode(0, on=True),
    "partition": lambda bench, text: bench.partition(text, compute_instance=True),
    "instance": lambda bench, text: bench.partition(text, compute_instance=False),
    "process": lambda bench, _: bench.node.state.process(0, 4242, 1 << 30),
    "process-in-partition": lambda bench, _: bench.run_in_partition(),
    "other-client": lambda bench, _: bench.open_elsewhere(),
}


def argument(bench: Bench, text: Any) -> Any:
    """Make an argument of what stands in the list."""
    made: dict[Any, Callable[[], Any]] = {
        "$count": lambda: ctypes.byref(ctypes.c_uint()),
        "$placements": pynvml.c_nvmlGpuInstancePlacement_t * 16,
        "$set": pynvml.nvmlEventSetCreate,
        "$fabric": lambda: ctypes.byref(pynvml.c_nvmlGpuFabricInfo_t()),
        "$second-uuid": lambda: bench.node.gpu(1)["uuid"],
    }
    if isinstance(text, str):
        return made.get(text, lambda: text)()
    if not isinstance(text, dict):
        return text
    if "start" in text:
        return ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(text["start"], text["size"]))
    if "limits" in text:
        soft, hard, where = text["limits"]
        path = str(bench.folder / where).encode()
        return pynvml.c_nvmlSetMemoryLimits_v1_t(path, soft, hard)
    path = str(bench.folder / text["get-limits"]).encode()
    return pynvml.c_nvmlGetMemoryLimits_v1_t(path, 0, 0, 0)


def exported(name: str) -> Callable[..., int]:
    """Give a function that is nvidia-smi's alone, and raises as pynvml's do."""

    def call(*arguments: Any) -> int:
        pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer(name)(*arguments))
        return 0

    return call


@pytest.mark.parametrize("row", CASES)
def test_semantics(
    row: dict[str, Any], make_node: MakeNode, use_nvml: UseNvml, tmp_path: Path
) -> None:
    node = make_node(model=row.get("model", "h100-80gb"), gpus=2)
    if "driver-615" in row.get("state", []):
        node.set_driver_version("615.10.01")
    use_nvml(node)
    (tmp_path / "here").mkdir()
    bench = Bench(node, tmp_path)
    bench.handles["gpu"] = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        for step in row.get("state", []):
            bench.step(step)
        on = row.get("handle", "gpu")
        first = [] if on == "none" else [bench.handle(on)]
        arguments = [argument(bench, text) for text in row.get("args", [])]
        function = getattr(pynvml, row["call"], None) or exported(row["call"])
        answer, result = "SUCCESS", None
        try:
            result = function(*first, *arguments)
        except pynvml.NVMLError as error:
            answer = error_name(error)
        assert row["gives"] == answer
        if "returns" in row:
            expected = row["returns"]
            code = getattr(pynvml, f"NVML_ERROR_{expected}", 0)
            assert result == (expected if isinstance(expected, int) else code)
    finally:
        bench.close()


def test_list_is_well_formed() -> None:
    known = {"call", "handle", "args", "state", "model", "gives", "returns", "source"}
    for row in ROWS:
        assert set(row) <= known, row
        assert row["source"]
        assert row.get("model", "h100-80gb") in models.MODELS
