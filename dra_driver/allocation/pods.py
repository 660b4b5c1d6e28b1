"""The claim that the scheduler makes for a Pod that asks in the old words (`nvidia.com/gpu: 1`).

Kubernetes 1.37, scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.allocation.claims import Alternative, Claim, DeviceClass, Mode, Request
from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.model.quantity import Quantity

_IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"


def claim_for_pod(pod: Mapping[str, Any], classes: Iterable[DeviceClass]) -> Claim | None:
    """Return the claim for the extended resources of a Pod's containers, None if it has none.

    Init containers are not looked at: what they may reuse of the later containers is not needed
    to tell what a GPU Pod gets.
    """
    meta = Fields(pod, "Pod").child("metadata")
    namespace, name = meta.text("namespace", "default"), meta.text("name")
    spec = Fields(pod, f"Pod {namespace}/{name}").child("spec")
    by_resource = _classes_by_resource(classes)
    first = sum(1 for _ in spec.children("initContainers"))
    requests = [
        request
        for index, container in enumerate(spec.children("containers"), start=first)
        for request in _requests(index, container.child("resources"), by_resource)
    ]
    if not requests:
        return None
    requests.sort(key=lambda request: request.name)
    return Claim(namespace, f"{name}-extended-resources", tuple(requests))


def _classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """Of two classes with one extended resource name the newer counts, then the lower name."""
    ordered = sorted(classes, key=lambda c: c.name, reverse=True)
    ordered.sort(key=lambda c: c.created)
    found = {c.extended_resource: c for c in ordered if c.extended_resource}
    return found | {_IMPLICIT_PREFIX + c.name: c for c in ordered}


def _requests(
    index: int, resources: Fields, by_resource: Mapping[str, DeviceClass]
) -> Iterable[Request]:
    # The API server copies limits into requests that are absent.
    amounts = {**resources.raw("limits"), **resources.raw("requests")}
    for position, resource in enumerate(sorted(amounts)):
        device_class = by_resource.get(resource)
        if device_class is None:
            continue
        count = _count(amounts[resource], f"{resources.where}[{resource}]")
        if count:
            name = f"container-{index}-request-{position}"
            exactly = Alternative(
                name,
                device_class.name,
                (),
                Mode.EXACT_COUNT,
                count,
                admin_access=False,
                tolerations=(),
            )
            yield Request(name, (exactly,))


def _count(amount: object, where: str) -> int:
    try:
        quantity = Quantity.parse(str(amount))
    except ValueError as error:
        raise ObjectInvalid(f"{where}: {error}") from error
    count = int(quantity)
    if count < 0 or Quantity.of(count) != quantity:
        raise ObjectInvalid(f"{where}: a whole number is wanted, found {amount}")
    return count
