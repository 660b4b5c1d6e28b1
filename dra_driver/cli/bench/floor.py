"""What the machine itself takes for the least that a Prepare can do.

That is one read of the claim from the API server, and two durable writes: what is going to be
done, and that it was done.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dra_driver.cli.bench.figures import Figure, distribution
from dra_driver.cli.bench.target import Target
from dra_driver.host import write_durably
from dra_driver.model import ClaimRef
from dra_driver.model.errors import StorageFailed

FLOOR: Final = "floor: read and two writes"
_READ: Final = "API read"
_WRITE: Final = "durable write"
_CONTENT: Final = b"x" * 700  # about the record of a claim with one device


class Floor:
    """Samples taken between those of the driver, so that both see the machine in one state."""

    def __init__(self, target: Target, ref: ClaimRef, folder: Path) -> None:
        """Read the claim `ref`; write in `folder`, on the disk that has the driver's records."""
        self._target = target
        self._ref = ref
        self._path = folder / "record.json"
        self._samples: dict[str, list[float]] = {FLOOR: [], _READ: [], _WRITE: []}

    def sample(self) -> None:
        """Take one sample. Raises DriverError."""
        begin = time.perf_counter()
        self._target.claims.read(self._ref)
        read = time.perf_counter()
        write_durably(self._path, _CONTENT)
        first = time.perf_counter()
        write_durably(self._path, _CONTENT)
        second = time.perf_counter()
        self._samples[FLOOR].append(second - begin)
        self._samples[_READ].append(read - begin)
        self._samples[_WRITE] += [first - read, second - first]

    def figures(self, live: int) -> list[Figure]:
        """Give the samples as figures."""
        return [
            distribution(name, "ms", [1000 * second for second in seconds], live=live, at_once=1)
            for name, seconds in self._samples.items()
        ]


@contextmanager
def floor(target: Target, disk: Path) -> Iterator[Floor]:
    """Have a claim to read and a folder to write in. Raises DriverError."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="dra-floor-", dir=disk)
    except OSError as error:
        raise StorageFailed(f"cannot write in {disk}: {error.strerror}") from error
    with scratch as folder, target.claims.made(target.offer.measured[:1]) as (ref,):
        yield Floor(target, ref, Path(folder))
