"""Layouts as mig-parted documents them for A100 and H100 give what they name, in any order."""

from collections import Counter
from pathlib import Path

import pytest

from dra_driver.claims.layout_change import LayoutChange
from dra_driver.claims.layout_plan import is_as_wanted, target_of
from dra_driver.config import Settings, load_layouts, resolve_layout
from dra_driver.mig import LayoutEffect
from dra_driver.model import Gpu
from dra_driver.simulator.node_file import NodeSpec
from dra_driver.state import LayoutNotes, Records
from tests.support.discovery import Watch
from tests.support.node import MakeNode, SimulatedNode

MODELS = ("a100-40gb", "a100-80gb", "h100-80gb")  # in PCI order
FILE = """
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}
  all-1g.5gb:
  - device-filter: "0x20B010DE"
    devices: all
    mig-enabled: true
    mig-devices: {1g.5gb: 7}
  all-1g.5gb.me:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.5gb+me: 1}
  all-2g.10gb:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {2g.10gb: 3}
  all-3g.20gb:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {3g.20gb: 2}
  all-7g.40gb:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {7g.40gb: 1}
  all-1g.10gb:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 4}
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 7}
  all-1g.10gb.me:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb+me: 1}
  all-1g.20gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.20gb: 4}
  all-2g.20gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {2g.20gb: 3}
  all-3g.40gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {3g.40gb: 2}
  all-4g.40gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {4g.40gb: 1}
  all-7g.80gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {7g.80gb: 1}
  all-balanced:
  - device-filter: ["0x20B010DE", "0x20F110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE", "0x233110DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
  custom-config:
  - devices: [0]
    mig-enabled: true
    mig-devices: {1g.5gb: 1, 2g.10gb: 1, 3g.20gb: 1}
  - devices: [1]
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
  - devices: [2]
    mig-enabled: false
"""
NAMED = {  # what the names say, apart from the file
    "all-1g.5gb": ({"1g.5gb": 7}, None, None),
    "all-1g.5gb.me": ({"1g.5gb+me": 1}, None, None),
    "all-2g.10gb": ({"2g.10gb": 3}, None, None),
    "all-3g.20gb": ({"3g.20gb": 2}, None, None),
    "all-7g.40gb": ({"7g.40gb": 1}, None, None),
    "all-1g.10gb": ({"1g.10gb": 4}, {"1g.10gb": 7}, {"1g.10gb": 7}),
    "all-1g.10gb.me": (None, {"1g.10gb+me": 1}, {"1g.10gb+me": 1}),
    "all-1g.20gb": (None, {"1g.20gb": 4}, {"1g.20gb": 4}),
    "all-2g.20gb": (None, {"2g.20gb": 3}, {"2g.20gb": 3}),
    "all-3g.40gb": (None, {"3g.40gb": 2}, {"3g.40gb": 2}),
    "all-4g.40gb": (None, {"4g.40gb": 1}, {"4g.40gb": 1}),
    "all-7g.80gb": (None, {"7g.80gb": 1}, {"7g.80gb": 1}),
    "all-balanced": (
        {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    ),
    "all-enabled": ({}, {}, {}),
    "custom-config": (
        {"1g.5gb": 1, "2g.10gb": 1, "3g.20gb": 1},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
        {},
    ),
}


class NoTraces:
    def uids(self) -> set[str]:
        return set()

    def record(self, uid: str) -> None:
        return None


class Bed:
    """The change of layouts over a real Discovery, with records and notes on disk."""

    def __init__(self, node: SimulatedNode, folder: Path) -> None:
        self.node = node
        self.watch = Watch(node.root)
        self.watch.look()
        settings = Settings("node-a", host_root=node.root, plugins_folder=folder)
        records = Records(settings.data_folder, NoTraces())
        records.load()
        self.notes = LayoutNotes(settings.data_folder)
        effect = LayoutEffect(self.watch.discovery, settings)
        self.change = LayoutChange(records, self.notes, effect, lambda: None)

    def gpus(self) -> tuple[Gpu, ...]:
        inventory = self.watch.discovery.look(60)
        return tuple(sorted(inventory.gpus, key=lambda gpu: gpu.pci_bus_id or ""))

    def apply(self, name: str) -> None:
        for index, gpu in enumerate(self.gpus()):
            wanted = resolve_layout(name, load_layouts(FILE), gpu, index)
            target = target_of(gpu, wanted, self.notes.get(gpu.uuid))
            if wanted is not None and target is not None:
                assert self.change.make(gpu, target) is None
                assert is_as_wanted(self.gpus()[index], wanted)

    def standing(self, index: int) -> Counter[str]:
        shown = self.node.gpu(index)["instances"]
        assert all(len(each["computeInstances"]) == 1 for each in shown)
        return Counter(each["profile"] for each in shown)


def test_documented_layouts_give_what_they_name(make_node: MakeNode, tmp_path: Path) -> None:
    gpus = [{"model": model, "migMode": model.startswith("a100")} for model in MODELS]
    bed = Bed(make_node(spec=NodeSpec.model_validate({"gpus": gpus})), tmp_path)
    try:
        assert {*NAMED, "all-disabled"} == set(load_layouts(FILE))
        for name, expected in NAMED.items():
            before = [bed.standing(index) for index in range(len(MODELS))]
            bed.apply(name)
            for index, named in enumerate(expected):
                assert bed.standing(index) == (
                    before[index] if named is None else Counter(named)
                ), (
                    name,
                    MODELS[index],
                )
        assert bed.node.gpu(2)["mig"]["current"] is False, "custom-config switches it off"
    finally:
        bed.watch.discovery.stop()


@pytest.mark.parametrize("model", MODELS)
def test_their_device_filters_are_those_of_the_models(make_node: MakeNode, model: str) -> None:
    watch = Watch(make_node(model=model).root)
    try:
        watch.look()
        inventory = watch.discovery.current()
        assert inventory is not None
        (gpu,) = inventory.gpus
        assert f"0x{gpu.pci_device_id:08X}" in FILE
    finally:
        watch.discovery.stop()
