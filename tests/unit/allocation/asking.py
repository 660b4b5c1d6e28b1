"""Ways to ask the evaluator that several tests share."""

from typing import Any

from dra_driver.allocation import (
    Allocation,
    Claim,
    DeviceClass,
    DeviceId,
    InUse,
    Refusal,
    Slice,
    allocate,
)
from dra_driver.model import Quantity
from tests.unit.allocation.build import DRIVER, NODE, Manifest


def answer(question: Manifest) -> tuple[Allocation, ...] | Refusal:
    """Answer a question of `cases.py`."""
    return allocate(
        node=question["node"],
        slices=[Slice.parse(manifest) for manifest in question["slices"]],
        classes=[DeviceClass.parse(manifest) for manifest in question["classes"]],
        claims=[Claim.parse(manifest) for manifest in question["claims"]],
        in_use=InUse(
            {DeviceId(*names): "other/claim" for names in question["taken"]},
            {
                DeviceId(DRIVER, NODE, name): {
                    key: Quantity.parse(text) for key, text in used.items()
                }
                for name, used in question.get("shared", {}).items()
            },
        ),
    )


def as_json(question: Manifest, allocations: tuple[Allocation, ...]) -> list[dict[str, Any]]:
    """Return what the scheduler would write into each claim."""
    classes = {c["metadata"]["name"]: DeviceClass.parse(c) for c in question["classes"]}
    return [allocation.to_json(classes) for allocation in allocations]


def granted(question: Manifest) -> list[list[str]]:
    """Return the device names that each claim got."""
    outcome = answer(question)
    assert not isinstance(outcome, Refusal), outcome
    return [[grant.device.device for grant in one.grants] for one in outcome]


def refusal(question: Manifest) -> Refusal:
    """Return why the claims were refused."""
    outcome = answer(question)
    assert isinstance(outcome, Refusal), outcome
    return outcome
