"""The tables of fields in the pages are what the models make, and leave no field out."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import NodeConfig
from dra_driver.model import GpuPolicy
from tests.docs.fields import DOCUMENTS, PAGES, made, regions, rows
from tests.support.mig_models import gpu_of

RULE_DEFAULTS: dict[str, dict[str, Any]] = {
    "rules[].partitioning.mode": {"partitioning": {"mode": "Existing"}},
    "rules[].partitioning.allowReset": {"partitioning": {"allowReset": False}},
    "rules[].partitioning.strategy": {"partitioning": {"strategy": "mixed"}},
    "rules[].shares.rename": {"shares": {"rename": False}},
    "rules[].shares.failRequestsGreaterThanOne": {"shares": {"failRequestsGreaterThanOne": False}},
    "rules[].requireMemoryLimit": {"requireMemoryLimit": "none"},
    "rules[].naming": {"naming": "minor"},
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == made(text), "run `make docs`"


def test_every_field_is_in_a_table() -> None:
    told = {
        (document, row.path)
        for page in PAGES
        for document, chosen in regions(page.read_text(encoding="utf-8"))
        for row in chosen
    }
    fields = {(document, row.path) for document in DOCUMENTS for row in rows(document)}
    elsewhere = {each for each in fields if each[0] == "MigDeviceConfig"} - told
    assert fields - told == elsewhere
    assert {path for _, path in elsewhere} <= {row.path for row in rows("GpuConfig")}


def test_every_field_has_values_and_a_meaning() -> None:
    for document in DOCUMENTS:
        for row in rows(document):
            assert row.values, row.path
            assert row.meaning.endswith("."), row.path
            assert "|" not in f"{row.meaning}{row.values}{row.default}", row.path


def test_an_unknown_field_in_a_page_is_told() -> None:
    with pytest.raises(ValueError, match=r"NodeConfig has no field rules\[\]\.colour"):
        made("<!-- made by `make docs`: NodeConfig rules[].colour -->\n<!-- end -->\n")


def innermost(rule: Any) -> str:
    while isinstance(rule, dict):
        (rule,) = rule.values()
    return str(rule).lower() if isinstance(rule, bool) else str(rule)


def test_defaults_that_no_model_has_are_those_of_a_gpu_without_rules() -> None:
    told = {row.path: row.default for row in rows("NodeConfig")}
    head = {"apiVersion": "config.gpu-dra-driver.dev/v1alpha1", "kind": "NodeConfig"}
    for path, rule in RULE_DEFAULTS.items():
        config = NodeConfig.model_validate({**head, "rules": [rule]})
        assert config.policy(gpu_of("h100-80gb"), 0, {}) == GpuPolicy(), path
        assert told[path] == f"`{innermost(rule)}`"
    without_default = {"rules[].shares.reserve", "rules[].sharing.interval"}  # of other fields
    with_default = {path for path, word in told.items() if path.startswith("rules") and "`" in word}
    of_mps = {path for path in with_default if ".mps." in path}
    assert with_default - of_mps - without_default == RULE_DEFAULTS.keys()
