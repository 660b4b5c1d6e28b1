"""Questions of which the scheduler's own code has given the answers (see recorded/)."""

from typing import Any

from tests.unit.allocation.build import (
    CLASSES,
    DRIVER,
    IS_GPU,
    NODE,
    Manifest,
    claim,
    device_class,
    exactly,
    gpu,
    mig,
    opaque,
    resource_slice,
)

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


def _ask(
    slices: list[Manifest],
    *claims: Manifest,
    classes: list[Manifest] | None = None,
    taken: tuple[str, ...] = (),
) -> Manifest:
    return {
        "node": NODE,
        "slices": slices,
        "classes": CLASSES if classes is None else classes,
        "claims": list(claims),
        "taken": [[DRIVER, NODE, device] for device in taken],
    }


def _one(name: str, *selectors: str, **more: Any) -> Manifest:
    return claim(name, {"gpu": exactly("gpu", *selectors, **more)})


def _match(attribute: str, *requests: str) -> Manifest:
    constraint: Manifest = {"matchAttribute": f"{DRIVER}/{attribute}"}
    return constraint | {"requests": list(requests)} if requests else constraint


def _many(count: int) -> list[Manifest]:
    return [resource_slice("s0", [gpu(f"gpu-{index:02}") for index in range(count)])]


SELECTION: dict[str, Manifest] = {
    "first device of the class": _ask([_TWO], _one("c")),
    "partition by class": _ask([_MIXED], claim("c", {"m": exactly("mig")})),
    "two of them": _ask([_TWO], _one("c", count=2)),
    "three of two": _ask([_TWO], _one("c", count=3)),
    "by memory": _ask([_TWO], _one("c", _MEMORY)),
    "by model": _ask([_TWO], _one("c", _MODEL % "A100")),
    "by a model that is not there": _ask([_TWO], _one("c", _MODEL % "B200")),
    "two selectors that no device passes": _ask([_TWO], _one("c", _MEMORY, _MODEL % "A100")),
    "missing key on a device that is reached": _ask([_TWO], _one("c", _NVLINK)),
    "missing key behind the device that fits": _ask(
        [resource_slice("s0", [gpu("gpu-0", nvlink="a"), gpu("gpu-1")])], _one("c", _NVLINK)
    ),
    "missing key on a taken device": _ask([_TWO], _one("c", _NVLINK), taken=("gpu-0",)),
    "missing key guarded by has": _ask(
        [_TWO], _one("c", f"has(device.attributes['{DRIVER}'].nvlink) && {_NVLINK}")
    ),
    "class that reads a missing key": _ask(
        [_TWO], _one("c"), classes=[device_class("gpu", _NVLINK)]
    ),
    "selector that does not compile": _ask([_TWO], _one("c", "device.nope == 1")),
    "selector that is not a condition": _ask([_TWO], _one("c", "device.driver")),
    "class without selectors": _ask([_MIXED], _one("c"), classes=[device_class("gpu")]),
    "unknown class": _ask([_TWO], claim("c", {"g": exactly("nope")})),
    "nothing published": _ask([], _one("c")),
}

COUNTS: dict[str, Manifest] = {
    "all of a class": _ask([_MIXED], claim("c", {"m": exactly("mig", everything=True)})),
    "all where there is none": _ask([_TWO], claim("c", {"m": exactly("mig", everything=True)})),
    "all where one is taken": _ask(
        [_MIXED], claim("c", {"m": exactly("mig", everything=True)}), taken=("gpu-2-mig-b",)
    ),
    "all against a constraint": _ask(
        [_MIXED],
        claim("c", {"m": exactly("mig", everything=True)}, constraints=[_match("parentUUID")]),
    ),
    "32 devices": _ask(_many(32), _one("c", count=32)),
    "33 devices": _ask(_many(40), _one("c", count=33)),
    "all of 40": _ask(_many(40), _one("c", everything=True)),
    "second alternative under the limit": _ask(
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
    "two requests": _ask([_MIXED], claim("c", {"g": exactly("gpu"), "m": exactly("mig")})),
    "requests compete": _ask(
        [_TWO], claim("c", {"any": exactly("gpu"), "big": exactly("gpu", _MEMORY)})
    ),
    "first alternative": _ask(
        [_TWO],
        claim("c", {"g": [("big", exactly("gpu", _MEMORY)), ("any", exactly("gpu"))]}),
    ),
    "second alternative": _ask(
        [_TWO],
        claim("c", {"g": [("huge", exactly("gpu", _MODEL % "B200")), ("any", exactly("gpu"))]}),
    ),
    "alternatives and what follows": _ask(
        [_TWO],
        claim(
            "c",
            {
                "g": [("both", exactly("gpu", count=2)), ("any", exactly("gpu"))],
                "one": exactly("gpu"),
            },
        ),
    ),
    "no alternative": _ask(
        [_TWO],
        claim("c", {"g": [("b", exactly("gpu", _MODEL % "B200")), ("m", exactly("mig"))]}),
    ),
    "admin access to what is taken": _ask(
        [_TWO], _one("c", admin=True, everything=True), taken=("gpu-0", "gpu-1")
    ),
    "admin access beside a device": _ask(
        [_TWO],
        claim("c", {"own": exactly("gpu"), "watch": exactly("gpu", admin=True)}),
    ),
    "admin access before a device": _ask(
        [_TWO],
        claim("c", {"watch": exactly("gpu", admin=True), "own": exactly("gpu", count=2)}),
    ),
    "admin access in another claim": _ask(
        [_TWO], _one("a", count=2), _one("b", admin=True, everything=True)
    ),
}

CONSTRAINTS: dict[str, Manifest] = {
    "same parent": _ask(
        [_MIXED],
        claim("c", {"a": exactly("mig"), "b": exactly("mig")}, constraints=[_match("parentUUID")]),
    ),
    "same parent for three": _ask(
        [_MIXED],
        claim("c", {"a": exactly("mig", count=3)}, constraints=[_match("parentUUID")]),
    ),
    "same attribute that some lack": _ask(
        [_TWO], claim("c", {"a": exactly("gpu")}, constraints=[_match("nvlink")])
    ),
    "constraint on other requests": _ask(
        [_MIXED],
        claim(
            "c",
            {"g": exactly("gpu"), "a": exactly("mig"), "b": exactly("mig")},
            constraints=[_match("parentUUID", "a", "b")],
        ),
    ),
    "constraint on a subrequest": _ask(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig"), "b": [("x", exactly("mig")), ("y", exactly("gpu"))]},
            constraints=[_match("parentUUID", "a", "b/x")],
        ),
    ),
    "true is not 1": _ask(
        [resource_slice("s0", [gpu("gpu-0", mark=True), gpu("gpu-1", mark=1)])],
        claim("c", {"a": exactly("gpu", count=2)}, constraints=[_match("mark")]),
    ),
    "same version": _ask(
        [
            resource_slice(
                "s0",
                [gpu("gpu-0", v="v1.0.0"), gpu("gpu-1", v="v2.0.0"), gpu("gpu-2", v="v2.0.0")],
            )
        ],
        claim("c", {"a": exactly("gpu", count=2)}, constraints=[_match("v")]),
    ),
    "distinct parents": _ask(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig", count=2)},
            constraints=[{"distinctAttribute": f"{DRIVER}/parentUUID"}],
        ),
    ),
    "too many distinct parents": _ask(
        [_MIXED],
        claim(
            "c",
            {"a": exactly("mig", count=3)},
            constraints=[{"distinctAttribute": f"{DRIVER}/parentUUID"}],
        ),
    ),
}

