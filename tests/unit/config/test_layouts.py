"""Layouts in mig-parted's format: what they want of one GPU."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from dra_driver.config import LayoutEntry, Wanted, load_layouts, resolve_layout, shipped_layouts
from dra_driver.model.errors import SettingInvalid
from dra_driver.simulator.models import MODELS
from tests.support.mig_models import MIG_MODELS, gpu_of

# The layouts that mig-parted documents for these two models, in its words.
A100, H100 = "0x20B010DE", "0x233010DE"
FILE = f"""
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {{}}
  all-1g.5gb:
    - devices: all
      mig-enabled: true
      mig-devices: {{"1g.5gb": 7}}
  all-1g.10gb:
    - device-filter: ["{H100}", "0x233110DE"]
      devices: all
      mig-enabled: true
      mig-devices: {{"1g.10gb": 7}}
    - device-filter: "{A100}"
      devices: all
      mig-enabled: true
      mig-devices: {{"1g.10gb": 4}}
  all-balanced:
    - device-filter: ["{A100}"]
      devices: all
      mig-enabled: true
      mig-devices: {{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}}
    - device-filter: ["{H100}"]
      devices: all
      mig-enabled: true
      mig-devices: {{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}}
  custom-config:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2]
      mig-enabled: true
      mig-devices: {{"2g.10gb": 3, "7g.40gb": 0}}
