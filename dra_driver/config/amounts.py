"""Amounts of memory as people write them: Kubernetes quantities, kept as whole bytes."""

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer

from dra_driver.config.strict import shown
from dra_driver.config.told import Told
from dra_driver.model import Quantity

MIB: Final = 2**20
_MOST: Final = 2**63 - 1  # what the API server takes
_QUANTITY: Final = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?$"
_WRITTEN: Final[Any] = Annotated[str, Field(pattern=_QUANTITY)] | Annotated[int, Field(ge=0)]


def bytes_of(value: object) -> int:
    """Read a quantity, which JSON may have as a plain number; raises ValueError."""
    is_written = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_written:
        raise ValueError(f"{shown(value)} is not allowed; allowed: a quantity such as 10Gi or 500M")
    amount = Quantity.parse(str(value))
    if not -_MOST <= amount.value <= _MOST:
        raise ValueError(f"{shown(value)} is not allowed; allowed: {_MOST} bytes or less")
    return int(amount)


def text_of(amount: int) -> str:
    """Write it as a quantity: `10Gi`."""
    return str(Quantity.of(amount))


def _client_limit(value: object) -> int:
    """Whole MiB, rounded down, as the control daemon of MPS takes them."""
    amount = bytes_of(value)
    if amount < MIB:
        raise ValueError(f"invalid limit: value set too low: {shown(value)}; allowed: 1Mi or more")
    return amount // MIB * MIB


def _room(value: object) -> int:
    amount = bytes_of(value)
    if amount < MIB:
        raise ValueError(f"{shown(value)} is not allowed; allowed: 1Mi or more")
    return amount


def _reserve(value: object) -> int:
    amount = bytes_of(value)
    if amount < 0:
        raise ValueError(f"{shown(value)} is not allowed; allowed: 0 or more")
    return amount


_AsText: Final = PlainSerializer(text_of, return_type=str)
_ONE_OR_MORE: Final = Told(values="a quantity of `1Mi` or more")

ClientLimit: TypeAlias = Annotated[
    int, BeforeValidator(_client_limit, json_schema_input_type=_WRITTEN), _AsText, _ONE_OR_MORE
]
Room: TypeAlias = Annotated[
    int, BeforeValidator(_room, json_schema_input_type=_WRITTEN), _AsText, _ONE_OR_MORE
]
Reserve: TypeAlias = Annotated[
    int,
    BeforeValidator(_reserve, json_schema_input_type=_WRITTEN),
    _AsText,
    Told(values="a quantity"),
]
