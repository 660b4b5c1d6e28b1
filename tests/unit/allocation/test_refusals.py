"""What a person reads when a claim gets nothing."""

import pytest

from dra_driver.allocation import Cause, Claim, DeviceClass, Refusal, Slice, allocate
from tests.unit.allocation.asking import granted, refusal
from tests.unit.allocation.build import (
    CLASSES,
    DRIVER,
    NODE,
    claim,
    consuming,
    counters,
    device_class,
    exactly,
    gpu,
    mig,
    resource_slice,
)
from tests.unit.allocation.cases import CASES

BIG = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('60Gi')) >= 0"
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def _one_of_each() -> dict[str, object]:
    """One device for each reason not to get it, and a claim that wants one more."""
    devices = [
        gpu("gpu-0"),
        gpu("gpu-1", memory="40Gi"),
        mig("gpu-2-mig-a", "GPU-2"),
        gpu("gpu-3", taints=[TAINT]),
        consuming(gpu("gpu-4"), "gpu-4-set", engines="3"),
        gpu("gpu-5", rack="a"),
    ]
    return {
        "node": NODE,
        "slices": [
            resource_slice("s0", devices, count=2),
            resource_slice("s1", [], shared=[counters("gpu-4-set", engines="2")], count=2),
        ],
        "classes": CLASSES,
        "claims": [
            claim(
                "c",
                {"gpu": exactly("gpu", BIG, count=2)},
                constraints=[{"matchAttribute": f"{DRIVER}/rack"}],
            )
        ],
        "taken": [[DRIVER, NODE, "gpu-0"]],
    }


def test_every_device_has_its_reason() -> None:
    outcome = refusal(_one_of_each())
    (shortfall,) = outcome.shortfalls
    assert (shortfall.request, shortfall.wanted, shortfall.found) == ("gpu", 2, 1)
    reasons = {r.device.device: (r.cause, r.detail) for r in shortfall.rejections}
    assert reasons == {
        "gpu-0": (Cause.TAKEN, "taken by claim other/claim"),
        "gpu-1": (Cause.REQUEST_SELECTOR, f"request gpu: selector #0: {BIG}"),
        "gpu-2-mig-a": (Cause.CLASS_SELECTOR, reasons["gpu-2-mig-a"][1]),
        "gpu-3": (Cause.TAINTED, "taint gpu.nvidia.com/xid=79:NoSchedule"),
        "gpu-4": (Cause.COUNTER, "counter engines of gpu-4-set: 3 wanted, 2 left"),
    }
    assert reasons["gpu-2-mig-a"][1].startswith("class gpu: selector #0: device.driver ==")
    assert str(outcome) == (
        "claim default/c: request gpu wants 2 devices, 1 found (1 taken, 1 not in the class, "
        "1 ruled out by the request's selectors, 1 short of a shared counter, 1 tainted)"
    )


def test_a_claim_of_the_same_pod_is_named_as_holder() -> None:
    outcome = refusal(CASES["claims: three claims for two"])
    holders = {r.device.device: r.detail for r in outcome.shortfalls[0].rejections}
    assert outcome.claim == "default/c"
    assert holders == {
        "gpu-0": "taken by claim default/a, request gpu",
        "gpu-1": "taken by claim default/b, request gpu",
    }


def test_each_alternative_has_its_own_shortfall() -> None:
    outcome = refusal(CASES["requests: no alternative"])
    assert [shortfall.request for shortfall in outcome.shortfalls] == ["g/b", "g/m"]


def test_missing_key_names_selector_device_and_remedy() -> None:
    outcome = refusal(CASES["selection: missing key on a device that is reached"])
    assert outcome.fatal
    assert outcome.message == (
        "request gpu: selector #0 on device gpu.nvidia.com/node-a/gpu-0: CEL runtime error: "
        "no such key: nvlink (read it as .?name.orValue(...) or ask for it with has() first)"
    )


