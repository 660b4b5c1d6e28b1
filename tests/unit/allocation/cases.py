"""Questions of which the scheduler's own code has given the answers (see recorded/)."""

from typing import Any

from tests.unit.allocation.build import (
    CLASSES,
    DRIVER,
    IS_GPU,
    Manifest,
    claim,
    device_class,
    exactly,
    gpu,
    mig,
    opaque,
    question,
    resource_slice,
)
from tests.unit.allocation.counter_cases import COUNTERS
from tests.unit.allocation.share_cases import SHARES

_SICK = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
_TWO = resource_slice("s0", [gpu("gpu-0"), gpu("gpu-1", "A100", "40Gi", nvlink="a")])
_MIXED = resource_slice(
    "s0",
    [
        gpu("gpu-0", uuid="GPU-0"),
        mig("gpu-1-mig-a", "GPU-1"),
        mig("gpu-2-mig-a", "GPU-2"),
        mig("gpu-2-mig-b", "GPU-2"),
    ],
)
_MEMORY = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('60Gi')) >= 0"
_MODEL = f"device.attributes['{DRIVER}'].model == '%s'"
_NVLINK = f"device.attributes['{DRIVER}'].nvlink == 'a'"


def _one(name: str, *selectors: str, **more: Any) -> Manifest:
    return claim(name, {"gpu": exactly("gpu", *selectors, **more)})


def _match(attribute: str, *requests: str) -> Manifest:
    constraint: Manifest = {"matchAttribute": f"{DRIVER}/{attribute}"}
    return constraint | {"requests": list(requests)} if requests else constraint


def _many(count: int) -> list[Manifest]:
    return [resource_slice("s0", [gpu(f"gpu-{index:02}") for index in range(count)])]


SELECTION: dict[str, Manifest] = {
    "first device of the class": question([_TWO], _one("c")),
    "partition by class": question([_MIXED], claim("c", {"m": exactly("mig")})),
    "two of them": question([_TWO], _one("c", count=2)),
    "three of two": question([_TWO], _one("c", count=3)),
    "by memory": question([_TWO], _one("c", _MEMORY)),
    "by model": question([_TWO], _one("c", _MODEL % "A100")),
    "by a model that is not there": question([_TWO], _one("c", _MODEL % "B200")),
    "two selectors that no device passes": question([_TWO], _one("c", _MEMORY, _MODEL % "A100")),
    "missing key on a device that is reached": question([_TWO], _one("c", _NVLINK)),
    "missing key behind the device that fits": question(
        [resource_slice("s0", [gpu("gpu-0", nvlink="a"), gpu("gpu-1")])], _one("c", _NVLINK)
    ),
    "missing key on a taken device": question([_TWO], _one("c", _NVLINK), taken=("gpu-0",)),
    "missing key guarded by has": question(
        [_TWO], _one("c", f"has(device.attributes['{DRIVER}'].nvlink) && {_NVLINK}")
    ),
    "class that reads a missing key": question(
        [_TWO], _one("c"), classes=[device_class("gpu", _NVLINK)]
    ),
    "selector that does not compile": question([_TWO], _one("c", "device.nope == 1")),
    "selector that is not a condition": question([_TWO], _one("c", "device.driver")),
    "class without selectors": question([_MIXED], _one("c"), classes=[device_class("gpu")]),
    "unknown class": question([_TWO], claim("c", {"g": exactly("nope")})),
    "nothing published": question([], _one("c")),
}

COUNTS: dict[str, Manifest] = {
    "all of a class": question([_MIXED], claim("c", {"m": exactly("mig", everything=True)})),
    "all where there is none": question([_TWO], claim("c", {"m": exactly("mig", everything=True)})),
    "all where one is taken": question(
        [_MIXED], claim("c", {"m": exactly("mig", everything=True)}), taken=("gpu-2-mig-b",)
    ),
    "all against a constraint": question(
        [_MIXED],
        claim("c", {"m": exactly("mig", everything=True)}, constraints=[_match("parentUUID")]),
    ),
    "32 devices": question(_many(32), _one("c", count=32)),
    "33 devices": question(_many(40), _one("c", count=33)),
    "all of 40": question(_many(40), _one("c", everything=True)),
    "second alternative under the limit": question(
        _many(40),
        claim(
            "c",
            {
                "a": exactly("gpu", count=20),
                "b": [("many", exactly("gpu", count=20)), ("few", exactly("gpu", count=12))],
            },
        ),
    ),
}

