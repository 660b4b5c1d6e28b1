"""Reading of Kubernetes JSON objects: every complaint names the object and the field."""

from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.model.errors import BadClaim


class ObjectInvalid(BadClaim):
    """An object is not what the API `resource.k8s.io/v1` describes, or asks for what it lacks."""

    reason = "ObjectInvalid"


class Fields:
    """One JSON object under reading; null counts as absent, as it does in Kubernetes."""

    def __init__(self, value: object, where: str) -> None:
        """Take `value`, which must be a JSON object; `where` says which one in complaints."""
        if not isinstance(value, Mapping):
            raise ObjectInvalid(f"{where}: an object is wanted, found {_kind(value)}")
        self._value: Mapping[str, Any] = value
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self._value.get(key) is not None

    def raw(self, key: str) -> Mapping[str, Any]:
        """Return the object of that key unread, for what is only passed on."""
        return self.child(key)._value  # noqa: SLF001 # another instance of this class

    def text(self, key: str, default: str | None = None) -> str:
        """Return the string of that key; without `default` it must be there and not be empty."""
        value = self._value.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (not value and default is None):
            raise ObjectInvalid(f"{self.where}.{key}: a text is wanted, found {_kind(value)}")
        return value

    def whole(self, key: str, default: int) -> int:
        """Return the whole number of that key."""
        value = self._value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ObjectInvalid(
                f"{self.where}.{key}: a whole number is wanted, found {_kind(value)}"
            )
        return value

    def flag(self, key: str) -> bool:
        """Return the truth value of that key, false if absent."""
        value = self._value.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ObjectInvalid(
                f"{self.where}.{key}: true or false is wanted, found {_kind(value)}"
            )
        return value

    def child(self, key: str) -> "Fields":
        """Return the object of that key, an empty one if absent."""
        value = self._value.get(key)
        return Fields({} if value is None else value, f"{self.where}.{key}")

    def children(self, key: str) -> Iterator["Fields"]:
        """Yield the objects in the list of that key."""
        for index, value in enumerate(self._list(key)):
            yield Fields(value, f"{self.where}.{key}[{index}]")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of strings of that key."""
        values = self._list(key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise ObjectInvalid(
                    f"{self.where}.{key}[{index}]: a text is wanted, found {_kind(value)}"
                )
        return tuple(values)

    def entries(self, key: str) -> Iterator[tuple[str, "Fields"]]:
        """Yield the entries of the object of that key, whose values are objects."""
        child = self.child(key)
        for name, value in child._value.items():  # noqa: SLF001 # another instance of this class
            yield name, Fields(value, f"{child.where}[{name}]")

    def _list(self, key: str) -> list[Any]:
        value = self._value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ObjectInvalid(f"{self.where}.{key}: a list is wanted, found {_kind(value)}")
        return value


def _kind(value: object) -> str:
    """Describe a wrong value without repeating all of it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 # one line
