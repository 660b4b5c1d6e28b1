"""What the pages on configs and the examples show is right."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config import decode_config, load
from dra_driver.model import MpsSettings, SharingSettings, Strategy
from dra_driver.model.errors import ConfigInvalid

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
CONFIGS = (ROOT / "docs/sharing-configs.md").read_text(encoding="utf-8")
API = "resource.nvidia.com/v1beta1"


def test_the_pages_example_is_read() -> None:
    block, config_map = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = load(block)
    assert len(config.rules) == 4
    assert config.rules[2].partitioning.layout in config.layouts
    assert config.rules[3].shares.count == 4
    entries = {name: load(text) for name, text in yaml.safe_load(config_map)["data"].items()}
    assert {name: len(entry.rules) for name, entry in entries.items()} == {
        "default": 0,
        "inference": 1,
    }


def test_the_examples_are_read() -> None:
    for path in sorted((ROOT / "examples/nodeconfigs").glob("*.yaml")):
        assert load(path.read_text(encoding="utf-8")).rules, path


def test_the_config_on_the_page_is_read() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", CONFIGS, re.DOTALL)
    (entry,) = yaml.safe_load(block)["spec"]["spec"]["devices"]["config"]
    settings = decode_config(entry["opaque"]["parameters"]).settings()
    assert settings == SharingSettings(
        Strategy.MPS, mps=MpsSettings(thread_percentage=50, pinned_memory_limit=40 * 2**30)
    )


@pytest.mark.parametrize(
    "sharing",
    [
        {"strategy": "TimeSlicing", "timeSlicing": {}},
        {"strategy": "TimeSlicing", "mpsConfig": {}},
        {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "512Ki"}},
    ],
)
def test_the_messages_on_the_page_are_those_that_are_given(sharing: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        decode_config({"apiVersion": API, "kind": "GpuConfig", "sharing": sharing})
    assert str(caught.value) in CONFIGS.splitlines()
