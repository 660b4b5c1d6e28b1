"""Quantities and semantic versions as values and functions of CEL.

CEL sees both as messages of two types of their own, so that the checker refuses what the API
server refuses (`memory > quantity('1Gi')`) and both compare by `==`. Each message holds one
canonical text. Functions: apiserver/pkg/cel/library (quantity.go, semverlib.go).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from dra_driver.allocation.evaluator import cel
from dra_driver.allocation.quantities import capped
from dra_driver.model.quantity import Quantity

_PACKAGE = "kubernetes"
_INT64 = 1 << 63
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


@cache
def message_pool() -> descriptor_pool.DescriptorPool:
    """Return the descriptors of the two message types."""
    file = descriptor_pb2.FileDescriptorProto(name="kubernetes_cel.proto", package=_PACKAGE)
    file.syntax = "proto3"
    for name in ("Quantity", "Semver"):
        message = file.message_type.add(name=name)
        message.field.add(
            name="text",
            number=1,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@cache
def _message_class(name: str) -> Callable[..., Message]:
    descriptor = message_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


def quantity_value(quantity: Quantity) -> Message:
    """Return the CEL value of a quantity."""
    return _message_class("Quantity")(text=format(quantity.value.normalize(), "f"))


def semver_value(text: str) -> Message:
    """Return the CEL value of a semantic version; raises ValueError if it is none."""
    if _SEMVER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a semantic version such as 1.2.3")
    return _message_class("Semver")(text=text.partition("+")[0])  # build metadata do not count


def _succeeds(function: Callable[..., Any]) -> Callable[..., bool]:
    def check(*args: object) -> bool:
        try:
            function(*args)
        except ValueError:
            return False
        return True

    return check


def _comparing(judge: Callable[[int], int]) -> Callable[[Message, Message], int]:
    def function(left: Message, right: Message) -> int:
        if left.DESCRIPTOR.name != right.DESCRIPTOR.name:
            raise ValueError("no such overload")
        first, second = _sort_key(left), _sort_key(right)
        return judge(int(first > second) - int(first < second))

    return function


def _quantity(text: str) -> Message:
    return quantity_value(capped(text))


def _amount(value: Message) -> Decimal:
    if value.DESCRIPTOR.name != "Quantity":
        raise ValueError("no such overload")
    return Decimal(_text(value))


def _text(value: Message) -> str:
    return str(getattr(value, "text"))  # noqa: B009 # the class is made at run time


def _sign(value: Message) -> int:
    amount = _amount(value)
    return int(amount > 0) - int(amount < 0)


def _float(value: Message) -> float:
    return float(_amount(value))


def _integer(value: Message) -> int:
    amount = _amount(value)
    if amount != amount.to_integral_value() or not -_INT64 <= amount < _INT64:
        raise ValueError("cannot convert value to integer")
    return int(amount)


def _add(left: Message, right: Message | int) -> Message:
    return quantity_value(Quantity(_amount(left) + _term(right)))


def _sub(left: Message, right: Message | int) -> Message:
    return quantity_value(Quantity(_amount(left) - _term(right)))


def _term(value: Message | int) -> Decimal:
    return Decimal(value) if isinstance(value, int) else _amount(value)


def _semver(text: str, normalize: bool) -> Message:  # noqa: FBT001 # CEL passes by position
    return semver_value(_normalized(text) if normalize else text)


def _normalized(text: str) -> str:
    """Drop a leading `v` and leading zeros, and fill up with `.0`."""
    parts = text.removeprefix("v").split(".", 2)
    parts = [re.sub(r"^0+(?=\d)", "", part) for part in parts]
    if len(parts) < 3 and re.search(r"[+-]", parts[-1]):  # noqa: PLR2004 # major, minor, patch
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][:3])


def _numbers(value: Message) -> tuple[int, int, int]:
    if value.DESCRIPTOR.name != "Semver":
        raise ValueError("no such overload")
    major, minor, patch = _text(value).partition("-")[0].split(".")
    return int(major), int(minor), int(patch)


def _part(index: int) -> Callable[[Message], int]:
    return lambda value: _numbers(value)[index]


def _sort_key(value: Message) -> tuple[Any, ...]:
    """Order of amounts, or of versions by semantic versioning 2.0.0 section 11."""
    if value.DESCRIPTOR.name == "Quantity":
        return (_amount(value),)
    release = _text(value).partition("-")[2]
    parts = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in release.split(".") if release]
    return (*_numbers(value), not release, parts)  # a pre-release comes before the release


@dataclass(frozen=True, slots=True)
class _Overload:
    """One signature of a function; types by the names in `functions`."""

    name: str
    gives: str
    takes: str
    # None: only the checker knows the overload. At run time all messages are of one kind, and the
    # implementation of the overload before it serves both message types.
    impl: Callable[..., Any] | None = None
    member: bool = True


_OVERLOADS = (
    _Overload("quantity", "quantity", "text", _quantity, member=False),
    _Overload("isQuantity", "truth", "text", _succeeds(_quantity), member=False),
    _Overload("sign", "int", "quantity", _sign, member=False),
    _Overload("isInteger", "truth", "quantity", _succeeds(_integer)),
    _Overload("asInteger", "int", "quantity", _integer),
    _Overload("asApproximateFloat", "double", "quantity", _float),
    _Overload("add", "quantity", "quantity quantity", _add),
    _Overload("add", "quantity", "quantity int", _add),
    _Overload("sub", "quantity", "quantity quantity", _sub),
    _Overload("sub", "quantity", "quantity int", _sub),
    _Overload("semver", "semver", "text", semver_value, member=False),
    _Overload("semver", "semver", "text truth", _semver, member=False),
    _Overload("isSemver", "truth", "text", _succeeds(semver_value), member=False),
    _Overload("isSemver", "truth", "text truth", _succeeds(_semver), member=False),
    _Overload("major", "int", "semver", _part(0)),
    _Overload("minor", "int", "semver", _part(1)),
    _Overload("patch", "int", "semver", _part(2)),
    _Overload("isGreaterThan", "truth", "quantity quantity", _comparing(lambda order: order > 0)),
    _Overload("isGreaterThan", "truth", "semver semver"),
    _Overload("isLessThan", "truth", "quantity quantity", _comparing(lambda order: order < 0)),
    _Overload("isLessThan", "truth", "semver semver"),
    _Overload("compareTo", "int", "quantity quantity", _comparing(lambda order: order)),
    _Overload("compareTo", "int", "semver semver"),
)


def functions() -> list[Any]:
    """Return the declarations of all functions on both types, as the evaluator takes them."""
    types = {
        "text": cel.Type.STRING,
        "int": cel.Type.INT,
        "double": cel.Type.DOUBLE,
        "truth": cel.Type.BOOL,
        "quantity": cel.Type(f"{_PACKAGE}.Quantity"),
        "semver": cel.Type(f"{_PACKAGE}.Semver"),
    }
    declared: dict[str, list[Any]] = {}
    for entry in _OVERLOADS:
        overload = cel.Overload(
            f"{entry.name}({entry.takes})",
            types[entry.gives],
            [types[name] for name in entry.takes.split()],
            is_member=entry.member,
            **({} if entry.impl is None else {"impl": entry.impl}),
        )
        declared.setdefault(entry.name, []).append(overload)
    return [cel.FunctionDecl(name, overloads) for name, overloads in declared.items()]
