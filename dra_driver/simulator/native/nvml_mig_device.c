/* NVML: MIG devices, the compute instances as they stand among devices. */
#include "call.h"

/* The most MIG devices a GPU can have: one for each slice. */
static unsigned int max_devices(const struct call *call)
{
    return call->gpu->mig_current ? call->model->compute_slices : 0;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (isMigDevice)
        *isMigDevice = call.ci != NULL;
    return call_end(&call, isMigDevice ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count)
        *count = max_devices(&call);
    return call_end(&call, count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

const struct sim_ci *visible_mig(const struct call *call, unsigned int index)
{
    for (uint32_t gi_id = 0; gi_id < 15; gi_id++) {
        struct sim_gi *gi = sim_gi_by_id(call->gpu, gi_id);
        for (uint32_t ci_id = 0; gi && ci_id < SIM_MAX_CIS; ci_id++) {
            const struct sim_ci *ci = sim_ci_by_id(gi, ci_id);
            if (ci && sim_ci_visible(call->sim, call->gpu, gi_id, ci_id) && index-- == 0)
                return ci;
        }
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *migDevice)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!(call.model->abilities & SIM_MIG))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    if (!migDevice || (call.gpu->mig_current && index >= max_devices(&call)))
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const struct sim_ci *ci = visible_mig(&call, index);
    if (ci)
        *migDevice = handle_of_mig(ci);
    return call_end(&call, ci ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_MIG, device);
    if (result != NVML_SUCCESS)
        return result;
    if (id)
        *id = call.gi->id;
    return call_end(&call, id ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_MIG, device);
    if (result != NVML_SUCCESS)
        return result;
    if (id)
        *id = call.ci->id;
    return call_end(&call, id ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice,
                                                          nvmlDevice_t *device)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_MIG, migDevice);
    if (result != NVML_SUCCESS)
        return result;
    if (device)
        *device = handle_of_gpu(call.gpu);
    return call_end(&call, device ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

/* Only for MIG devices, says nvml.h. */
static nvmlReturn_t attributes_of(const char *function, nvmlDevice_t device,
                                  nvmlDeviceAttributes_t *attributes)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!attributes)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (!call.ci)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    const sim_gi_profile_t *gi = gi_profile_of(&call);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = ci_profile_of(&call)->multiprocessors,
        .sharedCopyEngineCount = gi->copy_engines,
        .sharedDecoderCount = gi->decoders,
        .sharedEncoderCount = gi->encoders,
        .sharedJpegCount = gi->jpegs,
        .sharedOfaCount = gi->ofas,
        .gpuInstanceSliceCount = gi->slices,
        .computeInstanceSliceCount = ci_profile_of(&call)->slices,
        .memorySizeMB = gi->memory_mib,
    };
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return attributes_of(__func__, device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return attributes_of(__func__, device, attributes);
}
