"""Simulated nodes for tests of every level, and programs that run on them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.node import Node
from dra_driver.simulator.node_file import NodeSpec, alike

# pynvml loads the library by SONAME, so the one of the node is handed to it beforehand.
_NVML_PRELUDE = """
import ctypes, json, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
"""


class SimulatedNode(Node):
    """A simulated node with the programs that people and tests run on one."""

    @property
    def library(self) -> Path:
        """Where the node has libnvidia-ml.so.1."""
        return self.root / LIBRARY_FOLDER / "libnvidia-ml.so.1"

    def gpu(self, position: int) -> dict[str, Any]:
        """Give one GPU of `show()`."""
        gpu: dict[str, Any] = self.show()["gpus"][position]
        return gpu

    def smi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the node's nvidia-smi."""
        return subprocess.run(
            [str(self.root / "usr/bin/nvidia-smi"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"TZ": "UTC"},
        )

    def nvml(self, script: str) -> Any:
        """Run Python lines after nvmlInit() in another process; gives what they print as JSON.

        Raises:
            AssertionError: the script failed; the message holds its last words.

        """
        done = subprocess.run(
            [sys.executable, "-c", _NVML_PRELUDE + script, str(self.library)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None


MakeNode = Callable[..., SimulatedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Make simulated nodes of plain files: `make_node(model="h100-80gb", gpus=2)` or `spec=`."""
    nodes: list[SimulatedNode] = []

    def make(
        *,
        model: str = "h100-80gb",
        gpus: int = 1,
        spec: NodeSpec | None = None,
        device_nodes: NodeKind = NodeKind.PLAIN,
        seed: str = "test",
    ) -> SimulatedNode:
        root = tmp_path / f"node-{len(nodes)}"
        node = SimulatedNode.create(
            root, spec or alike(model, gpus), device_nodes=device_nodes, seed=seed
        )
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.close()
