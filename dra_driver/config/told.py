"""What the documentation tells of a field beside its description: `make docs` reads it."""

from dataclasses import dataclass
from typing import Final

UNSHARED: Final = "unshared GPU"  # words that docs/configuration.md explains
IDLE: Final = "idle GPU"


@dataclass(frozen=True, slots=True)
class Told:
    """A note in the annotation of a field or of its type."""

    values: str = ""  # in place of what the type says
    default: str = ""  # what holds where no rule gives the field
    counts: str = ""  # when a change is in force; else as for the field around it