REQUESTS: dict[str, Manifest] = {
    "two requests": question([_MIXED], claim("c", {"g": exactly("gpu"), "m": exactly("mig")})),
    "requests compete": question(
        [_TWO], claim("c", {"any": exactly("gpu"), "big": exactly("gpu", _MEMORY)})
    ),
    "first alternative": question(
        [_TWO],
        claim("c", {"g": [("big", exactly("gpu", _MEMORY)), ("any", exactly("gpu"))]}),
    ),
    "second alternative": question(
        [_TWO],
        claim("c", {"g": [("huge", exactly("gpu", _MODEL % "B200")), ("any", exactly("gpu"))]}),
    ),
    "alternatives and what follows": question(
        [_TWO],
        claim(
            "c",
            {
                "g": [("both", exactly("gpu", count=2)), ("any", exactly("gpu"))],
                "one": exactly("gpu"),
            },
        ),
    ),
    "no alternative": question(
        [_TWO],
        claim("c", {"g": [("b", exactly("gpu", _MODEL % "B200")), ("m", exactly("mig"))]}),
    ),
    "admin access to what is taken": question(
        [_TWO], _one("c", admin=True, everything=True), taken=("gpu-0", "gpu-1")
    ),
    "admin access beside a device": question(
        [_TWO],
        claim("c", {"own": exactly("gpu"), "watch": exactly("gpu", admin=True)}),
    ),
    "admin access before a device": question(
        [_TWO],
        claim("c", {"watch": exactly("gpu", admin=True), "own": exactly("gpu", count=2)}),
    ),
    "admin access in another claim": question(
        [_TWO], _one("a", count=2), _one("b", admin=True, everything=True)
    ),
}

CONSTRAINTS: dict[str, Manifest] = {
    "same parent": question(
        [_MIXED],
        claim("c", {"a": exactly("mig"), "b": exactly("mig")}, constraints=[_match("parentUUID")]),
    ),
    "same parent for three": question(
        [_MIXED],
        claim("c", {"a": exactly("mig", count=3)}, constraints=[_match("parentUUID")]),
    ),
    "same attribute that some lack": question(
        [_TWO], claim("c", {"a": exactly("gpu")}, constraints=[_match("nvlink")])
    ),
    "constraint on other requests": question(
        [_MIXED],
        claim(
            "c",
            {"g": exactly("gpu"), "a": exactly("mig"), "b": exactly("mig")},
            constraints=[_match("parentUUID", "a", "b")],
        ),
    ),
    "constraint on a subrequest": question(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig"), "b": [("x", exactly("mig")), ("y", exactly("gpu"))]},
            constraints=[_match("parentUUID", "a", "b/x")],
        ),
    ),
    "true is not 1": question(
        [resource_slice("s0", [gpu("gpu-0", mark=True), gpu("gpu-1", mark=1)])],
        claim("c", {"a": exactly("gpu", count=2)}, constraints=[_match("mark")]),
    ),
    "same version": question(
        [
            resource_slice(
                "s0",
                [gpu("gpu-0", v="v1.0.0"), gpu("gpu-1", v="v2.0.0"), gpu("gpu-2", v="v2.0.0")],
            )
        ],
        claim("c", {"a": exactly("gpu", count=2)}, constraints=[_match("v")]),
    ),
    "distinct parents": question(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig", count=2)},
            constraints=[{"distinctAttribute": f"{DRIVER}/parentUUID"}],
        ),
    ),
    "too many distinct parents": question(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig", count=3)},
            constraints=[{"distinctAttribute": f"{DRIVER}/parentUUID"}],
        ),
    ),
}

CLAIMS: dict[str, Manifest] = {
    "two claims": question([_TWO], _one("a"), _one("b")),
    "three claims for two": question([_TWO], _one("a"), _one("b"), _one("c")),
    "first claim makes room": question([_TWO], _one("a"), _one("b", _MEMORY)),
    "taken by somebody else": question([_TWO], _one("a"), taken=("gpu-0",)),
    "all taken": question([_TWO], _one("a"), taken=("gpu-0", "gpu-1")),
    "configs of class and claim": question(
        [_MIXED],
        claim(
            "c",
            {"g": exactly("gpu"), "m": exactly("mig"), "n": exactly("mig")},
            config=[opaque("all"), opaque("one", "g"), opaque("each", "g", "m", "n")],
        ),
        classes=[
            device_class("gpu", IS_GPU, config=[opaque("class-gpu")]),
            device_class(
                "mig",
                CLASSES[1]["spec"]["selectors"][0]["cel"]["expression"],
                config=[opaque("class-mig"), opaque("class-mig-2")],
            ),
        ],
    ),
    "configs of subrequests": question(
        [_TWO],
        claim(
            "c",
            {
                "g": [("huge", exactly("gpu", _MODEL % "B200")), ("any", exactly("gpu"))],
                "h": exactly("gpu"),
            },
            config=[
                opaque("huge", "g/huge"),
                opaque("any", "g/any"),
                opaque("main", "g"),
                opaque("both", "g/any", "h"),
            ],
        ),
        classes=[device_class("gpu", IS_GPU, config=[opaque("class")])],
    ),
}

