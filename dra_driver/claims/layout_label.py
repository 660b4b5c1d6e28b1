"""Layouts by a label of the Node, as users of the MIG Manager name them; off by default.

`nvidia.com/mig.config` names the layout of all GPUs that have MIG, `nvidia.com/mig.config.state`
tells how far it is: pending, success or failed.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dra_driver.claims.layout_status import LayoutState, LayoutStatus
from dra_driver.config import NodeConfig, configured
from dra_driver.kube.node_labels import NodeLabels
from dra_driver.model import DriverError, Gpu, Inventory, Partitioning
from dra_driver.telemetry import Event, EventQueue, logger

log = logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # between two tries to write

CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
MANAGER: Final = "nvidia.com/gpu.deploy.mig-manager"  # the GPU Operator's, where it deploys one


class LayoutLabel:
    """Lays the label over the policies of the file, unless a MIG Manager is at work.

    One that is tells itself by the GPU Operator's label, or by changing the state which this driver
    has written.
    """

    def __init__(self, labels: NodeLabels, events: EventQueue, *, enabled: bool) -> None:
        """Look at `labels` only if `enabled`."""
        self._labels = labels
        self._events = events
        self._enabled = enabled
        self._written = ""  # state
        self._pause, self._next_try = _FIRST_PAUSE, 0.0  # of a state that can't be written
        self._said = ""

    @property
    def is_known(self) -> bool:
        """Whether the labels were read once, or nobody needs them."""
        return self._labels.are_known

    def configured(self, inventory: Inventory, config: NodeConfig) -> Inventory:
        """Snapshot in which each GPU has its policy; those with MIG have the label's layout."""
        inventory = configured(inventory, config, self._labels.current())
        layout = self._layout()
        if not layout:
            return inventory
        return replace(inventory, gpus=tuple(_with_layout(gpu, layout) for gpu in inventory.gpus))

    def stands_back(self) -> str:
        """Say why the label is left to somebody else; empty: it is not."""
        labels = self._labels.current() if self._enabled else {}
        if labels.get(MANAGER, "false") not in ("", "false"):
            return (
                f"a MIG Manager is at work on this Node (label {MANAGER}={labels[MANAGER]}), so "
                f"label {CONFIG} is left to it"
            )
        if self._written and labels.get(STATE, self._written) != self._written:
            return (
                f"somebody else has set label {STATE} to {labels[STATE]!r}, so label {CONFIG} is "
                "left to them; remove the state's label when no MIG Manager runs any more"
            )
        return ""

    def stand_by(self) -> None:
        """Take no state for the last of ours: a newer instance writes it now."""
        self._written = ""

    def report(self, inventory: Inventory, statuses: Iterable[LayoutStatus]) -> bool:
        """Tell in the label how far the layout is; gives whether that is still owed.

        `statuses` are those of the GPUs of `inventory`, whose policies may be older than the label.
        A label that can't be set is told once, and tried again with growing pauses.
        """
        why, layout = self.stands_back(), self._layout()
        if why or not layout:
            self._say(why)
            return False
        is_known = all(gpu.policy.layout == layout for gpu in inventory.gpus if gpu.mig_capable)
        state = _worst(statuses) if is_known else "pending"
        if self._labels.current().get(STATE) == state:
            self._is_written(state)
            return False
        if time.monotonic() < self._next_try:
            return True
        try:
            self._labels.write(STATE, state)
        except DriverError as error:
            self._written = ""  # it may have got there, and only the answer did not come back
            self._say(f"label {STATE} can't be set to {state}: {error}")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._next_try = time.monotonic() + self._pause
            return True
        self._is_written(state)
        return False

    def _is_written(self, state: str) -> None:
        self._written = state
        self._pause, self._next_try = _FIRST_PAUSE, 0.0
        self._say("")

    def _layout(self) -> str:
        if not self._enabled or self.stands_back():
            return ""
        return self._labels.current().get(CONFIG, "")

    def _say(self, why: str) -> None:
        if why and why != self._said:
            log.warning("the label interface does not work", err=why)
            self._events.add(Event("LayoutLabelUnused", why, warning=True))
        self._said = why


def _with_layout(gpu: Gpu, layout: str) -> Gpu:
    if not gpu.mig_capable:
        return gpu
    policy = replace(gpu.policy, partitioning=Partitioning.STATIC, layout=layout)
    return replace(gpu, policy=policy)


def _worst(statuses: Iterable[LayoutStatus]) -> str:
    states = {status.state for status in statuses}
    if LayoutState.FAILED in states:
        return "failed"
    return "pending" if LayoutState.WAITING in states else "success"
