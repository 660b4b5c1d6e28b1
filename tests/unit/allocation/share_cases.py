"""Questions about devices that several claims share; the scheduler's own code has answered too."""

from typing import Any

from tests.unit.allocation.build import (
    DRIVER,
    Manifest,
    claim,
    consuming,
    counters,
    exactly,
    gpu,
    mig,
    policy,
    question,
    resource_slice,
    sharing,
)

_SHARES = policy("4", "1", min="1", max="4", step="1")
_NOTED = policy("80Gi", "0", min="0", max="80Gi", step="1Mi")
_BY_MEMORY = policy("80535Mi", "80535Mi", min="1Mi", max="80535Mi", step="1Mi")
_NOTHING = policy("132", "0")
_SHAREABLE = f"device.allowMultipleAllocations && device.driver == '{DRIVER}'"
_TAINT = {"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}


def _by_count(name: str, **more: Any) -> Manifest:
    return sharing(gpu(name, **more), memory=_NOTED, shares=_SHARES, multiprocessors=_NOTHING)


def _by_memory(name: str, **more: Any) -> Manifest:
    return sharing(gpu(name, **more), memory=_BY_MEMORY, multiprocessors=_NOTHING)


def _for_all(name: str) -> Manifest:
    return sharing(gpu(name), memory=_NOTED)


def _slice(*devices: Manifest) -> list[Manifest]:
    return [resource_slice("s0", devices)]


def _want(
    name: str = "c", class_name: str = "gpu", selectors: tuple[str, ...] = (), **more: Any
) -> Manifest:
    return claim(name, {"r": exactly(class_name, *selectors, **more)})


def _memory(amount: str, name: str = "c", **more: Any) -> Manifest:
    return _want(name, capacity={"memory": amount}, **more)


def _used(name: str, **amounts: str) -> dict[str, dict[str, str]]:
    return {name: amounts}


_COUNT = _slice(_by_count("gpu-0"))
_MEMORY = _slice(_by_memory("gpu-0"))
_TWO = _slice(_by_count("gpu-0", uuid="a"), _by_count("gpu-1", uuid="b"))
_MIXED = _slice(gpu("gpu-0"), _by_memory("gpu-1"))
_ODD = _slice(
    sharing(
        gpu("gpu-0"),
        memory=policy("10Gi", "1Gi", values=["1Gi", "2Gi", "5Gi"]),
        grains=policy("100", "10", min="10", step="7"),
        bare={"value": "8"},
        free={"value": "6", "requestPolicy": {}},
        half=policy("2", "500m", min="500m", max="2", step="250m"),
        huge=policy("9Ei", "0", min="0", max="8Ei", step="1"),
    )
)
_NO_DEFAULT = _slice(sharing(gpu("gpu-0", memory="80Gi")))


def _odd(**capacity: str) -> Manifest:
    return question(_ODD, _want(capacity={"bare": "1", "free": "1"} | capacity))


_BY_COUNT: dict[str, Manifest] = {
    "one share": question(_COUNT, _want()),
    "four claims": question(_COUNT, *(_want(f"c{n}") for n in range(4))),
    "a fifth claim": question(_COUNT, *(_want(f"c{n}") for n in range(5))),
    "the fourth beside three": question(_COUNT, _want(), shared=_used("gpu-0", shares="3")),
    "a fifth beside four": question(_COUNT, _want(), shared=_used("gpu-0", shares="4")),
    "two shares at once": question(_COUNT, _want(capacity={"shares": "2"})),
    "two where one is left": question(
        _COUNT, _want(capacity={"shares": "2"}), shared=_used("gpu-0", shares="3")
    ),
    "five at once": question(_COUNT, _want(capacity={"shares": "5"})),
    "half a share": question(_COUNT, _want(capacity={"shares": "500m"})),
    "one share and a half": question(_COUNT, _want(capacity={"shares": "1500m"})),
    "part of a share that can't be counted": question(_COUNT, _want(capacity={"shares": "1500u"})),
    "that on a device which is full": question(
        _COUNT, _want(capacity={"shares": "1000100u"}), shared=_used("gpu-0", shares="4")
    ),
    "memory beside shares": question(_COUNT, _memory("40Gi", "a"), _memory("40Gi", "b")),
    "memory runs out before shares": question(_COUNT, _memory("40Gi", "a"), _memory("41Gi", "b")),
    "multiprocessors": question(_COUNT, _want(capacity={"multiprocessors": "100"})),
    "too many multiprocessors": question(
        _COUNT,
        _want(capacity={"multiprocessors": "100"}),
        shared=_used("gpu-0", multiprocessors="33"),
    ),
    "the second device when the first is full": question(
        _TWO, _want(), shared=_used("gpu-0", shares="4")
    ),
    "one request, two devices": question(_TWO, _want(count=2)),
    "one request does not get one device twice": question(_COUNT, _want(count=2)),
    "two requests of a claim share a device": question(
        _COUNT, claim("c", {"a": exactly("gpu"), "b": exactly("gpu")})
    ),
    "five requests of a claim": question(
        _COUNT, claim("c", {f"r{n}": exactly("gpu") for n in range(5)})
    ),
    "two requests that must differ": question(
        _TWO,
        claim(
            "c",
            {"a": exactly("gpu"), "b": exactly("gpu")},
            constraints=[{"distinctAttribute": f"{DRIVER}/uuid"}],
        ),
    ),
    "two requests that must be on one": question(
        _TWO,
        claim(
            "c",
            {"a": exactly("gpu"), "b": exactly("gpu")},
            constraints=[{"matchAttribute": f"{DRIVER}/uuid"}],
        ),
        shared=_used("gpu-0", shares="3"),
    ),
    "all": question(_TWO, _want(everything=True)),
    "all where one is full": question(
        _TWO, _want(everything=True), shared=_used("gpu-1", shares="4")
    ),
    "all twice": question(_TWO, _want("a", everything=True), _want("b", everything=True)),
    "somebody has it alone": question(_COUNT, _want(), taken=("gpu-0",)),
    "alone and shared": question(_COUNT, _want(), taken=("gpu-0",), shared=_used("gpu-0")),
    "a monitor": question(_COUNT, _want(admin=True), shared=_used("gpu-0", shares="3")),
    "a monitor of a full device": question(
        _COUNT, _want(admin=True), shared=_used("gpu-0", shares="4")
    ),
    "a monitor beside who has it alone": question(_COUNT, _want(admin=True), taken=("gpu-0",)),
    "monitors of one claim": question(
        _COUNT, claim("c", {"a": exactly("gpu", admin=True), "b": exactly("gpu", admin=True)})
    ),
    "tainted": question(_slice(_by_count("gpu-0", taints=[_TAINT])), _want()),
    "selected": question(_MIXED, _want(selectors=(_SHAREABLE,))),
}

_BY_AMOUNT: dict[str, Manifest] = {
    "all of it without a wish": question(_MEMORY, _want()),
    "nothing is left after that": question(_MEMORY, _want("a"), _memory("1Mi", "b")),
    "all of it where some is gone": question(_MEMORY, _want(), shared=_used("gpu-0", memory="1Mi")),
    "seven times ten": question(_MEMORY, *(_memory("10Gi", f"c{n}") for n in range(7))),
    "eight times ten": question(_MEMORY, *(_memory("10Gi", f"c{n}") for n in range(8))),
    "the eighth": question(_MEMORY, _memory("10Gi"), shared=_used("gpu-0", memory="70Gi")),
    "what is left": question(_MEMORY, _memory("8855Mi"), shared=_used("gpu-0", memory="70Gi")),
    "one more than is left": question(
        _MEMORY, _memory("8856Mi"), shared=_used("gpu-0", memory="70Gi")
    ),
    "rounded up": question(_MEMORY, _memory("1000000001")),
    "rounded up past what is left": question(
        _MEMORY, _memory("8854.5Mi"), _memory("1", "d"), shared=_used("gpu-0", memory="70Gi")
    ),
    "less than the least": question(_MEMORY, _memory("0")),
    "more than there is": question(_MEMORY, _memory("80536Mi")),
    "more than can be counted": question(_MEMORY, _memory("8Ei")),
    "more than can be counted in milli units": question(_MEMORY, _memory("10P")),
    "a capacity that is not there": question(_MEMORY, _want(capacity={"shares": "1"})),
    "the capacity by its full name": question(_MEMORY, _want(capacity={f"{DRIVER}/memory": "1Gi"})),
    "large first, small into the rest": question(
        _MEMORY, _memory("70Gi", "a"), _memory("8855Mi", "b"), _memory("1Mi", "d")
    ),
    "a wish picks the device that has as much": question(
        _slice(gpu("gpu-0", memory="40Gi"), gpu("gpu-1", memory="80Gi")), _memory("60Gi")
    ),
    "a wish on a device that one claim has alone": question(_MIXED, _memory("10Gi", "a")),
    "a wish beyond a device that one claim has alone": question(
        _MIXED, _memory("80Gi", "a"), _memory("80Gi", "b")
    ),
    "shared before, alone now": question(
        _slice(gpu("gpu-0")), _want(), shared=_used("gpu-0", memory="1Gi")
    ),
    "shared before without an amount, alone now": question(
        _slice(gpu("gpu-0")), _want(), shared=_used("gpu-0", shares="4")
    ),
    "first alternative that has room": question(
        _MEMORY,
        claim(
            "c",
            {
                "r": [
                    ("large", exactly("gpu", capacity={"memory": "20Gi"})),
                    ("small", exactly("gpu", capacity={"memory": "5Gi"})),
                ]
            },
        ),
        shared=_used("gpu-0", memory="70Gi"),
    ),
    "the first claim gives way": question(
        _slice(_by_memory("gpu-0", uuid="a"), _by_count("gpu-1", uuid="b")),
        _memory("1Gi", "a"),
        _want("b", selectors=(f"device.attributes['{DRIVER}'].uuid == 'a'",)),
    ),
    "all that have as much": question(
        _slice(_by_memory("gpu-0"), gpu("gpu-1", memory="1Gi")), _memory("2Gi", everything=True)
    ),
    "all where none has as much": question(_MEMORY, _memory("99Gi", everything=True)),
    "all, though one can't be counted": question(_MEMORY, _memory("8Ei", everything=True)),
    "all, of which one has too little left": question(
        _slice(_by_memory("gpu-0"), _by_memory("gpu-1")),
        _memory("2Gi", everything=True),
        shared=_used("gpu-1", memory="79Gi"),
    ),
    "all against a constraint and a capacity": question(
        _slice(_by_memory("gpu-0", uuid="a"), _by_memory("gpu-1", uuid="b")),
        claim(
            "c",
            {"r": exactly("gpu", everything=True, capacity={"memory": "2Gi"})},
            constraints=[{"matchAttribute": f"{DRIVER}/uuid"}],
        ),
        shared=_used("gpu-1", memory="79Gi"),
    ),
}

_POLICIES: dict[str, Manifest] = {
    "all for everybody": question(
        _slice(_for_all("gpu-0")), *(_want(f"c{n}") for n in range(6)), shared=_used("gpu-0")
    ),
    "without a default all is taken": question(_NO_DEFAULT, _want("a"), _want("b")),
    "without a default but with a wish": question(
        _NO_DEFAULT, _memory("40Gi", "a"), _memory("40Gi", "b")
    ),
    "no capacity at all": question(
        _slice(sharing({"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}})),
        _want("a"),
        _want("b"),
    ),
    "a listed value": _odd(memory="2Gi"),
    "between listed values": _odd(memory="2049Mi"),
    "beyond listed values": _odd(memory="6Gi"),
    "steps that do not start at 0": _odd(grains="18"),
    "a step itself": _odd(grains="17"),
    "no upper end but the capacity": _odd(grains="100"),
    "up to the last step": _odd(grains="94"),
    "fractions": _odd(half="600m"),
    "fractions below the least": _odd(half="1u"),
    "fractions that can't be counted": _odd(half="600001u"),
    "so large that only whole numbers are counted": _odd(huge="7Ei"),
    "whole numbers, rounded up": _odd(huge="1500m"),
    "too large for whole numbers": _odd(huge="8Ei"),
    "nothing of what has no policy": question(_ODD, _want()),
    "all of what has no default": question(_ODD, _want("a", capacity={"bare": "8", "free": "6"})),
}


def _on_counters(*parts: Manifest) -> list[Manifest]:
    sets = [counters("set", memory="80Gi", units="2")]
    return [
        resource_slice("s0", [], shared=sets, count=2),
        resource_slice("s1", parts, count=2),
    ]


def _part(name: str, units: str = "1", memory: str = "40Gi") -> Manifest:
    part = sharing(mig(name, "GPU-0"), memory=policy(memory, "0", min="0", max=memory, step="1Mi"))
    return consuming(part | {"attributes": {"type": {"string": "mig"}}}, "set", units=units)


_WHOLE = consuming(_by_count("whole"), "set", memory="80Gi", units="2")
_PARTS = _on_counters(_part("p0"), _part("p1"), _part("p2"), _WHOLE)
_OVER = _on_counters(_part("p0", units="3"), _part("p1"), _WHOLE)

_COUNTED_ONCE: dict[str, Manifest] = {
    "two shares of one partition": question(_PARTS, _want("a", "mig"), _want("b", "mig")),
    "partitions that are counted": question(_PARTS, _want("a", "mig", count=2)),
    "a third partition": question(_PARTS, _want("a", "mig", count=3)),
    "whole beside a partition": question(_PARTS, _want("a", "mig"), _want("b", "gpu")),
    "two shares of the whole": question(_PARTS, _want("a", "gpu"), _want("b", "gpu")),
    "whole, then a partition": question(_PARTS, _want("a", "gpu"), _want("b", "mig")),
    "another share of the whole": question(
        _PARTS, _want("a", "gpu"), shared=_used("whole", shares="1")
    ),
    "a partition beside a shared whole": question(
        _PARTS, _want("a", "mig"), shared=_used("whole", shares="1")
    ),
    "a partition beside a share without amounts": question(
        _PARTS, _want("a", "mig"), shared=_used("whole")
    ),
    "the whole beside a shared partition": question(
        _PARTS, _want("a", "gpu"), shared=_used("p1", memory="1Gi")
    ),
    "the other partition, then none": question(
        _PARTS,
        _want("a", "mig", count=2),
        _want("b", "mig", capacity={"memory": "41Gi"}),
        shared=_used("p1", memory="1Gi"),
    ),
    "a full partition, and the next": question(
        _PARTS, _want("a", "mig", capacity={"memory": "30Gi"}), shared=_used("p0", memory="20Gi")
    ),
    "more in use than there is": question(
        _OVER, _want("a", "mig"), shared=_used("p0", memory="1Gi")
    ),
    "another share of what is in use": question(
        _OVER, _want("a", "mig", count=2), shared=_used("p0", memory="1Gi")
    ),
    "a monitor of a partition": question(
        _PARTS, _want("a", "mig", admin=True), shared=_used("whole", shares="1")
    ),
    "a monitor of a shared partition": question(
        _PARTS, _want("a", "mig", admin=True), shared=_used("p0", memory="1Gi")
    ),
    "counters are given back, the share stays counted": question(
        _PARTS,
        claim("c", {"a": exactly("mig"), "b": exactly("mig")}),
        _want("d", "mig", count=2),
        _want("e", "gpu"),
    ),
    "backtracking over shares": question(
        _PARTS,
        _want("a", "mig", capacity={"memory": "30Gi"}),
        _want("b", "mig", capacity={"memory": "30Gi"}),
        _want("c", "mig", capacity={"memory": "10Gi"}),
        _want("d", "mig", capacity={"memory": "10Gi"}),
        _want("e", "mig", capacity={"memory": "1Mi"}),
    ),
}

SHARES: dict[str, Manifest] = {
    f"{group}, {name}": asked
    for group, questions in (
        ("by count", _BY_COUNT),
        ("by memory", _BY_AMOUNT),
        ("policies", _POLICIES),
        ("counters", _COUNTED_ONCE),
    )
    for name, asked in questions.items()
}
