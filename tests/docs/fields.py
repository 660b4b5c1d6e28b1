"""Tables of the fields of configurations, made from their models into the pages."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from dra_driver.config import NodeConfig
from dra_driver.config.opaque import KINDS
from dra_driver.config.strict import StrictModel
from dra_driver.config.told import Told

CHECKOUT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    CHECKOUT / "docs" / name for name in ("configuration.md", "sharing-configs.md")
)
DOCUMENTS: Final[Mapping[str, type[StrictModel]]] = {"NodeConfig": NodeConfig, **KINDS}
_AT_ONCE: Final = {"NodeConfig": "at once"}  # claims keep what they were allocated with
_HEAD: Final = frozenset({"apiVersion", "kind"})  # stands in every document
_REGION: Final = re.compile(
    r"(?<=<!-- made by `make docs`: )(?P<document>\w+) (?P<paths>[^>]+?) -->\n.*?(?=<!-- end -->)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One field that has no fields of its own."""

    path: str
    values: str
    default: str
    meaning: str
    counts: str  # when a change is in force; empty: the page says it of all

    def cells(self) -> Iterator[str]:
        """Yield what stands in the table."""
        yield f"`{self.path}`"
        yield self.values
        yield self.default
        yield self.meaning
        if self.counts:
            yield self.counts


def rows(document: str) -> list[Row]:
    """All fields of a document, but for its version and kind."""
    found = _rows(DOCUMENTS[document], "", _AT_ONCE.get(document, ""))
    return [row for row in found if row.path not in _HEAD]


def regions(page: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield the document and the fields of each table of a page."""
    for match in _REGION.finditer(page):
        yield match["document"], _chosen(match["document"], match["paths"].split())


def made(page: str) -> str:
    """Text of the page with its tables made anew."""
    return _REGION.sub(_filled, page)


def _filled(match: re.Match[str]) -> str:
    chosen = _chosen(match["document"], match["paths"].split())
    table = "".join(_lines(chosen))
    return f"{match['document']} {match['paths']} -->\n\n{table}\n"


def _chosen(document: str, paths: Sequence[str]) -> list[Row]:
    found = []
    for path in paths:
        below = [
            row for row in rows(document) if re.match(rf"{re.escape(path)}($|[.\[])", row.path)
        ]
        if not below:
            raise ValueError(f"{document} has no field {path}")
        found += below
    return found


def _lines(chosen: Sequence[Row]) -> Iterator[str]:
    heads = ["field", "values", "default", "meaning"]
    heads += ["a change counts"] if chosen[0].counts else []
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    for row in chosen:
        yield f"| {' | '.join(row.cells())} |\n"


def _rows(model: type[StrictModel], above: str, counts: str) -> Iterator[Row]:
    for name, field in model.model_fields.items():
        path, told = f"{above}{field.alias or name}", _told(field.metadata)
        when = told.counts or counts
        inner, suffix = _model_in(field.annotation)
        if inner is not None:
            yield from _rows(inner, f"{path}{suffix}.", when)
            continue
        values = _values(field.annotation, field.metadata)
        yield Row(path, values, _default(field, told), field.description or "", when)


def _model_in(kind: Any) -> tuple[type[StrictModel] | None, str]:
    """Give the model that a field holds, and what its path has in between."""
    kind = _bare(kind)[0]
    if isinstance(kind, type) and issubclass(kind, StrictModel):
        return kind, ""
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    if not arguments or get_origin(kind) is Literal:
        return None, ""
    found, suffix = _model_in(arguments[-1])
    return found, ("[]" if get_origin(kind) is tuple else ".<name>") + suffix


def _bare(kind: Any) -> tuple[Any, list[Any]]:
    """Give a type without annotations and without None, and its annotations."""
    notes: list[Any] = []
    while get_origin(kind) in (Annotated, Union, UnionType):
        if get_origin(kind) is Annotated:
            notes += get_args(kind)[1:]
            kind = get_args(kind)[0]
        else:
            kind = next(each for each in get_args(kind) if each is not type(None))
    return kind, notes


def _values(kind: Any, notes: Sequence[Any]) -> str:
    """Say what a field takes."""
    kind, more = _bare(kind)
    notes = [*notes, *more]
    told = _told(notes)
    if told.values and get_origin(kind) is not tuple:
        return told.values
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    if get_origin(kind) is tuple:
        return told.values or f"a list of {_values(arguments[0], ())}"
    if arguments:
        return f"a mapping: {_values(arguments[0], ())} to {_values(arguments[1], ())}"
    if kind is int:
        return _range(notes)
    return {bool: "`true`, `false`", str: "text"}[kind]


def _range(notes: Sequence[Any]) -> str:
    flat = [part for note in notes for part in getattr(note, "metadata", [note])]
    least = next(part.ge for part in flat if isinstance(part, Ge))
    most = next(part.le for part in flat if isinstance(part, Le))
    return f"`{least}` to `{most}`"


def _told(notes: Sequence[Any]) -> Told:
    """Lay all notes of a field over each other."""
    found = [note for note in notes if isinstance(note, Told)]
    values, default, counts = (
        next((getattr(note, part) for note in found if getattr(note, part)), "")
        for part in ("values", "default", "counts")
    )
    return Told(values, default, counts)


def _default(field: FieldInfo, told: Told) -> str:
    if told.default:
        return f"`{told.default}`"
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
