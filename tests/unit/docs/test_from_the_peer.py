"""The page on NVIDIA's driver names what the chart refuses, and what metrics there are."""

import re

import yaml

from dra_driver.telemetry import CATALOGUE
from tests.docs.fields import CHECKOUT

CHART = CHECKOUT / "deploy/helm/gpu-dra-driver"
PAGE = (CHECKOUT / "docs/from-the-peer.md").read_text(encoding="utf-8")
SHORT = re.compile(r"`([a-zA-Z.]+)`")


def test_every_value_that_is_refused_is_on_the_page() -> None:
    refused = yaml.safe_load((CHART / "files/peer-keys.yaml").read_text(encoding="utf-8"))
    assert refused.keys() - set(SHORT.findall(PAGE)) == set()


def test_values_of_the_same_name_are_there() -> None:
    told = PAGE.partition("have the same name:")[2].partition("All others")[0]
    top, _, plugin = told.partition("`kubeletPlugin`")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(SHORT.findall(top)) - values.keys() == set()
    for path in SHORT.findall(plugin):
        found = values["kubeletPlugin"]
        for key in path.split("."):
            assert key in found, path
            found = found[key]


def test_metrics_of_the_same_name_are_all_on_the_page() -> None:
    shared = {each.name for each in CATALOGUE if each.name.startswith("nvidia_dra_")}
    assert shared == set(re.findall(r"`(nvidia_dra_[a-z_]+)`", PAGE))