def test_an_invalid_expression_is_shown_with_its_position() -> None:
    outcome = refusal(CASES["selection: selector that does not compile"])
    assert outcome.message == (
        "request gpu: selector #0: CEL compile error at 1:7: undeclared reference to 'device.nope'"
    )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("pools: incomplete pool", "is incomplete: 1 of 2 slices of generation 1"),
        ("pools: duplicate device", "is invalid: duplicate device name gpu-0"),
        ("counters: a set that is missing", "counter set gone of device g not found"),
        ("counters: a counter that is missing", "counter y not found in counter set a"),
        ("counters: a set that is there twice", "is invalid: duplicate counter set name a"),
        ("counters: whole after small", "0 found (3 not in the class, 1 short of a shared"),
        ("pools: all from an incomplete pool", "asks for all devices, but pool"),
        ("selection: nothing published", "(no device is published for this node)"),
        ("selection: three of two", "2 found (no other device is published for this node)"),
        ("selection: unknown class", "request g: there is no device class nope"),
        ("counts: 33 devices", "33 devices are wanted, a claim can have 32"),
        ("counts: all where there is none", "wants all devices, 0 found (2 not in the class)"),
        ("counts: all against a constraint", "parentUUID differs from that of the devices before"),
    ],
)
def test_words(case: str, words: str) -> None:
    assert words in refusal(CASES[case]).message


def test_a_taken_device_that_does_not_fit_is_told_as_unfit() -> None:
    slices = [resource_slice("s0", [gpu("gpu-0"), mig("gpu-1-mig-a", "GPU-1")])]
    question = {
        "node": NODE,
        "slices": slices,
        "classes": CLASSES,
        "claims": [claim("c", {"m": exactly("mig", count=2)})],
        "taken": [[DRIVER, NODE, "gpu-0"], [DRIVER, NODE, "gpu-1-mig-a"]],
    }
    causes = {r.device.device: r.cause for r in refusal(question).shortfalls[0].rejections}
    assert causes == {"gpu-0": Cause.CLASS_SELECTOR, "gpu-1-mig-a": Cause.TAKEN}


def test_an_endless_search_ends_by_its_limit() -> None:
    """16 of 32 devices that differ in one attribute have 600 million combinations."""
    devices = [gpu(f"gpu-{index}", rack=f"r{index % 3}") for index in range(32)]
    outcome = allocate(
        NODE,
        [Slice.parse(resource_slice("s0", devices))],
        [DeviceClass.parse(device_class("gpu"))],
        [
            Claim.parse(
                claim(
                    "c",
                    {"a": exactly("gpu", count=16), "b": exactly("gpu", count=16)},
                    constraints=[{"matchAttribute": f"{DRIVER}/rack", "requests": ["b"]}],
                )
            )
        ],
        limit=0.2,
    )
    assert isinstance(outcome, Refusal)
    assert outcome.fatal
    assert "the search took too long" in outcome.message


def test_counters_keep_only_the_devices_that_need_them_back() -> None:
    question = _one_of_each()
    question["claims"] = [claim("c", {"gpu": exactly("gpu", BIG)})]
    assert granted(question) == [["gpu-5"]]


@pytest.mark.parametrize(
    ("case", "device", "detail"),
    [
        ("big after small", "gpu-0-mig-2-0", "counter slice-1 of gpu-0-set: 1 wanted, 0 left"),
        ("small after whole", "gpu-0-mig-1-1", "counter memory of gpu-0-set: 10Gi wanted, 0 left"),
        ("less than the device takes", "gpu-0-mig-2-0", "memory of gpu-0-set: 20Gi wanted, 10Gi l"),
        (
            "what is overdrawn holds back the pool",
            "gpu-1-mig-1-0",
            "counter memory of gpu-0-set: devices in use take more than there is",
        ),
    ],
)
def test_the_counter_that_is_short_is_named(case: str, device: str, detail: str) -> None:
    """The emptiest first: it says best what stands in the way."""
    outcome = refusal(CASES[f"counters: {case}"])
    details = {r.device.device: r.detail for r in outcome.shortfalls[0].rejections}
    assert detail in details[device]
