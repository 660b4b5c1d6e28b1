"""The simulated node of a state machine that has the plugin's parts in its own process."""

from pathlib import Path

from dra_driver.config import Settings
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.node_file import NodeSpec
from tests.support.engine import NODE
from tests.support.node import SimulatedNode


def node_below(folder: Path, spec: NodeSpec) -> tuple[SimulatedNode, Settings]:
    """Make a node below `folder`, and the settings of a plugin that looks only when it is asked."""
    node = SimulatedNode.create(folder / "node", spec, device_nodes=NodeKind.PLAIN, seed="machine")
    root = node.root
    return node, Settings(
        node_name=NODE,
        driver_root=root,
        container_driver_root=root,
        host_root=root,
        cdi_root=folder / "cdi",
        plugins_folder=folder / "plugins",
        hook_folder=folder / "hook",
        poll_seconds=3600.0,
        retry_seconds=0.01,
    )
