"""Kubernetes quantities of whole units, such as `80Gi` or `500m`."""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import total_ordering

_SUFFIXES: dict[str, Decimal] = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
_PATTERN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,3}|[numkMGTPE]|[KMGTPE]i)?")
_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount, equal to every other spelling of it: `80Gi` == `81920Mi`.

    Grammar: apimachinery pkg/api/resource (Quantity).
    """

    value: Decimal

    @classmethod
    def of(cls, amount: int) -> "Quantity":
        """Quantity of a whole amount, such as a number of bytes."""
        return cls(Decimal(amount))

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Read Kubernetes' notation; raises ValueError that names the text."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a quantity such as 10Gi, 500M or 4")
        number, suffix = match.group(1), match.group(2) or ""
        try:
            if suffix[:1] in ("e", "E") and suffix not in _SUFFIXES:
                return cls(Decimal(number + suffix))
            return cls(Decimal(number) * _SUFFIXES[suffix])
        except InvalidOperation as error:
            raise ValueError(f"{text!r} is not a quantity such as 10Gi, 500M or 4") from error

    def __str__(self) -> str:
        """Shortest exact binary notation, else plain or milli units, else decimals."""
        whole = int(self.value)
        if whole != self.value:
            milli = self.value * 1000
            return f"{int(milli)}m" if milli == int(milli) else format(self.value.normalize(), "f")
        for suffix in _BINARY:
            unit = int(_SUFFIXES[suffix])
            if whole and whole % unit == 0:
                return f"{whole // unit}{suffix}"
        return str(whole)

    def __int__(self) -> int:
        """Whole units, rounded up as Kubernetes rounds."""
        return int(self.value.to_integral_value(rounding="ROUND_CEILING"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: "Quantity") -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)
