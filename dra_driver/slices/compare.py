"""Whether two specs mean the same: the API server rewrites what it stores.

`81920Mi` comes back as `80Gi`, empty lists do not come back at all, and taints get a time.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.model import Quantity

_AMOUNTS: Final = frozenset(("value", "default", "min", "max", "step"))


def same_spec(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether `found` says what is `wanted`; a taint's time counts only where one is wanted."""
    return _text(wanted) == _text(found) or _same(wanted, found, "")


def _text(spec: Mapping[str, Any]) -> str:
    """Text that only equal specs have; most come back as they were sent, and this is quick."""
    return json.dumps(spec, sort_keys=True)


def _same(wanted: Any, found: Any, key: str) -> bool:  # noqa: ANN401 - any JSON value
    if _is_empty(wanted) or _is_empty(found):
        return _is_empty(wanted) and _is_empty(found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        keys = wanted.keys() | found.keys()
        if key == "taints" and "timeAdded" not in wanted:
            keys -= {"timeAdded"}
        names = dict.fromkeys(keys, "") if key == "taints" else {k: k for k in keys}
        return all(_same(wanted.get(k), found.get(k), names[k]) for k in keys)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(
            _same(a, b, key) for a, b in zip(wanted, found, strict=True)
        )
    if key in _AMOUNTS and isinstance(wanted, str) and isinstance(found, str):
        return _same_amount(wanted, found)
    return type(wanted) is type(found) and bool(wanted == found)


def _same_amount(wanted: str, found: str) -> bool:
    try:
        return Quantity.parse(wanted) == Quantity.parse(found)
    except ValueError:
        return wanted == found


def _is_empty(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(member) for member in value.values())
    return value is None or value == []
