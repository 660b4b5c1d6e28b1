"""Quantities in Kubernetes JSON objects: every complaint names the object and the field."""

from decimal import Decimal

from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.model.quantity import Quantity

_LARGEST = Decimal((1 << 63) - 1)


def quantity_of(fields: Fields, key: str) -> Quantity:
    """Return the quantity of that key."""
    return parsed(fields.text(key), f"{fields.where}.{key}")


def quantities_of(fields: Fields, key: str) -> dict[str, Quantity]:
    """Return the object of that key, whose values are quantities."""
    child = fields.child(key)
    return {name: quantity_of(child, name) for name in fields.raw(key)}


def parsed(text: str, where: str) -> Quantity:
    """Read a quantity that stands at that place."""
    try:
        return capped(text)
    except ValueError as error:
        raise ObjectInvalid(f"{where}: {error}") from error


def capped(text: str) -> Quantity:
    """Read a quantity; as for Kubernetes, none is larger than 2^63-1. Raises ValueError."""
    return Quantity(max(-_LARGEST, min(_LARGEST, Quantity.parse(text).value)))
