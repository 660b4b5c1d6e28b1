"""YAML that people write: read without surprises, and with the line of every value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import yaml

from dra_driver.model.errors import SettingInvalid

Path: TypeAlias = tuple[str | int, ...]  # from the top of a document down to one value

_MOST_VALUES: Final = 100_000  # aliases multiply what a small text stands for
_DEEPEST: Final = 30
_PLAIN_KEY: Final = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and for each path in it the line where its key or value stands, from 1."""

    data: Any
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Line of a value, or of the nearest one around it when it is missing."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str) -> Document:
    """Read one document; raises SettingInvalid with the line.

    Duplicate keys, which YAML's own reader lets pass, are refused, and so are keys that are no
    strings, tags other than YAML's plain ones, and a second document.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _invalid(mark, error.problem or "not YAML") from error
    except yaml.YAMLError as error:
        raise SettingInvalid(f"not YAML: {error}") from error
    except RecursionError as error:  # hundreds, before the values can be counted
        raise SettingInvalid(f"more than {_DEEPEST} values inside each other") from error
    reader = _Reader()
    data = None if node is None else reader.read(node, ())
    return Document(data, reader.lines)


def path_text(path: Path) -> str:
    """`rules[0].match.index[1]`; `mig-devices["1g.10gb"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if _PLAIN_KEY.fullmatch(part) else f'["{part}"]'
    return text.removeprefix(".")


class _Reader:
    """Turns YAML's nodes into plain data."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._values = 0
        self._scalars = yaml.SafeLoader("")

    def read(self, node: yaml.Node, path: Path) -> Any:  # noqa: ANN401 - whatever stands there
        self._values += 1
        if self._values > _MOST_VALUES or len(path) > _DEEPEST:
            raise _invalid(
                node.start_mark,
                f"more than {_MOST_VALUES} values, or more than {_DEEPEST} of them inside each "
                "other",
            )
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, place)) for place, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node)
            where = path_text(path) or "the document"
            if not isinstance(key, str):
                raise _invalid(
                    key_node.start_mark,
                    f"{where}: a key is {_shown(key_node)}; allowed: a string, in quotes where "
                    "YAML reads something else",
                )
            if key in found:
                first = self.lines[(*path, key)]
                raise _invalid(
                    key_node.start_mark,
                    f"{path_text((*path, key))}: given twice, first in line {first}; allowed: once",
                )
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = self.read(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node) -> Any:  # noqa: ANN401
        if not isinstance(node, yaml.ScalarNode):
            return None  # a key that is a list or a mapping
        try:
            return self._scalars.construct_object(node)
        except yaml.MarkedYAMLError as error:
            raise _invalid(node.start_mark, error.problem or "not YAML") from error
        except ValueError as error:  # a date that no calendar has
            raise _invalid(node.start_mark, f"{_shown(node)}: {error}") from error


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _invalid(mark: yaml.Mark | None, problem: str) -> SettingInvalid:
    line = f"line {mark.line + 1}: " if mark is not None else ""
    return SettingInvalid(line + problem)
