"""Layouts by a label of the Node on the real process, and rules that match labels of the Node."""

from typing import Any

from tests.support.kubelet import eventually
from tests.support.layouts import BALANCED, CONFIG, HALVES, LayoutBed, MakeLayoutBed
from tests.support.plugin_process import NODE

WANTED, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MANAGER = "nvidia.com/gpu.deploy.mig-manager"
PLAIN = CONFIG.replace("mode: Static, layout: LAYOUT", "mode: Existing")


def label(bed: LayoutBed, **labels: str | None) -> None:
    """Set labels of the Node as a person does, or remove them."""
    node = bed.bed.api.objects.get("nodes", NODE)
    kept = {**node["metadata"].get("labels", {}), **labels}
    node["metadata"]["labels"] = {key: value for key, value in kept.items() if value is not None}
    bed.bed.api.objects.replace("nodes", node)


def labels(bed: LayoutBed) -> dict[str, str]:
    found: dict[str, str] = bed.bed.api.objects.get("nodes", NODE)["metadata"].get("labels", {})
    return found


def requests(bed: LayoutBed) -> list[tuple[str, str]]:
    return [(each.verb, each.resource) for each in bed.bed.api.requests.all()]


def test_a_label_names_the_layout_and_another_tells_how_far_it_is(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({}, {"model": "t4"})
    bed.configure("", PLAIN)
    label(bed, **{WANTED: "all-balanced"})
    bed.serve("--mig-config-label")
    eventually(lambda: labels(bed).get(STATE) == "pending", "it is on its way")
    bed.becomes(BALANCED)
    eventually(lambda: labels(bed)[STATE] == "success", "it is told")
    label(bed, **{WANTED: "halves"})
    bed.becomes(HALVES)
    eventually(lambda: labels(bed)[STATE] == "success", "it is told")
    label(bed, **{WANTED: "all-9g.1gb"})
    eventually(lambda: labels(bed)[STATE] == "failed", "no GPU can have that")
    assert bed.partitions() == HALVES
    assert bed.metric("failed") == 1, "a GPU without MIG is not meant"


def test_the_label_is_left_to_a_mig_manager(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.configure("", PLAIN)
    label(bed, **{WANTED: "all-balanced", MANAGER: "true"})
    bed.serve("--mig-config-label")
    bed.says("LayoutLabelUnused", "a MIG Manager is at work")
    assert STATE not in labels(bed)
    assert bed.bed.node.gpu(0)["mig"]["current"] is False
    label(bed, **{MANAGER: None})
    bed.becomes(BALANCED)
    eventually(lambda: labels(bed).get(STATE) == "success", "it is told")
    label(bed, **{STATE: "rebooting", WANTED: "halves"})
    bed.says("LayoutLabelUnused", "somebody else has set label", "rebooting")
    assert bed.partitions() == BALANCED
    label(bed, **{STATE: None})
    bed.becomes(HALVES)


def test_without_the_right_to_patch_nodes_the_layout_is_applied_all_the_same(
    layout_bed: MakeLayoutBed,
) -> None:
    bed = layout_bed({})
    bed.configure("", PLAIN)
    label(bed, **{WANTED: "halves"})
    bed.bed.api.faults.fail("patch", "/nodes/", status=403)
    bed.serve("--mig-config-label")
    bed.becomes(HALVES)
    told = bed.says("LayoutLabelUnused", STATE, "can't be set")
    assert "'patch' on 'nodes'" in told


def test_a_state_that_could_not_be_told_is_told_later(layout_bed: MakeLayoutBed) -> None:
    """Somebody may wait for it; and nothing changes any more that would remind of it."""
    bed = layout_bed({})
    bed.configure("", PLAIN)
    label(bed, **{WANTED: "halves"})
    bed.bed.api.faults.fail("patch", "/nodes/", status=503)
    bed.serve("--mig-config-label")
    bed.says("LayoutLabelUnused", STATE, "can't be set to success")
    bed.bed.api.faults.clear()
    eventually(lambda: labels(bed).get(STATE) == "success", "it is told")


def test_rules_match_the_labels_of_the_node(layout_bed: MakeLayoutBed) -> None:
    text = CONFIG.replace("- partitioning", "- match: {nodeLabels: {pool: train}}\n  partitioning")
    bed = layout_bed({})
    bed.configure("halves", text)
    label(bed, pool="train")
    bed.serve()
    bed.becomes(HALVES)
    eventually(lambda: bed.metric("applied") == 1, "the rule fits")
    label(bed, pool="other")
    eventually(lambda: bed.metric("applied") == 0, "the rule fits no more")
    assert bed.partitions() == HALVES


def test_labels_are_not_asked_for_when_nobody_needs_them(layout_bed: MakeLayoutBed) -> None:
    bed = layout_bed({})
    bed.configure("halves")
    label(bed, **{WANTED: "all-balanced"})
    bed.serve()
    bed.becomes(HALVES)
    gets = [each for each in requests(bed) if each == ("get", "nodes")]
    assert len(gets) == 1, "the owner of the slices"
    marker: Any = ("patch", "nodes")
    assert marker not in requests(bed)
