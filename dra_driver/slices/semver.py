"""Version strings as the API server takes them: semver 2.0.0 and nothing else."""

import re
from typing import Final

_PRE: Final = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_STRICT: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    rf"(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_LOOSE: Final = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?([-+].*)?", re.ASCII)
_LARGEST: Final = 2**63 - 1  # the scheduler reads each number into 64 bits
_LONGEST: Final = 64  # bytes of a version attribute


def is_semver(text: str) -> bool:
    """Whether the API server and the scheduler both take `text` as a version."""
    match = _STRICT.fullmatch(text) if len(text) <= _LONGEST else None
    return match is not None and all(int(number) <= _LARGEST for number in match.groups())


def to_semver(text: str) -> str | None:
    """Make a version the API server takes: `550.127.08` becomes `550.127.8`, `570.86` `570.86.0`.

    None when that is not possible without inventing something, as for `1.2.3.4` or an empty text.
    """
    match = _LOOSE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        return None
    numbers = ".".join(str(int(number or 0)) for number in match.groups()[:3])
    version = numbers + (match[4] or "")
    return version if is_semver(version) else None
