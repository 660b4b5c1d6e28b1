"""What a GPU that answers says of its own state."""

from typing import Final

import pynvml

from dra_driver.model import Health, HealthState, combined
from dra_driver.nvml import reads
from dra_driver.nvml.calls import Handle
from dra_driver.nvml.errors import CallFailed, Notes

RECOVERY_ACTION: Final = "recovery-action"
ROW_REMAP_FAILED: Final = "row-remap-failed"

_ACTION: Final = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_REMAP_FAILURE: Final = pynvml.NVML_FI_DEV_REMAPPED_FAILURE

# nvml.h, nvmlDeviceGpuRecoveryAction_t: a word for each, and what it asks for
_ACTIONS: Final[dict[int, tuple[str, str]]] = {
    1: ("gpu-reset", "a reset of the GPU"),
    2: ("node-reboot", "a reboot of the node"),
    3: ("drain-p2p", "an end of all peer-to-peer traffic"),
    4: ("drain-and-reset", "a reset of the GPU when its programs have ended"),
    5: ("recover-imex-domain", "a recovery of the IMEX domain"),
    6: ("bus-reset", "a reset of the GPU's PCIe bus"),
    7: ("system-reboot", "a reboot of the system"),
}


def condition(device: Handle, known: Health, notes: Notes) -> Health:
    """Health by the GPU's own words; what a failed call leaves open stays as `known`.

    GPU drivers that have no such words leave it at healthy.
    """
    try:
        values = reads.fields(device, _ACTION, _REMAP_FAILURE)
    except CallFailed as failure:
        notes.failed(failure, "what it says of its own health is not known")
        if failure.absent:
            return Health()
        own = (RECOVERY_ACTION, ROW_REMAP_FAILED)
        return combined(entry for entry in known.entries() if entry.reason in own)
    return combined((_action(values.get(_ACTION, 0)), _remapping(values.get(_REMAP_FAILURE, 0))))


def _action(number: int) -> Health:
    if number == pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
        return Health()
    word, what = _ACTIONS.get(number, (f"action-{number}", f"recovery action {number}"))
    message = f"the GPU driver asks for {what}"
    return Health(HealthState.UNHEALTHY, RECOVERY_ACTION, message, value=word)


def _remapping(failed: int) -> Health:
    if not failed:
        return Health()
    message = "a row of its memory could not be remapped; the GPU must be replaced"
    return Health(HealthState.UNHEALTHY, ROW_REMAP_FAILED, message)
