"""What the API server would refuse in the request policy of a capacity, told before it is sent.

Rules of releases 1.34 to 1.37, the strictest of them where they differ
(pkg/apis/resource/validation/validation.go, validateRequestPolicy). Releases before 1.37 count a
range in whole units only, so nothing else is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from dra_driver.model import Quantity

_MAX_VALID_VALUES: Final = 10
_LARGEST: Final = 2**63 - 1


def check_policy(value: Quantity, policy: Mapping[str, Any]) -> str | None:
    """Why the API server would refuse this policy of a capacity that has `value`, or None."""
    try:
        wrong = next(_wrong(value, policy), None)
    except ValueError as error:
        wrong = str(error)
    return None if wrong is None else f"requestPolicy: {wrong}"


def _wrong(value: Quantity, policy: Mapping[str, Any]) -> Iterator[str]:
    default = _whole(policy, "default")
    values, limits = policy.get("validValues"), policy.get("validRange")
    if values and limits is not None:
        yield "has both validValues and validRange"
    elif values:
        yield from _wrong_values(values, default, value)
    elif limits is not None:
        yield from _wrong_range(limits, default, value)


def _wrong_values(texts: Sequence[str], default: int | None, value: Quantity) -> Iterator[str]:
    values = [_parsed(text, f"validValues[{index}]") for index, text in enumerate(texts)]
    if len(values) > _MAX_VALID_VALUES:
        yield f"validValues: more than {_MAX_VALID_VALUES}"
    if any(low >= high for low, high in pairwise(values)):
        yield "validValues: must grow from each to the next"
    if max(values) > value.value:
        yield f"validValues: more than the capacity of {value}"
    if default not in values:
        yield "default: must be one of validValues"


def _wrong_range(limits: Mapping[str, Any], default: int | None, value: Quantity) -> Iterator[str]:
    least, most, step = (_whole(limits, key) for key in ("min", "max", "step"))
    if default is None or least is None:
        yield "validRange: needs min, and a default beside it"
        return
    top = value.value if most is None else most
    if not least <= default <= top <= value.value:
        yield f"validRange: min, default, max and the capacity of {value} are not in this order"
    if step is None:
        return
    if step < 1 or least + step > value.value:
        yield "validRange: step: must be at least 1, and one step above min within the capacity"
    elif (default - least) % step or (most is not None and (most - least) % step):
        yield "validRange: step: default and max must be whole steps above min"


def _whole(fields: Mapping[str, Any], key: str) -> int | None:
    return None if fields.get(key) is None else _parsed(fields[key], key)


def _parsed(text: object, field: str) -> int:
    """Whole amount that stands in that field; raises ValueError that names it."""
    if not isinstance(text, str):
        raise ValueError(f"{field}: {text!r} is not a quantity")  # noqa: TRY004 - as for a bad text
    try:
        amount = Quantity.parse(text).value
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    if amount != int(amount) or not 0 <= amount <= _LARGEST:
        raise ValueError(f"{field}: {text!r} is not a whole number of 63 bits")
    return int(amount)