POOLS: dict[str, Manifest] = {
    "slices by name": question(
        [
            resource_slice("s1", [gpu("gpu-0")], count=2),
            resource_slice("s0", [gpu("gpu-9")], count=2),
        ],
        _one("c"),
    ),
    "pools by driver and name": question(
        [
            resource_slice("a", [gpu("gpu-0")], pool="z"),
            resource_slice("b", [gpu("gpu-1")], pool="m"),
            resource_slice("c", [gpu("gpu-2")], pool="zz", driver="a.example.com"),
        ],
        _one("c"),
        classes=[device_class("gpu")],
    ),
    "older generation": question(
        [
            resource_slice("s0", [gpu("gpu-0")], generation=1),
            resource_slice("s1", [gpu("gpu-1")], generation=2),
        ],
        _one("c"),
    ),
    "incomplete pool": question([resource_slice("s0", [gpu("gpu-0")], count=2)], _one("c")),
    "incomplete pool beside a good one": question(
        [
            resource_slice("s0", [gpu("gpu-0")], count=2, pool="a"),
            resource_slice("s1", [gpu("gpu-1")], pool="b"),
        ],
        _one("c"),
    ),
    "all from an incomplete pool": question(
        [resource_slice("s0", [gpu("gpu-0")], count=2)], _one("c", everything=True)
    ),
    "duplicate device": question(
        [
            resource_slice("s0", [gpu("gpu-0")], count=2),
            resource_slice("s1", [gpu("gpu-0")], count=2),
        ],
        _one("c"),
    ),
    "slices of another node": question(
        [resource_slice("s0", [gpu("gpu-0")], node="node-b", pool="node-b"), _TWO], _one("c")
    ),
    "part of the pool on another node": question(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
        ],
        _one("c"),
    ),
    "newer generation on another node only": question(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", generation=2, count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
        ],
        _one("c"),
    ),
    "all while a newer generation is on another node only": question(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", generation=2, count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
            resource_slice("s2", [gpu("gpu-2")], pool="other"),
        ],
        _one("c", everything=True),
    ),
    "devices for all nodes": question([resource_slice("s0", [gpu("gpu-0")], node=None)], _one("c")),
    "attributes with the driver's domain": question(
        [
            resource_slice(
                "s0",
                [
                    {
                        "name": "gpu-0",
                        "attributes": {
                            f"{DRIVER}/type": {"string": "gpu"},
                            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
                        },
                    }
                ],
            )
        ],
        claim(
            "c",
            {"a": exactly("gpu")},
            constraints=[_match("type"), {"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
        ),
    ),
}


def _tainted(effect: str, *tolerations: Manifest) -> Manifest:
    devices = [gpu("gpu-0", taints=[_SICK | {"effect": effect}])]
    return question([resource_slice("s0", devices)], _one("c", tolerations=tolerations))


TAINTS: dict[str, Manifest] = {
    "NoSchedule": _tainted("NoSchedule"),
    "NoExecute": _tainted("NoExecute"),
    "None": _tainted("None"),
    "tolerated by key": _tainted("NoSchedule", {"key": _SICK["key"], "operator": "Exists"}),
    "tolerated by value": _tainted(
        "NoSchedule", {"key": _SICK["key"], "operator": "Equal", "value": "79"}
    ),
    "not tolerated by another value": _tainted(
        "NoSchedule", {"key": _SICK["key"], "operator": "Equal", "value": "48"}
    ),
    "not tolerated by another effect": _tainted(
        "NoSchedule", {"key": _SICK["key"], "operator": "Exists", "effect": "NoExecute"}
    ),
    "everything tolerated": _tainted("NoExecute", {"operator": "Exists"}),
}

CASES: dict[str, Manifest] = {
    f"{group}: {name}": asked
    for group, questions in (
        ("selection", SELECTION),
        ("counts", COUNTS),
        ("requests", REQUESTS),
        ("constraints", CONSTRAINTS),
        ("claims", CLAIMS),
        ("pools", POOLS),
        ("taints", TAINTS),
        ("counters", COUNTERS),
        ("shares", SHARES),
    )
    for name, asked in questions.items()
}
