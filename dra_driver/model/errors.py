"""Every failure this driver can explain, as one tree.

A branch says what the caller must do, a leaf says what happened. Each leaf has a reason word that
appears in the gRPC error text, in the Event on the claim, in the metric label and in
`docs/troubleshooting.md`.

    DriverError
    ├── TryAgain    nothing is wrong with the claim or the node: the same call may succeed later
    │   ├── ApiUnavailable        the API server did not answer
    │   ├── ClaimChanged          the claim was replaced by another of the same name
    │   ├── DeviceInUse           another claim holds the device and has not been unprepared yet
    │   ├── DriverNotReady        NVML cannot be loaded or initialised, or has not been asked yet
    │   ├── HardwareBusy          an NVML call did not answer in time, or somebody uses the GPU
    │   └── Cancelled             the caller went away before the work was done
    ├── BadClaim    the claim cannot work on this node as it is
    │   ├── ClaimNotAllocated     the claim has no allocation
    │   ├── ClaimNotFound         there is no such claim
    │   ├── DeviceNotFound        the allocated device does not exist here (any more)
    │   ├── DeviceUnhealthy       the allocated device is sick
    │   └── ConfigInvalid         an opaque config is malformed or does not fit the device
    ├── BadNode     an administrator must act on this node
    │   ├── DriverFilesMissing    files or device nodes of the GPU driver are not in place
    │   ├── HardwareFailed        an NVML call answered with an error that does not pass by itself
    │   ├── StorageFailed         a folder cannot be read or written
    │   ├── RecordDamaged         a stored record is unreadable and may hide a device in use
    │   ├── PermissionMissing     the API server or the kernel refused us
    │   └── SettingInvalid        a flag or the node configuration is wrong
    └── Bug         this driver broke its own rules
"""

from typing import ClassVar


class DriverError(Exception):
    """Base of all failures that are explained to a person in one line."""

    reason: ClassVar[str] = "Internal"

    def __init__(self, message: str) -> None:
        """Keep `message`: what was wanted, what was found, what to do. One line."""
        super().__init__(" ".join(message.split()))


class TryAgain(DriverError):
    """The same call may succeed later without anybody doing anything."""

    reason = "TryAgain"


class ApiUnavailable(TryAgain):
    """The API server did not answer."""

    reason = "ApiUnavailable"


class ClaimChanged(TryAgain):
    """The claim was replaced by another of the same name."""

    reason = "ClaimChanged"


class DeviceInUse(TryAgain):
    """Another claim holds the device and has not been unprepared yet."""

    reason = "DeviceInUse"


class DriverNotReady(TryAgain):
    """NVML cannot be loaded or initialised, or has not been asked yet."""

    reason = "DriverNotReady"


class HardwareBusy(TryAgain):
    """An NVML call did not answer in time, or somebody else uses the GPU."""

    reason = "HardwareBusy"


class Cancelled(TryAgain):
    """The caller went away before the work was done."""

    reason = "Cancelled"


class BadClaim(DriverError):
    """The claim cannot work on this node as it is."""

    reason = "BadClaim"


class ClaimNotAllocated(BadClaim):
    """The claim has no allocation."""

    reason = "ClaimNotAllocated"


class ClaimNotFound(BadClaim):
    """There is no such claim."""

    reason = "ClaimNotFound"


class DeviceNotFound(BadClaim):
    """The allocated device does not exist here, or not any more."""

    reason = "DeviceNotFound"


class DeviceUnhealthy(BadClaim):
    """The allocated device is sick."""

    reason = "DeviceUnhealthy"


class ConfigInvalid(BadClaim):
    """An opaque config is malformed or does not fit the device."""

    reason = "ConfigInvalid"


class BadNode(DriverError):
    """An administrator must act on this node."""

    reason = "BadNode"


class DriverFilesMissing(BadNode):
    """Files or device nodes of the GPU driver are not where they should be."""

    reason = "DriverFilesMissing"


class HardwareFailed(BadNode):
    """An NVML call answered with an error that does not pass by itself."""

    reason = "HardwareFailed"


class StorageFailed(BadNode):
    """A folder cannot be read or written."""

    reason = "StorageFailed"


class RecordDamaged(BadNode):
    """A stored record is unreadable and may hide a device in use."""

    reason = "RecordDamaged"


class PermissionMissing(BadNode):
    """The API server or the kernel refused us."""

    reason = "PermissionMissing"


class SettingInvalid(BadNode):
    """A flag or the node configuration is wrong."""

    reason = "SettingInvalid"


class Bug(DriverError):
    """Our own rules are broken: report it."""

    reason = "Bug"
