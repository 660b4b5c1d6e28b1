"""Keeps what is published of a GPU as it is while claims hold shares of it, and says so."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from dra_driver.model import DriverError, Gpu, GpuPolicy, Inventory, gpu_device_name
from dra_driver.state import ClaimRecord, Holding
from dra_driver.state.policies import changed_fields, kept_policy, stored_policy
from dra_driver.telemetry import Event, EventQueue, logger

_log = logger(__name__)

_NAMED: Final = 8  # claims in a message


class WaitingPolicies:
    """Lays the policies of held shares over those of the configuration; used by one thread."""

    def __init__(self, holdings: Callable[[], Iterable[Holding]], events: EventQueue) -> None:
        """Ask `holdings` who has shares."""
        self._holdings = holdings
        self._events = events
        self._held: tuple[Holding, ...] = ()  # as far as was known last
        self._waits: dict[str, str] = {}  # by GPU UUID

    def applied(self, inventory: Inventory) -> Inventory:
        """Snapshot in which no GPU whose shares are held has got another configuration."""
        try:
            self._held = tuple(self._holdings())
        except DriverError as error:
            _log.warning("who has shares is not known now", err=error)
        found = with_held_policies(inventory, self._held)
        for gpu in found.gpus:
            self._compare(gpu)
        return found

    def _compare(self, gpu: Gpu) -> None:
        before = self._waits.pop(gpu.uuid, "")
        if gpu.waits:
            self._waits[gpu.uuid] = gpu.waits
        if gpu.waits == before:
            return
        device = f"{gpu_device_name(gpu)} ({gpu.uuid})"
        if gpu.waits:
            message = f"{device}: {gpu.waits}: {self._holders(gpu)}"
            _log.info("a configuration waits", gpu=gpu.uuid, what=message)
            self._events.add(Event("ConfigurationWaits", message, warning=False))
            return
        _log.info("a configuration waits no more", gpu=gpu.uuid)
        message = f"{device} is published by its configuration again"
        self._events.add(Event("ConfigurationApplied", message, warning=False))

    def _holders(self, gpu: Gpu) -> str:
        shares = (held for held in self._held if held.gpu_uuid == gpu.uuid and held.share_id)
        names = sorted({f"claim {held.claim}" for held in shares})
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more


def with_held_policies(inventory: Inventory, held: Iterable[Holding]) -> Inventory:
    """Snapshot in which GPUs whose shares are held have the policy under which they were given out.

    `Gpu.waits` says what of the configuration waits for their end.
    """
    policies: dict[str, GpuPolicy] = {}
    for holding in held:
        policy = holding.policy
        if policy is not None and holding.share_id and not holding.admin_access:
            policies.setdefault(holding.gpu_uuid, policy)
    if not policies:
        return inventory
    return replace(
        inventory, gpus=tuple(_held(gpu, policies.get(gpu.uuid)) for gpu in inventory.gpus)
    )


def _held(gpu: Gpu, before: GpuPolicy | None) -> Gpu:
    if before is None:
        return gpu
    kept = kept_policy(gpu.policy, before)
    if kept == gpu.policy:
        return gpu
    changed = ", ".join(changed_fields(kept, gpu.policy))
    told = f"{changed} of its configuration: wait until no claim has a share of it"
    return replace(gpu, policy=kept, waits=told)


def is_waited_for(record: ClaimRecord, inventory: Inventory | None) -> bool:
    """Whether the configuration of a GPU waits for this claim's end, among others."""
    gpus = {device.gpu_uuid for device in record.devices}
    return any(gpu.waits for gpu in (inventory.gpus if inventory else ()) if gpu.uuid in gpus)


def is_overtaken(record: ClaimRecord, inventory: Inventory | None) -> bool:
    """Whether a GPU got another policy at the very moment at which the claim got a share of it."""
    policies = {gpu.uuid: gpu.policy for gpu in (inventory.gpus if inventory else ())}
    return any(
        device.policy is not None and stored_policy(policies[device.gpu_uuid]) != device.policy
        for device in record.devices
        if device.gpu_uuid in policies
    )
