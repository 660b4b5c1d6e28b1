"""Results as tables for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dra_driver.cli.bench.figures import Figure, Result
from dra_driver.cli.bench.floor import FLOOR
from dra_driver.cli.tables import table

_HEAD = ("FIGURE", "LIVE", "AT ONCE", "COUNT", "P50", "P90", "P99", "UNIT", "/ FLOOR")
_Floors: TypeAlias = Mapping[int | None, float]
_WHOLE_FROM: Final = 100  # from which digits after the point say nothing


def result_text(result: Result) -> str:
    """Describe one result."""
    floors = _floors(result)
    rows = [_row(figure, floors) for figure in _grouped(result.figures)]
    return f"{_about(result.about)}\n\n{table(_HEAD, rows)}"


def comparison_text(before: Result, after: Result) -> str:
    """Put two results side by side: the ratio of the medians, also when both are over the floor."""
    head = ("FIGURE", "LIVE", "AT ONCE", "UNIT", "BEFORE", "AFTER", "RATIO", "OVER FLOORS")
    floors = _floors(before), _floors(after)
    known = {figure.key: figure for figure in before.figures}
    rows = [
        _compared(known[figure.key], figure, floors)
        for figure in after.figures
        if figure.key in known
    ]
    missing = sorted(
        {figure.name for figure in (*before.figures, *after.figures)}
        - {str(row[0]) for row in rows}
    )
    text = table(head, rows)
    return f"{text}\n\nin one result only: {', '.join(missing)}" if missing else text


def _grouped(figures: Sequence[Figure]) -> list[Figure]:
    """Put together what has one name, so that a column shows whether it stays flat."""
    names = list(dict.fromkeys(figure.name for figure in figures))
    return sorted(figures, key=lambda each: (names.index(each.name), each.at_once or 0))


def _about(about: Mapping[str, Any]) -> str:
    machine = about.get("machine", {})
    return (
        f"{about.get('driver')} on {about.get('node')}: {about.get('target')}, "
        f"{about.get('devices')} devices\n"
        f"measured: {about.get('measuredClaims')}; live: {about.get('liveClaims')}; "
        f"at once: {about.get('claimsAtOnce')}\n"
        f"{machine.get('cpus')} CPUs, load {machine.get('load')}, "
        f"version {about.get('version')}, {about.get('time')}, took {about.get('seconds')} s"
    )


def _row(figure: Figure, floors: _Floors) -> Sequence[object]:
    floor = floors.get(figure.live)
    return (
        figure.name,
        _plain(figure.live),
        _plain(figure.at_once),
        figure.count,
        _number(figure.p50),
        _number(figure.p90),
        _number(figure.p99),
        figure.unit or "-",
        f"{figure.p50 / floor:.2f}" if floor and figure.unit == "ms" else "-",
    )


def _compared(before: Figure, after: Figure, floors: tuple[_Floors, _Floors]) -> Sequence[object]:
    ratio = after.p50 / before.p50 if before.p50 else None
    fair = None
    begin, end = (each.get(after.live) for each in floors)
    if ratio is not None and begin and end and after.unit == "ms":
        fair = ratio * begin / end
    return (
        after.name,
        _plain(after.live),
        _plain(after.at_once),
        after.unit or "-",
        _number(before.p50),
        _number(after.p50),
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if fair is None else f"{fair:.2f}",
    )


def _floors(result: Result) -> _Floors:
    """Floor by number of live claims: each was taken beside the figures of that number."""
    return {figure.live: figure.p50 for figure in result.figures if figure.name == FLOOR}


def _plain(number: int | None) -> str:
    return "-" if number is None else str(number)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    whole = abs(value) >= _WHOLE_FROM or value == int(value)
    return f"{value:.0f}" if whole else f"{value:.3g}"
