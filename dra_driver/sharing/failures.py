"""Failures of work on many devices: each is tried, whatever became of the others."""

from collections.abc import Iterator
from contextlib import contextmanager

from dra_driver.model import DriverError
from dra_driver.telemetry import logger

_log = logger(__name__)


class Failures:
    """Keeps the first failure until all is done."""

    def __init__(self) -> None:
        """Begin without any."""
        self._first: DriverError | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Do a piece of work that may fail without keeping from the next."""
        try:
            yield
        except DriverError as error:
            if self._first is None:
                self._first = error
            else:
                _log.debug("one more could not be set again", err=error)

    def tell(self) -> None:
        """Raise the first failure, if there was one."""
        if self._first is not None:
            raise self._first
