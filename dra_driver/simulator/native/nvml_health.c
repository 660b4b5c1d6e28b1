/* NVML: ECC errors, row remapping, recovery action, and the same as field values. */
#include <string.h>
#include <time.h>

#include "call.h"

static nvmlReturn_t ecc_supported(const struct call *call)
{
    return call->model->abilities & SIM_ECC ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = current && pending ? ecc_supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *current = *pending = NVML_FEATURE_ENABLED;
    return call_end(&call, result);
}

/* Only double-bit errors are simulated; the others are counted as none. */
static nvmlReturn_t ecc_count(const struct call *call, nvmlMemoryErrorType_t type,
                              nvmlEccCounterType_t counter, unsigned long long *count)
{
    if (!count || type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = ecc_supported(call);
    if (result != NVML_SUCCESS)
        return result;
    if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        *count = 0;
    else
        *count = counter == NVML_VOLATILE_ECC ? call->gpu->ecc_volatile : call->gpu->ecc_aggregate;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType,
                                         unsigned long long *eccCounts)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return call_end(&call, ecc_count(&call, errorType, counterType, eccCounts));
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                             nvmlEccCounterType_t counterType,
                                             nvmlMemoryLocation_t locationType,
                                             unsigned long long *count)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = ecc_count(&call, errorType, counterType, count);
    if (result == NVML_SUCCESS && locationType != NVML_MEMORY_LOCATION_DEVICE_MEMORY)
        *count = 0; /* simulated errors are in device memory */
    return call_end(&call, result);
}

/* Not on GPUs with MIG instances, says nvml.h. */
static nvmlReturn_t remap_supported(const struct call *call)
{
    return call->model->abilities & SIM_ROW_REMAP && !sim_has_instances(call->gpu)
               ? NVML_SUCCESS
               : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows,
                                       unsigned int *uncRows, unsigned int *isPending,
                                       unsigned int *failureOccurred)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = corrRows && uncRows && isPending && failureOccurred ? remap_supported(&call)
                                                                 : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *corrRows = 0;
        *uncRows = call.gpu->remapped_rows;
        *isPending = call.gpu->remap_pending;
        *failureOccurred = 0;
    }
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *repairStatus)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!repairStatus)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (repairStatus->version != nvmlRepairStatus_v1)
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (call.model->architecture < NVML_DEVICE_ARCH_AMPERE)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    repairStatus->bChannelRepairPending = 0;
    repairStatus->bTpcRepairPending = 0;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return call_end(&call, give_text(call.model->vbios, version, length));
}

static nvmlReturn_t field_value(const struct call *call, unsigned int field, unsigned int *value)
{
    switch (field) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        *value = 1;
        return ecc_supported(call);
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
        *value = (unsigned int)call->gpu->ecc_volatile;
        return ecc_supported(call);
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
        *value = (unsigned int)call->gpu->ecc_aggregate;
        return ecc_supported(call);
    case NVML_FI_DEV_REMAPPED_UNC:
        *value = call->gpu->remapped_rows;
        return remap_supported(call);
    case NVML_FI_DEV_REMAPPED_PENDING:
        *value = call->gpu->remap_pending;
        return remap_supported(call);
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        *value = call->gpu->recovery_action;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                      nvmlFieldValue_t *values)
{
    struct call call = {0};
    struct timespec now;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!values || valuesCount < 1)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < valuesCount; i++) {
        memset(&values[i].value, 0, sizeof values[i].value);
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].nvmlReturn = field_value(&call, values[i].fieldId, &values[i].value.uiVal);
    }
    return call_end(&call, NVML_SUCCESS);
}
