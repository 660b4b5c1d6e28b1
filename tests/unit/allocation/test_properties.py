"""What holds for any slices and any claims."""

from collections import Counter
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.allocation import Allocation, Claim, DeviceId, Refusal, Slice
from dra_driver.allocation.expression import Subject, matches
from tests.unit.allocation.asking import answer
from tests.unit.allocation.build import (
    CLASSES,
    DRIVER,
    NODE,
    Manifest,
    claim,
    exactly,
    gpu,
    mig,
    resource_slice,
)

STEADY = settings(deadline=None, derandomize=True, max_examples=150)
SELECTORS = (
    f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('20Gi'))",
    f"device.attributes['{DRIVER}'].?model.orValue('') == 'H100'",
    f"device.attributes['{DRIVER}'].?parentUUID.orValue('') == 'GPU-1'",
)


@st.composite
def _devices(draw: st.DrawFn) -> list[Manifest]:
    kinds = draw(st.lists(st.sampled_from(["H100", "A100", "GPU-1", "GPU-2"]), max_size=6))
    return [
        mig(f"d{index}", kind) if kind.startswith("GPU") else gpu(f"d{index}", kind)
        for index, kind in enumerate(kinds)
    ]


@st.composite
def _bodies(draw: st.DrawFn) -> Manifest:
    selectors = draw(st.lists(st.sampled_from(SELECTORS), max_size=1))
    class_name, count = draw(st.sampled_from(["gpu", "mig"])), draw(st.integers(1, 2))
    return exactly(class_name, *selectors, count=count)


@st.composite
def _claims(draw: st.DrawFn) -> list[Manifest]:
    claims = []
    for number in range(draw(st.integers(1, 3))):
        bodies = draw(st.lists(_bodies(), min_size=1, max_size=2))
        constraints = [{"matchAttribute": f"{DRIVER}/type"}] if draw(st.booleans()) else []
        requests: dict[str, Any] = {f"r{index}": body for index, body in enumerate(bodies)}
        claims.append(claim(f"c{number}", requests, constraints=constraints))
    return claims


@st.composite
def _questions(draw: st.DrawFn) -> Manifest:
    devices = draw(_devices())
    names = [device["name"] for device in devices]
    taken = draw(st.sets(st.sampled_from(names))) if names else set()
    return {
        "node": NODE,
        "slices": [resource_slice("s0", devices)],
        "classes": CLASSES,
        "claims": draw(_claims()),
        "taken": [[DRIVER, NODE, name] for name in sorted(taken)],
    }


def _granted(allocations: tuple[Allocation, ...]) -> list[DeviceId]:
    return [grant.device for allocation in allocations for grant in allocation.grants]


@given(_questions())
@STEADY
def test_no_device_is_given_twice_and_none_that_is_taken(question: Manifest) -> None:
    outcome = answer(question)
    if isinstance(outcome, Refusal):
        return
    devices = Counter(_granted(outcome))
    assert set(devices.values()) <= {1}
    assert not set(devices) & {DeviceId(*names) for names in question["taken"]}


@given(_questions())
@STEADY
def test_every_claim_gets_exactly_what_it_asked_for(question: Manifest) -> None:
    outcome = answer(question)
    if isinstance(outcome, Refusal):
        return
    subjects = {device.id: Subject(device) for device in _published(question)}
    for allocation, manifest in zip(outcome, question["claims"], strict=True):
        for request in manifest["spec"]["devices"]["requests"]:
            got = [g.device for g in allocation.grants if g.alternative.name == request["name"]]
            assert len(got) == request["exactly"]["count"]
            for selector in request["exactly"].get("selectors", []):
                expression = selector["cel"]["expression"]
                assert all(matches(expression, subjects[device]) for device in got)


@given(_questions())
@STEADY
def test_a_refusal_is_right_and_accounts_for_every_device(question: Manifest) -> None:
    """Compare with a search by brute force over all ways to hand the devices out."""
    outcome = answer(question)
    assert isinstance(outcome, Refusal) != _possible(question)
    if isinstance(outcome, Refusal):
        assert outcome.message
        assert "\n" not in outcome.message
        for shortfall in outcome.shortfalls:
            explained = len(shortfall.rejections) + shortfall.found
            assert explained == len(_published(question))


@given(_questions())
@STEADY
def test_the_same_question_has_the_same_answer(question: Manifest) -> None:
    assert answer(question) == answer(question)


def _published(question: Manifest) -> tuple[Any, ...]:
    return Slice.parse(question["slices"][0]).devices


def _possible(question: Manifest) -> bool:
    free = [
        device
        for device in _published(question)
        if [DRIVER, NODE, device.id.device] not in question["taken"]
    ]
    classes = {c["metadata"]["name"]: c["spec"]["selectors"] for c in CLASSES}
    wishes = []  # (constraint group, count, expressions)
    for manifest in question["claims"]:
        devices = manifest["spec"]["devices"]
        group = manifest["metadata"]["name"] if devices.get("constraints") else None
        for request in devices["requests"]:
            body = request["exactly"]
            selectors = classes[body["deviceClassName"]] + body.get("selectors", [])
            wishes.append((group, body["count"], [s["cel"]["expression"] for s in selectors]))
    return _hand_out(wishes, free, {})


def _hand_out(wishes: list[Any], free: list[Any], kinds: dict[str, object]) -> bool:
    if not wishes:
        return True
    (group, count, expressions), rest = wishes[0], wishes[1:]
    fitting = [d for d in free if all(matches(text, Subject(d)) for text in expressions)]
    for chosen in combinations(fitting, count):
        types = {device.attribute(f"{DRIVER}/type") for device in chosen}
        known = kinds if group is None else kinds | {group: next(iter(types))}
        if group is not None and (len(types) > 1 or kinds.get(group, *types) not in types):
            continue
        if _hand_out(rest, [d for d in free if d not in chosen], known):
            return True
    return False


@given(st.integers(-(1 << 70), 1 << 70), st.sampled_from(["", "m", "k", "Ki", "Gi", "M", "Ti"]))
@STEADY
def test_quantities_compare_by_amount(number: int, suffix: str) -> None:
    device = Slice.parse(
        resource_slice("s", [{"name": "d", "capacity": {"x": {"value": f"{number}{suffix}"}}}])
    ).devices[0]
    amount = f"quantity('{number}{suffix}')"
    published = f"device.capacity['{DRIVER}'].x"
    assert matches(
        f"{published} == {amount} && {published}.compareTo({amount}) == 0", Subject(device)
    )
    assert matches(
        f"{published}.sub({amount}).add(1).isGreaterThan(quantity('0'))", Subject(device)
    )


def test_claims_are_read_without_loss() -> None:
    manifest = claim("c", {"a": exactly("gpu", *SELECTORS, count=2)})
    (request,) = Claim.parse(manifest).requests
    assert request.alternatives[0].selectors == SELECTORS
