"""CEL selectors on devices, answered as the scheduler answers them.

The evaluator is Google's C++ one, the environment the scheduler's (dynamic-resource-allocation
cel/compile.go): the variable `device` with `driver`, `attributes`, `capacity` and
`allowMultipleAllocations`, base CEL with optional values, `cel.bind` and string functions,
quantities and semantic versions. Not there, since no selector on a GPU needs it: the functions on
lists and sets, `find`, URL, IP address, CIDR and format functions, macros with two variables,
`device` itself as a value, and the limit on run-time cost.
"""

import ast
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar

from dra_driver.allocation import cel_values
from dra_driver.allocation.devices import AttributeValue, Device, Version
from dra_driver.allocation.evaluator import cel, ext_bindings, ext_optional, ext_strings

_MISSING_KEY = re.compile(r"Key not found in map : (.*)", re.DOTALL)
_HINT = "read it as .?name.orValue(...) or ask for it with has() first"
_NO_OVERLOAD = re.compile(r"No matching overloads? found ?: ?")

# The evaluator publishes no types that a checker can read.
Environment: TypeAlias = Any
Program: TypeAlias = Any
Value: TypeAlias = Any

_T = TypeVar("_T")


class ExpressionError(Exception):
    """A selector fails on a device: the scheduler gives the Pod up."""


class CompileError(ExpressionError):
    """A selector is not valid: no device is looked at."""


@cache
def _environment() -> Environment:
    text, anything, quantity = cel.Type.STRING, cel.Type.DYN, cel.Type("kubernetes.Quantity")
    return cel.NewEnv(
        cel_values.message_pool(),
        # Dotted names make the fields of `device` known to the checker: a typing mistake in one
        # is a compile error here as in the API server.
        variables={
            "device.driver": text,
            "device.attributes": cel.Type.Map(text, cel.Type.Map(text, anything)),
            "device.capacity": cel.Type.Map(text, cel.Type.Map(text, quantity)),
            "device.allowMultipleAllocations": cel.Type.BOOL,
        },
        extensions=[
            ext_strings.ExtStrings(2),
            ext_optional.ExtOptional(),
            ext_bindings.ExtBindings(),
        ],
        functions=cel_values.functions(),
    )


class Subject:
    """A device in the form in which expressions see it; made once, asked often."""

    def __init__(self, device: Device) -> None:
        self._data: dict[str, Any] = {
            "device.driver": device.id.driver,
            "device.attributes": _by_domain(device, device.attributes, _attribute),
            "device.capacity": _by_domain(device, device.capacity, cel_values.quantity_value),
            "device.allowMultipleAllocations": device.allows_multiple,
        }
        self._activation = _environment().Activation(self._data)

    def evaluate(self, program: Program) -> Value:
        """Return the value of a compiled expression, which may be an error value."""
        value = program.eval(self._activation)
        tried: set[str] = set()
        # For the scheduler a domain that the device lacks is an empty map, while the evaluator
        # knows a missing key only. Which domains an expression asks for is known by its failing.
        while (key := _missing_key(value)) is not None and key not in tried:
            tried.add(key)
            value = program.eval(_environment().Activation(self._with_domains(tried)))
        return value

    def _with_domains(self, domains: set[str]) -> dict[str, Any]:
        empty: dict[str, Any] = {domain: {} for domain in domains}
        maps = ("device.attributes", "device.capacity")
        return self._data | {name: empty | self._data[name] for name in maps}


def matches(expression: str, subject: Subject) -> bool:
    """Whether the device fits; raises ExpressionError with the text a person is shown."""
    value = subject.evaluate(_compiled(expression))
    if value.type() == cel.Type.ERROR:
        raise ExpressionError(f"CEL runtime error: {_readable(value)}")
    plain = value.plain_value()
    if not isinstance(plain, bool):
        raise ExpressionError(
            f"CEL runtime error: true or false is wanted, found {value.type().name()}"
        )
    return plain


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> Program:
    try:
        program = _environment().compile(expression)
    except RuntimeError as error:
        first = str(error).removeprefix("INVALID_ARGUMENT: ").splitlines()[0]
        first = first.removeprefix("ERROR: <input>:").removesuffix(" (in container '')")
        raise CompileError(f"CEL compile error at {first}") from error
    result = program.return_type()
    if result not in (cel.Type.BOOL, cel.Type.DYN):
        raise CompileError(
            f"CEL compile error: must evaluate to bool or the unknown type, not {result.name()}"
        )
    return program


def _missing_key(value: Value) -> str | None:
    if value.type() != cel.Type.ERROR:
        return None
    match = _MISSING_KEY.search(str(value.value()))
    if match is None:
        return None
    try:
        key = ast.literal_eval(match[1])  # the evaluator quotes and escapes it
    except (SyntaxError, ValueError):
        key = match[1]
    return key if isinstance(key, str) else None


def _readable(value: Value) -> str:
    key = _missing_key(value)
    if key is not None:
        return f"no such key: {key} ({_HINT})"
    text = str(value.value()).partition(": ")[2] or str(value.value())
    return _NO_OVERLOAD.sub("no such overload: ", text)


def _by_domain(
    device: Device, values: Mapping[str, _T], convert: Callable[[_T], object]
) -> dict[str, dict[str, object]]:
    domains: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        domain, slash, bare = name.partition("/")
        if not slash:
            domain, bare = device.id.driver, name
        domains.setdefault(domain, {})[bare] = convert(value)
    return domains


def _attribute(value: AttributeValue) -> object:
    if not isinstance(value, Version):
        return value
    try:
        return cel_values.semver_value(value.text)
    except ValueError as error:
        raise ExpressionError(f"attribute: parse semantic version: {error}") from error
