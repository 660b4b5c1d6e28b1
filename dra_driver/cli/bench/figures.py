"""Results of the benchmark, their form in JSON, and how they are read back."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from dra_driver.model.errors import SettingInvalid, StorageFailed

SCHEMA: Final = 1

Key: TypeAlias = tuple[str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. `p90` and `p99` are None for a value that was taken once."""

    name: str
    unit: str
    count: int  # of samples
    p50: float
    p90: float | None = None
    p99: float | None = None
    live: int | None = None  # live claims on the node meanwhile
    at_once: int | None = None  # calls at the same time

    @property
    def key(self) -> Key:
        """What makes it the same figure in two results."""
        return self.name, self.live, self.at_once


@dataclass(frozen=True, slots=True)
class Result:
    """All figures of one run, and what they were taken from."""

    about: Mapping[str, Any]  # driver, node, machine, claims: for people, never compared
    figures: tuple[Figure, ...]

    def figure(self, name: str, live: int | None = None, at_once: int | None = None) -> Figure:
        """Give one figure; raises KeyError."""
        key = (name, live, at_once)
        for figure in self.figures:
            if figure.key == key:
                return figure
        raise KeyError(key)

    def to_json(self) -> str:
        """Write the result as a JSON document."""
        figures = [
            {key: value for key, value in asdict(figure).items() if value is not None}
            for figure in self.figures
        ]
        document = {"schema": SCHEMA, "about": dict(self.about), "figures": figures}
        return json.dumps(document, indent=2) + "\n"


def distribution(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    live: int | None = None,
    at_once: int | None = None,
) -> Figure:
    """Figure of samples, of which there is at least one."""
    ordered = sorted(samples)
    p50, p90, p99 = (ordered[_rank(len(ordered), part)] for part in (0.5, 0.9, 0.99))
    return Figure(name, unit, len(ordered), p50, p90, p99, live, at_once)


def read_result(path: Path) -> Result:
    """Read a result that was saved. Raises StorageFailed or SettingInvalid with the path."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingInvalid(f"{path} is not the JSON of a benchmark: {error}") from error
    try:
        if document["schema"] != SCHEMA:
            raise SettingInvalid(f"{path} has schema {document['schema']}, not {SCHEMA}")
        figures = tuple(Figure(**figure) for figure in document["figures"])
        return Result(document["about"], figures)
    except (KeyError, TypeError) as error:
        raise SettingInvalid(f"{path} is not the JSON of a benchmark: {error!r}") from error


def _rank(count: int, part: float) -> int:
    """Position of the nearest-rank percentile."""
    return max(math.ceil(count * part) - 1, 0)
