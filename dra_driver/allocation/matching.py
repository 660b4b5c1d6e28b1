"""Whether a device is what a request means: class, selectors, taints, constraints."""

from collections.abc import Mapping, Sequence

from dra_driver.allocation.claims import Alternative, Claim, Constraint, DeviceClass
from dra_driver.allocation.devices import AttributeValue, Device, DeviceId
from dra_driver.allocation.expression import CompileError, ExpressionError, Subject, matches
from dra_driver.allocation.outcome import Cause, Grant, Rejection


class GiveUp(Exception):
    """The scheduler ends the whole attempt here instead of trying the next device.

    It ends one search and never leaves this package.
    """

    def __init__(self, claim: Claim, message: str) -> None:
        super().__init__(message)
        self.claim = claim


class Matcher:
    """Judges devices by selectors; each question is answered once."""

    def __init__(self, classes: Mapping[str, DeviceClass]) -> None:
        self._classes = classes
        self._subjects: dict[DeviceId, Subject] = {}
        self._answers: dict[tuple[str, str, DeviceId], Rejection | None] = {}

    def judge(self, claim: Claim, alternative: Alternative, device: Device) -> Rejection | None:
        """Return why class or selectors rule the device out; raises GiveUp if one fails."""
        key = (str(claim), alternative.name, device.id)
        if key not in self._answers:
            self._answers[key] = self._judge(claim, alternative, device)
        return self._answers[key]

    def _judge(self, claim: Claim, alternative: Alternative, device: Device) -> Rejection | None:
        device_class = self._classes[alternative.class_name]
        questions = (
            (f"class {device_class.name}", Cause.CLASS_SELECTOR, device_class.selectors),
            (f"request {alternative.name}", Cause.REQUEST_SELECTOR, alternative.selectors),
        )
        for owner, cause, selectors in questions:
            for index, selector in enumerate(selectors):
                try:
                    fits = matches(selector, self._subject(device))
                except CompileError as error:
                    raise GiveUp(claim, f"{owner}: selector #{index}: {error}") from error
                except ExpressionError as error:
                    where = f"{owner}: selector #{index} on device {device.id}"
                    raise GiveUp(claim, f"{where}: {error}") from error
                if not fits:
                    return Rejection(device.id, cause, f"{owner}: selector #{index}: {selector}")
        return None

    def _subject(self, device: Device) -> Subject:
        if device.id not in self._subjects:
            self._subjects[device.id] = Subject(device)
        return self._subjects[device.id]


def taint_objection(alternative: Alternative, device: Device) -> Rejection | None:
    """Return the taint that keeps the device from a request that does not tolerate it."""
    for taint in device.taints:
        tolerated = any(toleration.covers(taint) for toleration in alternative.tolerations)
        if taint.prevents_allocation and not tolerated:
            return Rejection(device.id, Cause.TAINTED, f"taint {taint}")
    return None


def constraint_objection(
    constraints: Sequence[Constraint],
    alternative: Alternative,
    device: Device,
    granted: Sequence[tuple[Grant, Device]],
) -> Rejection | None:
    """Return the constraint that the device would break beside what the claim already has."""
    for constraint in constraints:
        if not constraint.concerns(alternative.name):
            continue
        value = device.attribute(constraint.attribute)
        if value is None:
            detail = f"no attribute {constraint.attribute}, which a constraint needs"
            return Rejection(device.id, Cause.CONSTRAINT, detail)
        others = [
            other.attribute(constraint.attribute)
            for grant, other in granted
            if constraint.concerns(grant.alternative.name)
        ]
        equal = [_same(value, other) for other in others]
        if constraint.same and not all(equal):
            detail = f"{constraint.attribute} differs from that of the devices before it"
            return Rejection(device.id, Cause.CONSTRAINT, detail)
        if not constraint.same and any(equal):
            detail = f"{constraint.attribute} is that of a device before it"
            return Rejection(device.id, Cause.CONSTRAINT, detail)
    return None


def _same(left: AttributeValue, right: AttributeValue | None) -> bool:
    """Whether type and value agree; for Python alone, true would be 1."""
    return type(left) is type(right) and left == right
