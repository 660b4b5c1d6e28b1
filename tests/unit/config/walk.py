"""Walks through documents by their models, so that no field of any is forgotten."""

from collections.abc import Iterator
from copy import deepcopy
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from dra_driver.config.strict import StrictModel

Path = tuple[str | int, ...]

WRONG = "zz-wrong"
UNKNOWN = "zz-unknown"
HUGE = 98765432198765


def fields(model: type[StrictModel], data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value of a document that the models know, with its place."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in data:
            yield from _values(field.annotation, data[key], (*path, key))


def _values(kind: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    kind = plain(kind)
    yield path, value
    if isinstance(kind, type) and issubclass(kind, StrictModel):
        yield from fields(kind, value, path)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _values(get_args(kind)[0], item, (*path, place))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _values(get_args(kind)[1], item, (*path, key))


def plain(kind: Any) -> Any:
    """A type without annotations and without None."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


def models(kind: Any) -> set[type[StrictModel]]:
    """All models that a document of this type may have."""
    kind = plain(kind)
    if not (isinstance(kind, type) and issubclass(kind, StrictModel)):
        inner = (each for each in get_args(kind) if each is not Ellipsis)
        return set().union(*(models(each) for each in inner))
    parts = (models(field.annotation) for field in kind.model_fields.values())
    return {kind}.union(*parts)


def model_at(model: type[StrictModel], path: Path) -> type[StrictModel] | None:
    """Model of the mapping at a place; None: its keys are free."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, StrictModel):
            found = kind.model_fields.items()
            kind = plain(next(f.annotation for name, f in found if part in (f.alias, name)))
        else:
            kind = plain([each for each in get_args(kind) if each is not Ellipsis][-1])
    return kind if isinstance(kind, type) and issubclass(kind, StrictModel) else None


def keys(model: type[StrictModel]) -> list[str]:
    """Fields of a model as documents write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def changed(data: Any, path: Path, value: Any) -> Any:
    """A copy with another value at one place."""
    copy = deepcopy(data)
    at(copy, path[:-1])[path[-1]] = value
    return copy


def without(data: Any, path: Path) -> Any:
    """A copy that lacks what stands at one place."""
    copy = deepcopy(data)
    del at(copy, path[:-1])[path[-1]]
    return copy


def words(path: Path) -> str:
    """The path as errors write it."""
    text = ""
    for part in path:
        plain_key = str(part).replace("-", "").isalnum()
        quoted = f".{part}" if plain_key else f'["{part}"]'
        text += f"[{part}]" if isinstance(part, int) else quoted
    return text.removeprefix(".")
