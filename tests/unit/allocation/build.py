"""Short ways to write the objects of `resource.k8s.io/v1` that these tests feed in."""

from collections.abc import Iterable, Mapping
from typing import Any

DRIVER = "gpu.nvidia.com"
NODE = "node-a"
IS_GPU = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
IS_MIG = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"

Manifest = dict[str, Any]


def attribute(value: bool | int | str) -> Manifest:  # noqa: FBT001 # one value of any type
    """Build a published attribute; text that begins with `v` and a digit is a version."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if value[:1] == "v" and value[1:2].isdigit():
        return {"version": value[1:]}
    return {"string": value}


def device(
    name: str,
    *,
    memory: str | None = None,
    taints: Iterable[Mapping[str, str]] = (),
    **attributes: bool | int | str,
) -> Manifest:
    """Build a device."""
    built: Manifest = {
        "name": name,
        "attributes": {key: attribute(v) for key, v in attributes.items()},
    }
    if memory:
        built["capacity"] = {"memory": {"value": memory}}
    if taints:
        built["taints"] = [dict(taint) for taint in taints]
    return built


def gpu(name: str, model: str = "H100", memory: str = "80Gi", **more: Any) -> Manifest:
    """Build a whole GPU."""
    return device(name, type="gpu", model=model, memory=memory, **more)


def mig(name: str, parent: str, profile: str = "1g.10gb", **more: Any) -> Manifest:
    """Build a MIG partition."""
    return device(name, type="mig", parentUUID=parent, profile=profile, memory="10Gi", **more)


def counters(name: str, **amounts: str) -> Manifest:
    """Build a counter set."""
    return {"name": name, "counters": {key: {"value": text} for key, text in amounts.items()}}


def consuming(device: Manifest, name: str, **amounts: str) -> Manifest:
    """Let a device also consume from a counter set."""
    use = {"counterSet": name, "counters": counters(name, **amounts)["counters"]}
    return device | {"consumesCounters": [*device.get("consumesCounters", ()), use]}


def sharing(device: Manifest, **capacity: Manifest) -> Manifest:
    """Let several claims have a device; `capacity` is what `policy` makes, by name."""
    return device | {
        "allowMultipleAllocations": True,
        "capacity": {**device.get("capacity", {}), **capacity},
    }


def policy(value: str, default: str | None = None, **rest: Any) -> Manifest:
    """Build a capacity with a request policy: `values`, or `min`, `max` and `step`."""
    rule: Manifest = {} if default is None else {"default": default}
    if values := rest.pop("values", None):
        rule["validValues"] = values
    if rest:
        rule["validRange"] = rest
    return {"value": value, "requestPolicy": rule}


def resource_slice(
    name: str,
    devices: Iterable[Manifest],
    *,
    shared: Iterable[Manifest] = (),
    node: str | None = NODE,
    pool: str = NODE,
    driver: str = DRIVER,
    generation: int = 1,
    count: int = 1,
) -> Manifest:
    """Build a ResourceSlice; without node it is for all nodes."""
    spec: Manifest = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        "devices": list(devices),
    }
    if shared:
        spec["sharedCounters"] = list(shared)
    spec = {key: value for key, value in spec.items() if key != "devices" or value or not shared}
    spec |= {"allNodes": True} if node is None else {"nodeName": node}
    return {"metadata": {"name": name}, "spec": spec}


def device_class(
    name: str,
    *selectors: str,
    config: Iterable[Manifest] = (),
    extended: str = "",
    created: str = "",
) -> Manifest:
    """Build a DeviceClass."""
    spec: Manifest = {"selectors": [{"cel": {"expression": text}} for text in selectors]}
    if config:
        spec["config"] = list(config)
    if extended:
        spec["extendedResourceName"] = extended
    metadata: Manifest = {"name": name}
    if created:
        metadata["creationTimestamp"] = created
    return {"metadata": metadata, "spec": spec}


CLASSES = [device_class("gpu", IS_GPU), device_class("mig", IS_MIG)]


def exactly(
    class_name: str,
    *selectors: str,
    count: int = 1,
    everything: bool = False,
    admin: bool = False,
    tolerations: Iterable[Mapping[str, str]] = (),
    capacity: Mapping[str, str] | None = None,
) -> Manifest:
    """Build what a request or a subrequest says, without its name."""
    body: Manifest = {"deviceClassName": class_name}
    if everything:
        body["allocationMode"] = "All"
    else:
        body |= {"allocationMode": "ExactCount", "count": count}
    if selectors:
        body["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    if admin:
        body["adminAccess"] = True
    if capacity is not None:
        body["capacity"] = {"requests": dict(capacity)}
    if tolerations:
        body["tolerations"] = [dict(toleration) for toleration in tolerations]
    return body


def opaque(word: str, *requests: str) -> Manifest:
    """Build a config entry that can be told from others by its word."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "word": word}
    entry: Manifest = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return {"requests": list(requests)} | entry if requests else entry


def claim(
    name: str,
    requests: Mapping[str, Manifest | list[tuple[str, Manifest]]],
    *,
    constraints: Iterable[Manifest] = (),
    config: Iterable[Manifest] = (),
) -> Manifest:
    """Build a ResourceClaim; a list of named bodies makes a request with `firstAvailable`."""
    entries: list[Manifest] = []
    for request, body in requests.items():
        if isinstance(body, list):
            options = [{"name": option, **content} for option, content in body]
            entries.append({"name": request, "firstAvailable": options})
        else:
            entries.append({"name": request, "exactly": body})
    devices: Manifest = {"requests": entries}
    if constraints:
        devices["constraints"] = list(constraints)
    if config:
        devices["config"] = list(config)
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"devices": devices}}


def question(
    slices: list[Manifest],
    *claims: Manifest,
    classes: list[Manifest] | None = None,
    taken: tuple[str, ...] = (),
    shared: Mapping[str, Mapping[str, str]] | None = None,
) -> Manifest:
    """Build what the evaluator and the scheduler's own code are asked alike.

    `shared` says what claims consume of devices of which they have shares.
    """
    return {
        "node": NODE,
        "slices": slices,
        "classes": CLASSES if classes is None else classes,
        "claims": list(claims),
        "taken": [[DRIVER, NODE, device] for device in taken],
        **({} if shared is None else {"shared": shared}),
    }
