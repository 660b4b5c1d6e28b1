"""What the last try of a change came to, so that it is not repeated for nothing."""

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from dra_driver.claims.layout_plan import Obstacles, Target
from dra_driver.model import BadNode, DriverError
from dra_driver.state import Holding

Outcome: TypeAlias = Obstacles | DriverError

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0  # between two tries of a change that fails
_LOOK_SECONDS: Final = 30.0  # between two looks for who else is there while claims are in the way


@dataclass(frozen=True, slots=True)
class _Try:
    target: Target | None
    held: tuple[Holding, ...]  # by claims, at that time
    outcome: Outcome
    pause: float
    until: float  # monotonic seconds

    def holds(self, target: Target | None, held: Sequence[Holding]) -> bool:
        """Whether another try would come to the same now."""
        if self.target != target or time.monotonic() >= self.until:
            return False
        return isinstance(self.outcome, DriverError) or (bool(held) and self.held == tuple(held))


class Tries:
    """The last try for each GPU; used by one thread, but for `is_hopeless`."""

    def __init__(self) -> None:
        self._last: dict[str, _Try] = {}

    def __len__(self) -> int:
        return len(self._last)

    def known(
        self, gpu_uuid: str, target: Target | None, held: Sequence[Holding]
    ) -> Outcome | None:
        """Outcome of the last try if there is no use in another yet."""
        last = self._last.get(gpu_uuid)
        return last.outcome if last is not None and last.holds(target, held) else None

    def is_hopeless(self, gpu_uuid: str, target: Target) -> bool:
        """Whether the last try has failed in a way that a person must mend."""
        last = self._last.get(gpu_uuid)
        return last is not None and last.target == target and isinstance(last.outcome, BadNode)

    def failed(self, gpu_uuid: str, target: Target | None, error: DriverError) -> None:
        """Remember a failure; the next try comes later each time."""
        last, pause = self._last.get(gpu_uuid), _FIRST_PAUSE
        if last and last.target == target and isinstance(last.outcome, DriverError):
            pause = min(2 * last.pause, _LONGEST_PAUSE)
        self._last[gpu_uuid] = _Try(target, (), error, pause, time.monotonic() + pause)

    def waits(
        self, gpu_uuid: str, target: Target | None, held: Sequence[Holding], obstacles: Obstacles
    ) -> None:
        """Remember who was in the way. That claims go is seen without asking the hardware."""
        until = time.monotonic() + _LOOK_SECONDS
        self._last[gpu_uuid] = _Try(target, tuple(held), obstacles, 0.0, until)

    def keep_only(self, gpu_uuids: Container[str]) -> None:
        """Remember nothing of GPUs that are gone."""
        self._last = {uuid: last for uuid, last in self._last.items() if uuid in gpu_uuids}

    def forget(self, gpu_uuid: str) -> None:
        """Remember nothing of a GPU: all went well, or nothing is to be done."""
        self._last.pop(gpu_uuid, None)