"""


def wanted(name: str, model: str, index: int = 0) -> Wanted | None:
    return resolve_layout(name, load_layouts(FILE), gpu_of(model), index)


def on(**partitions: int) -> Wanted:
    return Wanted(
        mig_enabled=True, partitions={k.replace("_", ".")[1:]: n for k, n in partitions.items()}
    )


@pytest.mark.parametrize(
    ("name", "model", "index", "expected"),
    [
        ("all-disabled", "a100-40gb", 0, Wanted(mig_enabled=False)),
        ("all-disabled", "t4", 0, Wanted(mig_enabled=False)),
        ("all-enabled", "h100-80gb", 0, on()),
        ("all-1g.5gb", "a100-40gb", 0, on(_1g_5gb=7)),
        ("all-1g.10gb", "h100-80gb", 0, on(_1g_10gb=7)),
        ("all-1g.10gb", "a100-40gb", 0, on(_1g_10gb=4)),
        ("all-1g.10gb", "h200", 0, None),
        ("all-balanced", "a100-40gb", 5, on(_1g_5gb=2, _2g_10gb=1, _3g_20gb=1)),
        ("all-balanced", "h100-80gb", 5, on(_1g_10gb=2, _2g_20gb=1, _3g_40gb=1)),
        ("custom-config", "a100-40gb", 1, Wanted(mig_enabled=False)),
        ("custom-config", "a100-40gb", 2, on(_2g_10gb=3)),
        ("custom-config", "a100-40gb", 3, None),
    ],
)
def test_a_file_of_mig_parted_means_what_it_says(
    name: str, model: str, index: int, expected: Wanted | None
) -> None:
    assert wanted(name, model, index) == expected


@pytest.mark.parametrize("model", MODELS)
def test_what_the_file_names_is_what_we_ship(model: str) -> None:
    """A user may delete the file: the same names mean the same without it."""
    for name in ("all-disabled", "all-1g.5gb", "all-1g.10gb", "all-balanced"):
        if model in ("a100-40gb", "h100-80gb") and not (name == "all-1g.5gb" and "h100" in model):
            assert wanted(name, model) == resolve_layout(name, {}, gpu_of(model), 0)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_a_shipped_layout_is_as_many_as_the_gpu_driver_allows(model: str) -> None:
    shipped = shipped_layouts(gpu_of(model))
    for profile in MODELS[model].gi:
        name = profile.name.removeprefix("MIG ")
        assert shipped[f"all-{name.replace('+', '.')}"].partitions == {name: profile.max_instances}
    assert sorted(shipped["all-balanced"].partitions.values()) == [1, 1, 2]
    slices = {int(name[0]): count for name, count in shipped["all-balanced"].partitions.items()}
    assert slices == {1: 2, 2: 1, 3: 1}
    assert len(shipped) == len(MODELS[model].gi) + 3


def test_a_gpu_of_four_slices_is_balanced_in_two_sizes() -> None:
    """An A30 in miniature: profiles of 1, 2 and 4 slices on four memory slices."""
    small = [
        slot
        for slot in gpu_of("a100-40gb").slots
        if slot.profile.name in ("1g.5gb", "2g.10gb", "4g.20gb") and slot.placement.start < 4
    ]
    gpu = replace(gpu_of("a100-40gb"), slots=tuple(small))
    assert shipped_layouts(gpu)["all-balanced"] == on(_1g_5gb=2, _2g_10gb=1)


def test_the_last_entry_that_matches_counts() -> None:
    entries = (
        entry(devices="all", mig_enabled=True, mig_devices={"1g.10gb": 7}),
        entry(devices=[1], mig_enabled=False),
    )
    gpu = gpu_of("h100-80gb")
    assert resolve_layout("mine", {"mine": entries}, gpu, 0) == on(_1g_10gb=7)
    assert resolve_layout("mine", {"mine": entries}, gpu, 1) == Wanted(mig_enabled=False)


def test_a_filter_does_not_match_a_gpu_whose_id_is_not_known() -> None:
    gpu = replace(gpu_of("h100-80gb"), pci_device_id=None)
    assert resolve_layout("all-balanced", load_layouts(FILE), gpu, 0) is None


def entry(**fields: Any) -> LayoutEntry:
    return LayoutEntry.model_validate({k.replace("_", "-"): v for k, v in fields.items()})


@pytest.mark.parametrize(
    ("layout", "model", "problem"),
    [
        ({"1g.5gb": 1}, "h100-80gb", "offers no profile 1g.5gb; it offers 1g.10gb, 1g.10gb+me, "),
        ({"1c.3g.40gb": 1}, "h100-80gb", "offers no profile 1c.3g.40gb; it offers "),
        ({"1g.10gb": 8}, "h100-80gb", "has no room for 8 x 1g.10gb"),
        ({"1g.10gb+me": 2}, "h100-80gb", "has no room for 2 x 1g.10gb+me"),
        ({"4g.40gb": 1, "3g.40gb": 2}, "h100-80gb", "has no room for 1 x 4g.40gb, 2 x 3g.40gb"),
        ({"1g.10gb": 1}, "t4", "(Tesla T4) has no MIG; restrict the layout by device-filter"),
    ],
)
def test_what_a_gpu_cannot_have_is_explained(
    layout: dict[str, int], model: str, problem: str
) -> None:
    entries = (entry(devices="all", mig_enabled=True, mig_devices=layout),)
    with pytest.raises(SettingInvalid) as caught:
        resolve_layout("mine", {"mine": entries}, gpu_of(model), 0)
    assert str(caught.value).startswith("layout mine: GPU-")
    assert problem in str(caught.value)


def test_a_shipped_layout_of_another_model_lists_those_there_are() -> None:
    with pytest.raises(SettingInvalid) as caught:
        resolve_layout("all-1g.5gb", {}, gpu_of("h100-80gb"), 0)
    assert "(NVIDIA H100 80GB HBM3) cannot have it; it can have all-disabled, all-enabled, " in (
        str(caught.value)
    )
    assert "all-1g.10gb.me" in str(caught.value)


def test_what_is_written_is_what_was_read() -> None:
    configs = yaml.safe_load(FILE)["mig-configs"]
    configs["all-1g.10gb"][1]["device-filter"] = [A100]
    read = load_layouts(FILE)
    assert {name: [each.document() for each in entries] for name, entries in read.items()} == (
        configs
    )


START = "version: v1\nmig-configs:\n  a:\n  - "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mig-configs: {a: [{devices: all, mig-enabled: false}]}", "line 1: version: is missing"),
        ("version: v2", "line 1: version: 'v2' is not allowed; allowed: 'v1'"),
        ("version: v1\nmig-configs: {}", "line 2: mig-configs: an empty mapping is not"),
        ("version: v1\nmig-configs: {a: []}", "line 2: mig-configs.a: an empty list is not"),
        (
            f"{START}{{devices: [0, all], mig-enabled: false}}",
            "line 4: mig-configs.a[0].devices[1]: 'all' is not allowed; allowed: a whole number",
        ),
        (
            f"{START}{{devices: all, mig-enabled: false, mig-devices: {{1g.5gb: 1}}}}",
            "line 4: mig-configs.a[0]: mig-devices is not allowed where mig-enabled is false",
        ),
        (
            f"{START}{{devices: all, mig-enabled: true, mig-devices: {{1g.5: 1}}}}",
            "line 4: mig-configs.a[0].mig-devices[\"1g.5\"]: '1g.5' is not a MIG profile such as",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        load_layouts(text)
    assert str(caught.value).startswith(problem)
