"""Strict reading of files that people write: errors name line, field and what is allowed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Strict, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from dra_driver.config.yaml_text import Path, path_text, read_yaml
from dra_driver.model.errors import SettingInvalid

_Item = TypeVar("_Item")

# YAML has lists; what was read does not change any more.
Several = Annotated[tuple[_Item, ...], Strict(strict=False)]


class StrictModel(BaseModel):
    """A mapping with fields in camel case, and no others."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=False,
    )

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield what is wrong in between fields that are right by themselves, and where."""
        yield from ()


class NullableModel(StrictModel):
    """A mapping in which a known field without value is as if it were not there."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:  # noqa: ANN401 - whatever stands there
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {k: value for k, value in data.items() if value is not None or k not in known}


_Read = TypeVar("_Read", bound=StrictModel)

_KINDS: Final = {
    "string_type": "a string, in quotes where YAML reads something else",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
}
_RANGES: Final = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "too_short": "at least {min_length} entry",
    "string_too_short": "text of at least {min_length} letter",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    path: Path
    words: str  # what stands there and what is allowed
    is_unknown: bool = False  # there is no such field


def read_strictly(text: str, model: type[_Read]) -> _Read:
    """Read YAML as this model; raises SettingInvalid: the first thing wrong, in one line."""
    document = read_yaml(text)
    data = {} if document.data is None else document.data
    found, wrong = validated(data, model)
    if found is None:
        wrong.sort(key=lambda fault: document.line(fault.path))
        first = wrong[0]
        where = f"line {document.line(first.path)}: {path_text(first.path) or 'the document'}"
        raise SettingInvalid(f"{where}: {first.words}{and_more(wrong)}")
    return found


def validated(data: Any, model: type[_Read]) -> tuple[_Read | None, list[Fault]]:  # noqa: ANN401 - plain data
    """Give the data as this model, or at least one thing that is wrong with it."""
    try:
        found = model.model_validate(data)
    except ValidationError as error:
        # A list whose items are wrong counts as too short as well.
        return None, [
            _fault(each, model)
            for each in error.errors()
            if each["type"] != "too_short" or not each["input"]
        ]
    wrong = [Fault(path, words) for path, words in found.problems()]
    return (None, wrong) if wrong else (found, [])


def and_more(wrong: Sequence[Fault]) -> str:
    """Say how many faults there are beside the one that is told."""
    return f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""


def _fault(error: ErrorDetails, model: type[BaseModel]) -> Fault:
    path = tuple(part for part in error["loc"] if part != "[key]")  # pydantic's word for a key
    return Fault(path, _what(error, path, model), error["type"] == "extra_forbidden")


def _what(error: ErrorDetails, path: Path, model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    found = f"{shown(error['input'])} is not allowed"
    if kind == "extra_forbidden":
        return f"unknown field; allowed: {', '.join(_fields_at(path[:-1], model))}"
    if kind == "missing":
        return f"is missing; {_wanted(path, model)}"
    if kind == "literal_error":
        return f"{found}; allowed: {str(context['expected']).replace(' or ', ', ')}"
    if kind == "value_error":
        return str(context["error"])
    allowed = _KINDS.get(kind) or _RANGES.get(kind, error["msg"]).format(**context)
    return f"{found}; allowed: {allowed}"


def shown(value: object) -> str:
    """Repeat what somebody wrote, in few words."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - one line on a terminal


def _fields_at(path: Path, model: type[BaseModel]) -> Iterator[str]:
    """Yield the fields that the mapping at this path may have."""
    kind: Any = model
    for part in path:
        kind = _inner(kind, part)
    for name, field in kind.model_fields.items():
        yield field.alias or name


def _wanted(path: Path, model: type[BaseModel]) -> str:
    """Say what a field takes that is not there."""
    kind: Any = model
    for part in path:
        kind = _inner(kind, part)
    if get_origin(kind) is Literal:
        return f"allowed: {', '.join(repr(word) for word in get_args(kind))}"
    return f"allowed: {_KINDS['bool_type']}" if kind is bool else "it is required"


def _inner(kind: Any, part: str | int) -> Any:  # noqa: ANN401 - a type form
    """Type of a field, or of the items of a list or mapping."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        annotation = next(f.annotation for name, f in fields if part in (f.alias, name))
        return _bare(annotation)
    items = [each for each in get_args(kind) if each is not Ellipsis]
    return _bare(items[-1])


def _bare(kind: Any) -> Any:  # noqa: ANN401 - a type form
    """Type without annotations and without None."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _bare(next(each for each in get_args(kind) if each is not type(None)))
    return kind
