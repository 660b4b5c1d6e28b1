"""Durations as flags and the node configuration write them: a number with ms, s, m or h."""

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PATTERN: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ms|[smh])", re.ASCII)


def parse_duration(text: str) -> float:
    """Give seconds; raises ValueError that names the text."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 500ms, 2m or 1h")
    return float(match[1]) * _UNITS[match[2]]
