"""A GPU kept from all claims while a layout is applied to it: a record that is no claim's."""

from typing import Final

from dra_driver.model.claim import ClaimRef
from dra_driver.state.record import ClaimRecord, DeviceRecord

_PREFIX: Final = "layout-"


def reservation(gpu_uuid: str, minor: int, name: str, layout: str) -> ClaimRecord:
    """Record that keeps a whole GPU from all claims; `name` is its device name.

    No claim can have such a UID: the API server makes them, and has no hand in a namespace "".
    """
    device = DeviceRecord(
        request="", pool="", device=name, gpu_uuid=gpu_uuid, gpu_minor=minor, uuid=gpu_uuid
    )
    return ClaimRecord(
        namespace="",
        name=f"layout {layout}".strip(),
        uid=reservation_uid(gpu_uuid),
        devices=(device,),
    )


def reservation_uid(gpu_uuid: str) -> str:
    """UID of the record that keeps this GPU from all claims."""
    return _PREFIX + gpu_uuid.lower()


def is_reservation(ref: ClaimRef) -> bool:
    """Whether it is no claim, but a layout that is being applied."""
    return not ref.namespace and is_reservation_uid(ref.uid)


def is_reservation_uid(uid: str) -> bool:
    """Whether a record of that UID, readable or not, is no claim's."""
    return uid.startswith(f"{_PREFIX}gpu-")
