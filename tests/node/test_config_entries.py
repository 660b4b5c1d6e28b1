"""A folder of configurations on the real process: the Node's label, the content, and troubles."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.api import wait_for
from tests.support.config_map import HEAD, ConfigMap
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import NODE, MakeBed, NodeBed

LABEL = "nvidia.com/dra.config"
FOUR = f"{HEAD}rules:\n- shares: {{count: 4}}\n"
EIGHT = FOUR.replace("4", "8")
PLAIN = f"{HEAD}rules: []\n"
FOUND = 'gpu_dra_driver_devices{device_type="gpu",health="healthy",state="free"} 1.0'


class Bed:
    """A node with a mounted ConfigMap."""

    def __init__(self, bed: NodeBed, folder: Path) -> None:
        self.bed = bed
        self.map = ConfigMap(folder, default=PLAIN, four_yaml=FOUR)
        bed.kubelet.start()

    def serve(self, *, wait: bool = True) -> None:
        self.bed.serve(f"--config={self.map.folder}", wait=wait)

    def label(self, name: str | None, **others: str) -> None:
        node = self.bed.api.objects.get("nodes", NODE)
        node["metadata"]["labels"] = others if name is None else {LABEL: name, **others}
        self.bed.api.objects.replace("nodes", node)

    def shares(self) -> list[str | None]:
        """How many shares each GPU is published with."""
        return [
            device["capacity"].get("shares", {}).get("value")
            for each in self.bed.slices()
            for device in each["spec"].get("devices", ())
        ]

    def becomes(self, *shares: str | None) -> None:
        wait_for(lambda: self.shares() == list(shares), f"published: {shares}")

    def updates(self) -> int:
        """How often a slice was changed."""
        found = [(each.verb, each.resource) for each in self.bed.api.requests.all()]
        return found.count(("update", "resourceslices"))

    def told(self, reason: str) -> list[str]:
        events = self.bed.api.objects.select("events")
        return [event["message"] for event in events if event["reason"] == reason]

    def is_not_ready(self, *words: str) -> bool:
        status, text = self.bed.get("/readyz")
        return status == 503 and all(word in text for word in words)


@pytest.fixture
def node(make_bed: MakeBed, tmp_path: Path) -> Bed:
    return Bed(make_bed(gpus=1), tmp_path / "map")


def test_the_label_and_the_content_are_followed_while_claims_live(node: Bed) -> None:
    node.label("four")
    node.serve()
    node.becomes("4")
    (slice_,) = node.bed.slices()
    assert slice_["spec"]["pool"]["generation"] == 1, "never published under another entry"
    share = {"device": "gpu-0", "shareID": str(uuid4()), "consumedCapacity": {"shares": "1"}}
    ref = node.bed.claim("held", share)
    node.bed.kubelet.prepare(DRIVER, [ref])
    node.map.write(default=PLAIN, four_yaml=EIGHT)
    wait_for(lambda: node.told("ConfigurationWaits"), "the content is followed, the share is held")
    assert node.shares() == ["4"]
    node.bed.kubelet.unprepare(DRIVER, [ref])
    node.becomes("8")
    node.label("nine")
    wait_for(lambda: node.is_not_ready("names 'nine'", "entries: default, four"), "it is told")
    assert node.shares() == ["8"]
    wait_for(lambda: node.told("ConfigurationInvalid"), "on the Node, too")
    node.label(None)
    node.becomes(None)
    wait_for(lambda: len(node.told("ConfigurationChosen")) == 2, "each choice is told once")
    assert (
        'gpu_dra_driver_config_chosen{by="named",entry="default"} 1.0'
        in node.bed.get("/metrics")[1]
    )


@pytest.mark.parametrize("entry", ["four", "default"])
def test_a_label_that_changes_while_the_api_server_is_away(node: Bed, entry: str) -> None:
    """What the last run had is in force; nothing is published before the label is known."""
    node.label("four")
    node.serve()
    node.becomes("4")
    node.bed.processes[-1].kill()
    if entry != "four":
        (node.bed.data_folder / "node-config.json").unlink()
    node.label("eight")
    node.map.write(default=PLAIN, eight=EIGHT)
    node.bed.api.faults.fail("get", "/nodes/", status=503)
    node.serve(wait=False)
    wait_for(
        lambda: node.is_not_ready(f"could not be read yet; entry '{entry}' is in force"),
        "it is told that the label is not known",
    )
    wait_for(lambda: FOUND in node.bed.get("/metrics")[1], "the GPU is found")
    assert node.shares() == ["4"]
    node.bed.api.faults.clear()
    node.becomes("8")
    assert node.updates() == 1
    node.bed.wait_ready(node.bed.processes[-1])


def test_rules_by_labels_hold_the_slices_until_the_labels_are_known(
    node: Bed, tmp_path: Path
) -> None:
    """Published without its rule, a GPU that is shared could be given out as a whole."""
    config = tmp_path / "node.yaml"
    config.write_text(
        f"{HEAD}rules:\n- match: {{nodeLabels: {{pool: train}}}}\n  shares: {{count: 4}}\n"
    )
    node.label("any", pool="train")
    node.bed.serve(f"--config={config}")
    node.becomes("4")
    node.bed.processes[-1].kill()
    node.bed.api.faults.fail("get", "/nodes/", status=503)
    node.bed.serve(f"--config={config}", wait=False)
    wait_for(lambda: node.is_not_ready("labels of the Node", "could not be read yet"), "it is told")
    wait_for(lambda: FOUND in node.bed.get("/metrics")[1], "the GPU is found")
    node.bed.api.faults.clear()
    node.bed.wait_ready(node.bed.processes[-1])
    assert node.shares() == ["4"]
    assert node.updates() == 0
