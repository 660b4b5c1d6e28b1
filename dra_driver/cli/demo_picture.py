"""The demo's node as a picture: each GPU a bar, each partition its part of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

_SLICES: Final = 8  # of the memory of a GPU that can be partitioned
_CELL: Final = 6  # columns for one of them
_NUMBER: Final = re.compile(r"gpu-(\d+)")
_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "red")
FREE: Final = "green"

Holders = Mapping[str, int]  # device name: position of the claim


@dataclass(frozen=True, slots=True)
class _Cell:
    """What a device covers of its GPU's bar."""

    name: str
    label: str
    start: int
    size: int


def letter(position: int) -> str:
    """Return the letter that stands for a claim in the picture."""
    return chr(ord("A") + position)


def colour(position: int) -> str:
    """Return the colour of a claim in the picture."""
    return _COLOURS[position % len(_COLOURS)]


def picture(slices: Iterable[Mapping[str, Any]], holders: Holders) -> Text:
    """Draw all published devices; those of `holders` carry the claim's letter."""
    bars: dict[int, list[_Cell]] = {}
    for piece in slices:
        for device in piece["spec"].get("devices", ()):
            match = _NUMBER.match(device["name"])
            if match is not None:
                bars.setdefault(int(match[1]), []).append(_cell(device))
    drawn = Text()
    for number, cells in sorted(bars.items()):
        drawn.append(f"  gpu-{number:<3}")
        drawn.append_text(_bar(sorted(cells, key=lambda cell: cell.start), holders))
        drawn.append(f"  {_summary(cells, holders)}\n", style="dim")
    return drawn


def _cell(device: Mapping[str, Any]) -> _Cell:
    attributes = device["attributes"]
    if attributes["type"]["string"] == "gpu":
        return _Cell(device["name"], attributes["productName"]["string"], 0, _SLICES)
    covered = [int(key[len("memorySlice") :]) for key in device["capacity"] if "Slice" in key]
    profile = attributes["profile"]["string"]
    return _Cell(device["name"], profile, min(covered, default=0), len(covered) or 1)


def _bar(cells: Sequence[_Cell], holders: Holders) -> Text:
    bar, column = Text(), 0
    for cell in cells:
        bar.append(" " * _CELL * (cell.start - column))
        column = cell.start + cell.size
        holder = holders.get(cell.name)
        mark = "-" if holder is None else letter(holder)
        width = _CELL * cell.size - 2
        label = f"{mark} {cell.label}"
        if len(label) > width:  # a small partition shows how many compute slices it has
            label = f"{mark} {cell.label.partition('.')[0]}"
        style = FREE if holder is None else f"bold {colour(holder)}"
        bar.append(f"[{label[:width]:<{width}}]", style=style)
    bar.append(" " * _CELL * (_SLICES - column))
    return bar


def _summary(cells: Sequence[_Cell], holders: Holders) -> str:
    taken = sum(cell.name in holders for cell in cells)
    if len(cells) == 1:
        return "taken" if taken else "free"
    return f"{len(cells)} partitions, {len(cells) - taken} free"
