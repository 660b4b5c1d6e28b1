"""Questions about devices that share counters; the scheduler's own code has answered them too."""

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
    question,
    resource_slice,
)

SICK = {"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}
BIG = f"device.attributes['{DRIVER}'].profile == '2g.20gb'"

FIRST = f"device.attributes['{DRIVER}'].uuid == 'GPU-0'"


def _parts(minor: int) -> list[Manifest]:
    """Build two small partitions, a big one that overlaps both, and the whole of a small GPU."""
    name, uuid = f"gpu-{minor}", f"GPU-{minor}"
    slots = [("1-0", "1g.10gb", (0,)), ("1-1", "1g.10gb", (1,)), ("2-0", "2g.20gb", (0, 1))]
    made = [
        consuming(
            mig(f"{name}-mig-{slot}", uuid, profile),
            f"{name}-set",
            memory=f"{10 * len(places)}Gi",
            **{f"slice-{place}": "1" for place in places},
        )
        for slot, profile, places in slots
    ]
    everything = {"memory": "20480Mi", "slice-0": "1", "slice-1": "1"}
    return [*made, consuming(gpu(name, uuid=uuid), f"{name}-set", **everything)]


def _set(minor: int, **more: str) -> Manifest:
    amounts = {"memory": "20Gi", "slice-0": "1", "slice-1": "1"} | more
    return counters(f"gpu-{minor}-set", **amounts)


def _published(*gpus: list[Manifest], shared: list[Manifest] | None = None) -> list[Manifest]:
    """Build slices as this driver lays them out: counters, partitions, whole GPUs backwards."""
    count = len(gpus) + 2
    sets = [_set(minor) for minor in range(len(gpus))] if shared is None else shared
    whole = [parts[-1] for parts in reversed(gpus)]
    devices = [parts[:-1] for parts in gpus]
    return [
        resource_slice("s0", [], shared=sets, count=count),
        *(resource_slice(f"s{i + 1}", part, count=count) for i, part in enumerate(devices)),
        resource_slice(f"s{count - 1}", whole, count=count),
    ]


ONE = _published(_parts(0))
TWO = _published(_parts(0), _parts(1))


def _want(name: str, class_name: str, *selectors: str, **more: Any) -> Manifest:
    return claim(name, {"r": exactly(class_name, *selectors, **more)})


def _invalid(device: Manifest, *shared: Manifest) -> Manifest:
    """Ask for a plain device of a pool in which something else is wrong."""
    slices = [
        resource_slice("s0", [], shared=shared, count=2),
        resource_slice("s1", [gpu("plain"), device], count=2),
    ]
    return question(slices, _want("c", "gpu"))


def _in_pool(name: str, piece: Manifest) -> Manifest:
    spec = piece["spec"]
    return piece | {"spec": spec | {"pool": spec["pool"] | {"name": name}}}


_SAME_PARENT = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
_NO_TAINT = _parts(0)
_TAINTED = [_NO_TAINT[0] | {"taints": [SICK]}, *_NO_TAINT[1:]]

COUNTERS: dict[str, Manifest] = {
    "a partition": question(ONE, _want("c", "mig")),
    "two partitions": question(ONE, _want("c", "mig", count=2)),
    "three partitions of two": question(ONE, _want("c", "mig", count=3)),
    "all partitions though some overlap": question(ONE, _want("c", "mig", everything=True)),
    "big after small": question(ONE, _want("c", "mig", BIG), taken=("gpu-0-mig-1-1",)),
    "small after big": question(ONE, _want("c", "mig"), taken=("gpu-0-mig-2-0",)),
    "small beside small": question(ONE, _want("c", "mig"), taken=("gpu-0-mig-1-0",)),
    "whole after small": question(ONE, _want("c", "gpu"), taken=("gpu-0-mig-1-0",)),
    "small after whole": question(ONE, _want("c", "mig"), taken=("gpu-0",)),
    "whole from the untouched": question(TWO, _want("c", "gpu"), taken=("gpu-1-mig-1-0",)),
    "whole from the last": question(TWO, _want("c", "gpu")),
    "partition and whole": question(
        TWO, claim("c", {"m": exactly("mig"), "g": exactly("gpu")}), _want("d", "mig")
    ),
    "partition and two whole": question(
        TWO, claim("c", {"m": exactly("mig"), "g": exactly("gpu", count=2)})
    ),
    "claims share what is left": question(ONE, _want("a", "mig"), _want("b", "mig")),
    "one claim too many": question(ONE, *(_want(name, "mig") for name in "abc")),
    "nobody can give way": question(TWO, _want("a", "mig"), _want("b", "mig", BIG, count=2)),
    "the first gives way": question(TWO, _want("a", "mig"), _want("b", "gpu", FIRST)),
    "small ones make room for big": question(
        TWO, claim("c", {"s": exactly("mig", count=2), "b": exactly("mig", BIG)})
    ),
    "first alternative that counters allow": question(
        ONE,
        claim("c", {"r": [("whole", exactly("gpu")), ("part", exactly("mig"))]}),
        taken=("gpu-0-mig-1-0",),
    ),
    "two of one parent": question(
        TWO,
        claim("c", {"r": exactly("mig", count=2)}, constraints=_SAME_PARENT),
        taken=("gpu-0-mig-1-1",),
    ),
    "a constraint gives counters back": question(
        TWO,
        claim("c", {"a": exactly("mig", BIG), "b": exactly("mig")}, constraints=_SAME_PARENT),
    ),
    "a taint gives counters back": question(_published(_TAINTED), _want("c", "mig", count=2)),
    "admin access to what is free": question(
        ONE, _want("a", "gpu", admin=True, everything=True), _want("b", "mig")
    ),
    "admin access to what is in use": question(
        ONE, _want("a", "gpu", admin=True), taken=("gpu-0",)
    ),
    "admin access to another partition": question(
        ONE, _want("a", "mig", admin=True), taken=("gpu-0-mig-1-1",)
    ),
    "counters sorted behind the devices": question(
        [
            resource_slice("s0", _parts(0), count=2),
            resource_slice("s1", [], shared=[_set(0)], count=2),
        ],
        _want("c", "mig", count=2),
    ),
    "less than the device takes": question(
        _published(_parts(0), shared=[_set(0, memory="10Gi")]), _want("c", "mig", BIG)
    ),
    "exactly what two take": question(
        _published(_parts(0), shared=[_set(0, memory="21474836480")]), _want("c", "mig", count=2)
    ),
    "a counter of nothing": question(
        [
            resource_slice("s0", [], shared=[counters("a", x="0")], count=2),
            resource_slice(
                "s1",
                [consuming(gpu("some"), "a", x="1m"), consuming(gpu("none"), "a", x="0")],
                count=2,
            ),
        ],
        _want("c", "gpu"),
    ),
    "a device of two sets": question(
        [
            resource_slice("s0", [], shared=[counters("a", x="1"), counters("b", x="1")], count=2),
            resource_slice(
                "s1",
                [
                    consuming(gpu("a"), "a", x="1"),
                    consuming(consuming(gpu("both"), "a", x="1"), "b", x="1"),
                    consuming(gpu("b"), "b", x="1"),
                ],
                count=2,
            ),
        ],
        _want("c", "gpu", count=2),
    ),
    "what is overdrawn holds back the pool": question(
        TWO, _want("c", "mig"), taken=("gpu-0-mig-1-0", "gpu-0-mig-2-0")
    ),
    "what is overdrawn leaves plain devices": question(
        [
            resource_slice("s0", [], shared=[_set(0)], count=2),
            resource_slice("s1", [*_parts(0), gpu("plain")], count=2),
        ],
        _want("c", "gpu"),
        taken=("gpu-0-mig-1-0", "gpu-0-mig-2-0"),
    ),
    "what is overdrawn leaves other pools": question(
        [*ONE, *(_in_pool("z", piece) for piece in ONE)],
        _want("c", "mig"),
        taken=("gpu-0-mig-1-0", "gpu-0-mig-2-0"),
    ),
    "a device for another node takes its part": question(
        [
            resource_slice("s0", [], shared=[_set(0)], count=3),
            resource_slice("s1", _parts(0)[:1], count=3),
            resource_slice("s2", _parts(0)[2:3], node="node-b", count=3),
        ],
        _want("c", "mig"),
        taken=("gpu-0-mig-2-0",),
    ),
    "counters published for another node": question(
        [
            resource_slice("s0", [], shared=[_set(0)], node="node-b", count=2),
            resource_slice("s1", _parts(0), count=2),
        ],
        _want("c", "mig"),
    ),
    "a set that is missing": _invalid(consuming(gpu("g"), "gone", x="1"), counters("a", x="1")),
    "a counter that is missing": _invalid(consuming(gpu("g"), "a", y="1"), counters("a", x="1")),
    "a set that is there twice": _invalid(gpu("g"), counters("a", x="1"), counters("a", x="1")),
    "a set that is missing elsewhere": question(
        [
            resource_slice("s0", [gpu("plain")], count=2),
            resource_slice("s1", _parts(0), node="node-b", count=2),
        ],
        _want("c", "gpu"),
    ),
    "all while counters contradict": question(
        [resource_slice("s0", _parts(0))], _want("c", "gpu", everything=True)
    ),
}
