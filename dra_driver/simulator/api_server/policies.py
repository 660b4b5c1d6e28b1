"""Rules by which the API server takes or refuses the request policy of a capacity.

From validateRequestPolicy in pkg/apis/resource/validation/validation.go of releases 1.34 to 1.37.
Written apart from the driver's own checks on purpose: each is a test of the other.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from dra_driver.model import Quantity

Violation = tuple[str, str]
Json = Mapping[str, Any]

_MAX_VALUES: Final = 10
_INT64: Final = 2**63


def policy_violations(path: str, capacity: Json) -> Iterator[Violation]:
    """Yield (field, what is wrong with it) for the `requestPolicy` of one capacity."""
    policy = capacity.get("requestPolicy") or {}
    amounts = {
        f"{path}.value": capacity.get("value"),
        f"{path}.requestPolicy.default": policy.get("default"),
        **{
            f"{path}.requestPolicy.validRange.{key}": (policy.get("validRange") or {}).get(key)
            for key in ("min", "max", "step")
        },
        **{
            f"{path}.requestPolicy.validValues[{index}]": text
            for index, text in enumerate(policy.get("validValues") or ())
        },
    }
    undecodable = [(place, text) for place, text in amounts.items() if not _decodes(text)]
    for place, text in undecodable:
        yield place, f"cannot decode {text!r} as a quantity"
    if not undecodable and capacity.get("value") is not None:
        yield from _policy(f"{path}.requestPolicy", policy, _value(capacity["value"]))


def _policy(path: str, policy: Json, capacity: Decimal) -> Iterator[Violation]:
    values, limits = policy.get("validValues") or (), policy.get("validRange")
    if values and limits is not None:
        yield path, 'Forbidden: cannot specify "validValues" and "validRange" at the same time'
    elif (values or limits is not None) and policy.get("default") is None:
        yield f"{path}.default", "Required value"
    elif values:
        yield from _values(f"{path}.validValues", policy["default"], values, capacity)
    elif limits is not None:
        yield from _range(f"{path}.validRange", _value(policy["default"]), limits, capacity)


def _values(path: str, default: str, texts: list[str], capacity: Decimal) -> Iterator[Violation]:
    values = [_value(text) for text in texts]
    if values != sorted(values):
        yield path, "values must be sorted in ascending order"
    if len(set(values)) < len(values):
        yield path, "Duplicate value"
    if len(values) > _MAX_VALUES:
        yield path, f"Too many: must have at most {_MAX_VALUES} items"
    if any(value > capacity for value in values):
        yield path, "option is larger than capacity value"
    if _value(default) not in values:
        yield path, "default value is not valid according to the requestPolicy"


def _range(path: str, default: Decimal, limits: Json, capacity: Decimal) -> Iterator[Violation]:
    if limits.get("min") is None:
        yield f"{path}.min", "Required value"
        return
    least = _value(limits["min"])
    most = None if limits.get("max") is None else _value(limits["max"])
    if least > capacity:
        yield f"{path}.min", "min is larger than capacity value"
    if default < least:
        yield f"{path}.default", "default is less than min"
    if most is not None and least > most:
        yield f"{path}.max", "min is larger than max"
    if most is not None and most > capacity:
        yield f"{path}.max", "max is larger than capacity value"
    if most is not None and default > most:
        yield f"{path}.default", "default is more than max"
    if limits.get("step") is not None:
        ends = (default, *(() if most is None else (most,)))
        yield from _step(f"{path}.step", least, _value(limits["step"]), ends, capacity)


def _step(
    path: str, least: Decimal, step: Decimal, ends: tuple[Decimal, ...], capacity: Decimal
) -> Iterator[Violation]:
    if step <= 0:
        yield path, "must be greater than zero"
        return
    if least + step > capacity:
        yield path, "one step is larger than capacity value"
    if any(not 0 <= amount < _INT64 for amount in (least, step, *ends)):
        yield path, "must be 0 to 9223372036854775807"
    elif any((end - least) % step for end in ends):
        yield path, "value is not a multiple of a given step"


def _decodes(text: object) -> bool:
    if text is None:
        return True
    try:
        return isinstance(text, str) and Quantity.parse(text) is not None
    except ValueError:
        return False


def _value(text: str) -> Decimal:
    return Quantity.parse(text).value
