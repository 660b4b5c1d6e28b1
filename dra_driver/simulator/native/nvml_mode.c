/* NVML: compute mode, persistence mode, MIG mode; and what nvidia-smi does without NVML. */
#include "call.h"

/* On a GPU with MIG enabled compute modes belong to the MIG devices (nvml.h). */
static nvmlReturn_t compute_mode_of(const struct call *call, uint32_t **mode)
{
    if (!call->ci && call->gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    *mode = call->ci ? &call->ci->compute_mode : &call->gpu->compute_mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    struct call call = {0};
    uint32_t *kept;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = mode ? compute_mode_of(&call, &kept) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *mode = sim_session_lives(call.sim, call.gpu) ? (nvmlComputeMode_t)*kept
                                                      : NVML_COMPUTEMODE_DEFAULT;
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    struct call call = {0};
    uint32_t *kept;
    call_note(&call, "mode=%u", mode);
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (mode >= NVML_COMPUTEMODE_COUNT)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    /* Exclusive-thread is no more since CUDA 8; the driver refuses it. */
    result = mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD ? NVML_ERROR_NOT_SUPPORTED
                                                       : compute_mode_of(&call, &kept);
    if (result == NVML_SUCCESS)
        *kept = mode;
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (mode)
        *mode = call.gpu->persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return call_end(&call, mode ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    struct call call = {0};
    call_note(&call, "mode=%u", mode);
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (mode != NVML_FEATURE_ENABLED && mode != NVML_FEATURE_DISABLED)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    call.gpu->persistence = mode;
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t mig_supported(const struct call *call)
{
    return call->model->abilities & SIM_MIG ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode,
                                  unsigned int *pendingMode)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = currentMode && pendingMode ? mig_supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *currentMode = call.gpu->mig_current;
        *pendingMode = call.gpu->mig_pending;
    }
    return call_end(&call, result);
}

/* Also where a switch needs no reset the activation may fail: passed-through GPUs answer
 * RESET_REQUIRED, busy ones IN_USE (nvml.h). The mode is pending then. */
static nvmlReturn_t activate(const struct call *call, unsigned int mode)
{
    uint32_t hang_ms;
    nvmlReturn_t fault =
        sim_fault_use(call->sim, SIM_FAULT_ACTIVATION, call->gpu->serial, &hang_ms);
    if (fault == NVML_SUCCESS)
        return sim_mig_switch(call->sim, call->gpu, mode, sim_client_others(call->sim, call->gpu));
    call->gpu->mig_pending = mode;
    return fault;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
                                  nvmlReturn_t *activationStatus)
{
    struct call call = {0};
    call_note(&call, "mode=%u", mode);
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!activationStatus || (mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE))
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    result = mig_supported(&call);
    if (result == NVML_SUCCESS) {
        *activationStatus = activate(&call, mode);
        call_note(&call, "mode=%u activation=%s", mode, sim_error_name(*activationStatus));
    }
    return call_end(&call, result);
}

/* Volta and later; a GPU that is partitioned shares by partitions. */
static nvmlReturn_t timeslice_supported(const struct call *call)
{
    return call->model->abilities & SIM_TIME_SLICE && !call->gpu->mig_current
               ? NVML_SUCCESS
               : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t sim_get_timeslice(nvmlDevice_t device, unsigned int *value)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = value ? timeslice_supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *value = sim_session_lives(call.sim, call.gpu) ? call.gpu->timeslice : 0;
    return call_end(&call, result);
}

nvmlReturn_t sim_set_timeslice(nvmlDevice_t device, unsigned int value)
{
    struct call call = {0};
    call_note(&call, "timeslice=%u", value);
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = value <= 3 ? timeslice_supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        call.gpu->timeslice = value;
    return call_end(&call, result);
}

nvmlReturn_t sim_device_reset(nvmlDevice_t device)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (sim_client_others(call.sim, call.gpu) ||
        sim_busy(call.sim, call.gpu, SIM_NONE, SIM_NONE))
        return call_end(&call, NVML_ERROR_IN_USE);
    sim_gpu_reset(call.sim, call.gpu);
    sim_nodes_sync_gpu(call.sim, call.gpu);
    return call_end(&call, NVML_SUCCESS);
}
