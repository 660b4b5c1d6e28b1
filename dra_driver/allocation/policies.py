"""Request policies: what a claim takes of a capacity that it asks for, or does not ask for.

Kubernetes 1.37, structured/internal/incubating/consumable_capacity.go, with
DRAFractionalCapacityRange, which is on by default there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from dra_driver.allocation.fields import Fields, ObjectInvalid
from dra_driver.allocation.quantities import parsed, quantity_of
from dra_driver.model.quantity import Quantity

_LARGEST = (1 << 63) - 1
_MILLI = 1000


class NotCountable(Exception):
    """A wish that the scheduler can't count in its integers: it gives the Pod up."""


@dataclass(frozen=True, slots=True)
class Range:
    """Amounts from `least` on, in steps."""

    least: Quantity
    most: Quantity | None = None
    step: Quantity | None = None

    @classmethod
    def parse(cls, fields: Fields) -> "Range":
        """Read a `validRange`; raises ObjectInvalid that names the field."""
        least = quantity_of(fields, "min")
        most = quantity_of(fields, "max") if "max" in fields else None
        step = quantity_of(fields, "step") if "step" in fields else None
        if step is not None and step.value <= 0:
            raise ObjectInvalid(f"{fields.where}.step: more than 0 is wanted, found {step}")
        return cls(least, most, step)

    def rounded(self, wanted: Quantity) -> Quantity:
        """Return the least allowed amount that is enough, even if it is above `most`.

        Counted in milli units if they can express the range, else in whole ones. Raises
        NotCountable for a wish that passes either.
        """
        if wanted < self.least:
            return self.least
        if self.step is None:
            return wanted
        scale = _MILLI if all(_in_milli(end) for end in self._ends()) else 1
        if scale == _MILLI and not _in_milli(wanted):
            raise NotCountable(f"{wanted.value} can't be counted in milli units")
        least, step, goal = (_scaled(each, scale) for each in (self.least, self.step, wanted))
        total = least + step * -((least - goal) // step)
        if max(goal, total) > _LARGEST:
            raise NotCountable(f"{wanted} is more than the scheduler can count")
        return Quantity(Decimal(total) / scale)

    def _ends(self) -> Iterator[Quantity]:
        yield from (end for end in (self.least, self.most, self.step) if end is not None)


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How claims may consume a capacity of a device that several share."""

    default: Quantity | None = None  # what a claim takes that does not ask
    values: tuple[Quantity, ...] = ()  # allowed amounts, growing
    limits: Range | None = None

    @classmethod
    def parse(cls, fields: Fields) -> "RequestPolicy":
        """Read a `requestPolicy`; raises ObjectInvalid that names the field."""
        return cls(
            default=quantity_of(fields, "default") if "default" in fields else None,
            values=tuple(
                parsed(text, f"{fields.where}.validValues[{index}]")
                for index, text in enumerate(fields.texts("validValues"))
            ),
            limits=Range.parse(fields.child("validRange")) if "validRange" in fields else None,
        )

    def rounded(self, wanted: Quantity) -> Quantity:
        """Return the least allowed amount that is enough; raises NotCountable."""
        if self.limits is not None:
            return self.limits.rounded(wanted)
        return next((value for value in self.values if wanted <= value), wanted)

    def objection(self, amount: Quantity) -> str:
        """Say why a claim can't take that much of a device however free it is; empty: it can."""
        if amount == self.default:
            return ""
        most = self.limits.most if self.limits is not None else max(self.values, default=None)
        if most is not None and amount > most:
            return f"{amount} wanted, one claim may have {most}"
        return ""


def _in_milli(amount: Quantity) -> bool:
    milli = amount.value * _MILLI
    return milli == milli.to_integral_value() and -_LARGEST - 1 <= milli <= _LARGEST


def _scaled(amount: Quantity, scale: int) -> int:
    return int((amount.value * scale).to_integral_value(rounding=ROUND_CEILING))
