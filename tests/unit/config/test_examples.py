"""The node configurations that come as examples. The cluster tests run nodes with them."""

from pathlib import Path

import pytest

from dra_driver.config import load
from dra_driver.config.node import configured
from dra_driver.model import GpuPolicy
from tests.support.inventories import inventory
from tests.support.mig_models import gpu_of

FOLDER = Path(__file__).parents[3] / "examples" / "nodeconfigs"
FILES = sorted(FOLDER.glob("*.yaml"))
MODES = {
    "dynamic.yaml": ["Dynamic", "Dynamic", "Dynamic", "Dynamic"],
    "layout.yaml": ["Static", "Static", "Static", "Existing"],
    "memory.yaml": ["Existing", "Existing", "Existing", "Existing"],
    "mixed.yaml": ["Dynamic", "Dynamic", "Existing", "Existing"],
    "partition-or-share.yaml": ["Dynamic", "Existing", "Existing", "Existing"],
    "shares-mps.yaml": ["Existing", "Existing", "Existing", "Existing"],
    "shares.yaml": ["Existing", "Existing", "Existing", "Existing"],
}
SHARES = {
    "memory.yaml": ["memory", "memory", "memory", "memory"],
    "partition-or-share.yaml": ["none", "memory", "memory", "memory"],
    "shares-mps.yaml": ["count 4, MPS", "count 4, MPS", "count 4, MPS", "none"],
    "shares.yaml": ["count 4", "count 4", "count 4", "count 4"],
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_does_what_it_says(path: Path) -> None:
    """On a node with three H100 and one L40S."""
    config = load(path.read_text(encoding="utf-8"))
    gpus = [gpu_of("h100-80gb", minor) for minor in range(3)]
    found = configured(inventory(*gpus, gpu_of("l40s", 3)), config, {}).gpus
    assert [gpu.policy.partitioning.value for gpu in found] == MODES[path.name]
    assert [_shares(gpu.policy) for gpu in found] == SHARES.get(path.name, ["none"] * 4)
    for index, gpu in enumerate(found):
        config.wanted(gpu, index)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_explains_itself(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    table = FOLDER.parent / "resourceclaims" / "README.md"
    assert f"[{path.name}](../nodeconfigs/{path.name})" in table.read_text(encoding="utf-8")


def _shares(policy: GpuPolicy) -> str:
    words = policy.shares.mode.value
    if policy.shares.count:
        words = f"{words} {policy.shares.count}"
    return f"{words}, {policy.sharing.strategy.value}" if policy.sharing else words
