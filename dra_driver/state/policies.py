"""What the node configuration said when shares were given out; it stays while they are held.

A GPU that is published otherwise all at once, as one that is not shared, would be free for a
scheduler that counts shares by what is published. Records have what was said then, so that a
restart changes nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from dra_driver.model.gpu import GpuPolicy, Partitioning

_POLICY: Final = TypeAdapter(GpuPolicy)


def stored_policy(policy: GpuPolicy) -> dict[str, Any]:
    """Give what stays of a policy while shares are held, as a record has it."""
    found: dict[str, Any] = _POLICY.dump_python(
        kept_policy(GpuPolicy(), policy), mode="json", exclude_defaults=True
    )
    return found


def read_policy(stored: dict[str, Any] | None) -> GpuPolicy | None:
    """Read a stored policy; None: there is none that this release understands."""
    if stored is None:
        return None
    try:
        return _POLICY.validate_python(stored)
    except ValidationError:
        return None


def kept_policy(now: GpuPolicy, before: GpuPolicy) -> GpuPolicy:
    """Policy of now with what was before, as far as other devices would be published."""
    kept = replace(
        now,
        shares=before.shares,
        sharing=before.sharing,
        required_limit=before.required_limit,
        named_by_uuid=before.named_by_uuid,
    )
    if Partitioning.DYNAMIC not in (now.partitioning, before.partitioning):
        return kept  # others than claims cut the GPU, and they wait by themselves
    return replace(
        kept,
        partitioning=before.partitioning,
        layout=before.layout,
        allow_reset=before.allow_reset,
    )


def changed_fields(one: GpuPolicy, other: GpuPolicy) -> Iterator[str]:
    """Yield the fields of the node configuration in which two policies differ."""
    fields = {
        "partitioning": ("partitioning", "layout", "allow_reset"),
        "shares": ("shares",),
        "sharing": ("sharing",),
        "requireMemoryLimit": ("required_limit",),
        "naming": ("named_by_uuid",),
    }
    for field, names in fields.items():
        if any(getattr(one, name) != getattr(other, name) for name in names):
            yield field
