"""What the engine needs to know of the hardware."""

from typing import Protocol

from dra_driver.model import Inventory


class Hardware(Protocol):
    """Gives snapshots of the node's GPUs, each with how well it is."""

    def current(self) -> Inventory | None:
        """Last snapshot; None until the hardware has been looked at once."""

    def look(self, timeout: float) -> Inventory:
        """Snapshot of a look that begins now; raises DriverNotReady after `timeout` seconds."""

    def refresh(self) -> None:
        """Look again soon. Returns at once."""

    def not_ready(self) -> str:
        """Why there is no snapshot or only an old one; empty when all is well."""
