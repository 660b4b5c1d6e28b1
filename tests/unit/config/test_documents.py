"""What the page on configuration and the examples show is right, and the page has every field."""

import re
from pathlib import Path

from dra_driver.config import NodeConfig, load
from tests.unit.config.walk import keys, models

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def test_the_pages_example_is_read() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = load(block)
    assert len(config.rules) == 4
    assert config.rules[2].partitioning.layout in config.layouts
    assert config.rules[3].shares.count == 4


def test_the_examples_are_read() -> None:
    for path in sorted((ROOT / "examples/nodeconfigs").glob("*.yaml")):
        assert load(path.read_text(encoding="utf-8")).rules, path


def test_every_field_is_on_the_page() -> None:
    fields = {key for model in models(NodeConfig) for key in keys(model)}
    assert {field for field in fields if not re.search(rf"\b{field}\b", PAGE)} == set()
