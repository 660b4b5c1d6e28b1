"""The node configurations that come as examples. The cluster tests run nodes with them."""

from pathlib import Path

import pytest

from dra_driver.config import load
from dra_driver.config.node import configured
from tests.support.inventories import inventory
from tests.support.mig_models import gpu_of

FOLDER = Path(__file__).parents[3] / "examples" / "nodeconfigs"
FILES = sorted(FOLDER.glob("*.yaml"))
MODES = {
    "dynamic.yaml": ["Dynamic", "Dynamic", "Dynamic", "Dynamic"],
    "layout.yaml": ["Static", "Static", "Static", "Existing"],
    "mixed.yaml": ["Dynamic", "Dynamic", "Existing", "Existing"],
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_does_what_it_says(path: Path) -> None:
    """On a node with three H100 and one L40S."""
    config = load(path.read_text(encoding="utf-8"))
    gpus = [gpu_of("h100-80gb", minor) for minor in range(3)]
    found = configured(inventory(*gpus, gpu_of("l40s", 3)), config, {}).gpus
    assert [gpu.policy.partitioning.value for gpu in found] == MODES[path.name]
    for index, gpu in enumerate(found):
        config.wanted(gpu, index)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_explains_itself(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    table = FOLDER.parent / "resourceclaims" / "README.md"
    assert f"[{path.name}](../nodeconfigs/{path.name})" in table.read_text(encoding="utf-8")