CLAIMS: dict[str, Manifest] = {
    "two claims": _ask([_TWO], _one("a"), _one("b")),
    "three claims for two": _ask([_TWO], _one("a"), _one("b"), _one("c")),
    "first claim makes room": _ask([_TWO], _one("a"), _one("b", _MEMORY)),
    "taken by somebody else": _ask([_TWO], _one("a"), taken=("gpu-0",)),
    "all taken": _ask([_TWO], _one("a"), taken=("gpu-0", "gpu-1")),
    "configs of class and claim": _ask(
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
    "configs of subrequests": _ask(
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
    "slices by name": _ask(
        [
            resource_slice("s1", [gpu("gpu-0")], count=2),
            resource_slice("s0", [gpu("gpu-9")], count=2),
        ],
        _one("c"),
    ),
    "pools by driver and name": _ask(
        [
            resource_slice("a", [gpu("gpu-0")], pool="z"),
            resource_slice("b", [gpu("gpu-1")], pool="m"),
            resource_slice("c", [gpu("gpu-2")], pool="zz", driver="a.example.com"),
        ],
        _one("c"),
        classes=[device_class("gpu")],
    ),
    "older generation": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], generation=1),
            resource_slice("s1", [gpu("gpu-1")], generation=2),
        ],
        _one("c"),
    ),
    "incomplete pool": _ask([resource_slice("s0", [gpu("gpu-0")], count=2)], _one("c")),
    "incomplete pool beside a good one": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], count=2, pool="a"),
            resource_slice("s1", [gpu("gpu-1")], pool="b"),
        ],
        _one("c"),
    ),
    "all from an incomplete pool": _ask(
        [resource_slice("s0", [gpu("gpu-0")], count=2)], _one("c", everything=True)
    ),
    "duplicate device": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], count=2),
            resource_slice("s1", [gpu("gpu-0")], count=2),
        ],
        _one("c"),
    ),
    "slices of another node": _ask(
        [resource_slice("s0", [gpu("gpu-0")], node="node-b", pool="node-b"), _TWO], _one("c")
    ),
    "part of the pool on another node": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
        ],
        _one("c"),
    ),
    "newer generation on another node only": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", generation=2, count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
        ],
        _one("c"),
    ),
    "all while a newer generation is on another node only": _ask(
        [
            resource_slice("s0", [gpu("gpu-0")], node="node-b", generation=2, count=2),
            resource_slice("s1", [gpu("gpu-1")], count=2),
            resource_slice("s2", [gpu("gpu-2")], pool="other"),
        ],
        _one("c", everything=True),
    ),
    "devices for all nodes": _ask([resource_slice("s0", [gpu("gpu-0")], node=None)], _one("c")),
    "attributes with the driver's domain": _ask(
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
    return _ask([resource_slice("s0", devices)], _one("c", tolerations=tolerations))


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
    f"{group}: {name}": question
    for group, questions in (
        ("selection", SELECTION),
        ("counts", COUNTS),
        ("requests", REQUESTS),
        ("constraints", CONSTRAINTS),
        ("claims", CLAIMS),
        ("pools", POOLS),
        ("taints", TAINTS),
    )
    for name, question in questions.items()
}
