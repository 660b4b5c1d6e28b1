/* NVML: GPU instances. */
#include <string.h>

#include "call.h"

const sim_gi_profile_t *gi_profile_of(const struct call *call)
{
    return &call->model->gi[call->gi->profile];
}

/* Instances are for who may open the MIG configuration capability, on GPUs with MIG enabled. */
static nvmlReturn_t begin_mig(struct call *call, const char *function, int writing, int kinds,
                              const void *handle)
{
    nvmlReturn_t result = call_begin_on(call, function, writing, kinds, handle);
    if (result != NVML_SUCCESS)
        return result;
    if (!sim_mig_admin(call->sim))
        return call_end(call, NVML_ERROR_NO_PERMISSION);
    return call->gpu->mig_current ? NVML_SUCCESS : call_end(call, NVML_ERROR_NOT_SUPPORTED);
}

static nvmlReturn_t profile_at(const struct call *call, unsigned int index,
                               const sim_gi_profile_t **profile)
{
    if (index >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < call->model->gi_count; i++) {
        if (call->model->gi[i].index != index)
            continue;
        *profile = &call->model->gi[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static void fill_v1(nvmlGpuInstanceProfileInfo_t *info, const sim_gi_profile_t *profile)
{
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .isP2pSupported = profile->capabilities & NVML_GPU_INSTANCE_PROFILE_CAPS_P2P ? 1 : 0,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
    };
}

static void fill_v2(nvmlGpuInstanceProfileInfo_v2_t *info, const sim_gi_profile_t *profile)
{
    *info = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = nvmlGpuInstanceProfileInfo_v2,
        .id = profile->id,
        .isP2pSupported = profile->capabilities & NVML_GPU_INSTANCE_PROFILE_CAPS_P2P ? 1 : 0,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
    };
    sim_copy(info->name, sizeof info->name, profile->name);
}

static void fill_v3(nvmlGpuInstanceProfileInfo_v3_t *info, const sim_gi_profile_t *profile)
{
    *info = (nvmlGpuInstanceProfileInfo_v3_t){
        .version = nvmlGpuInstanceProfileInfo_v3,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
        .capabilities = profile->capabilities,
    };
    sim_copy(info->name, sizeof info->name, profile->name);
}

static nvmlReturn_t fill_versioned(nvmlGpuInstanceProfileInfo_v2_t *info,
                                   const sim_gi_profile_t *profile)
{
    if (info->version == nvmlGpuInstanceProfileInfo_v2)
        fill_v2(info, profile);
    else if (info->version == nvmlGpuInstanceProfileInfo_v3)
        fill_v3((nvmlGpuInstanceProfileInfo_v3_t *)(void *)info, profile);
    else
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    struct call call = {0};
    const sim_gi_profile_t *found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = info ? profile_at(&call, profile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        fill_v1(info, found);
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct call call = {0};
    const sim_gi_profile_t *found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = info ? profile_at(&call, profile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return call_end(&call, result == NVML_SUCCESS ? fill_versioned(info, found) : result);
}

/* A profile by the id that this device gives it. */
static nvmlReturn_t profile_by_id(const struct call *call, unsigned int id,
                                  const sim_gi_profile_t **profile)
{
    if (!(call->model->abilities & SIM_MIG))
        return NVML_ERROR_NOT_SUPPORTED;
    *profile = sim_gi_profile(call->model, id);
    return *profile ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct call call = {0};
    const sim_gi_profile_t *found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = info ? profile_by_id(&call, profileId, &found) : NVML_ERROR_INVALID_ARGUMENT;
    return call_end(&call, result == NVML_SUCCESS ? fill_versioned(info, found) : result);
}

static nvmlReturn_t possible_placements(const char *function, nvmlDevice_t device, unsigned int id,
                                        nvmlGpuInstancePlacement_t *placements,
                                        unsigned int *count)
{
    struct call call = {0};
    const sim_gi_profile_t *profile;
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = count ? profile_by_id(&call, id, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    unsigned int found = 0;
    for (unsigned int start = 0; start < 32; start++) {
        if (!(profile->starts >> start & 1))
            continue;
        if (placements)
            placements[found] = (nvmlGpuInstancePlacement_t){start, profile->size};
        found++;
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                        nvmlGpuInstancePlacement_t *placements,
                                                        unsigned int *count)
{
    return possible_placements(__func__, device, profileId, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device,
                                                           unsigned int profileId,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count)
{
    return possible_placements(__func__, device, profileId, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
                                                       unsigned int *count)
{
    struct call call = {0};
    const sim_gi_profile_t *profile;
    nvmlReturn_t result = begin_mig(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = count ? profile_by_id(&call, profileId, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = sim_gi_capacity(call.model, call.gpu, profile);
    return call_end(&call, result);
}

static nvmlReturn_t create_instance(struct call *call, const char *function, nvmlDevice_t device,
                                    unsigned int profile, int start, nvmlGpuInstance_t *instance)
{
    struct sim_gi *gi = NULL;
    nvmlReturn_t result = begin_mig(call, function, WRITING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = instance ? sim_gi_create(call->sim, call->gpu, profile, start, &gi)
                      : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        sim_nodes_sync_gpu(call->sim, call->gpu);
        *instance = handle_of_gi(gi);
        call->gi = gi;
    }
    return call_end(call, result);
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId,
                                         nvmlGpuInstance_t *gpuInstance)
{
    struct call call = {0};
    call_note(&call, "profile=%u", profileId);
    return create_instance(&call, __func__, device, profileId, -1, gpuInstance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *gpuInstance)
{
    struct call call = {0};
    if (!placement || placement->start > 31)
        return NVML_ERROR_INVALID_ARGUMENT;
    call_note(&call, "profile=%u start=%u size=%u", profileId, placement->start, placement->size);
    return create_instance(&call, __func__, device, profileId, (int)placement->start, gpuInstance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
    struct call call = {0};
    nvmlReturn_t result = begin_mig(&call, __func__, WRITING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    call_note(&call, "profile=%u start=%u", gi_profile_of(&call)->id, call.gi->start);
    struct sim_gi gone = *call.gi;
    result = sim_gi_destroy(call.sim, call.gpu, call.gi);
    sim_nodes_sync_gpu(call.sim, call.gpu);
    call.gi = &gone; /* the log says which one it was */
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                       nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
    struct call call = {0};
    const sim_gi_profile_t *profile;
    nvmlReturn_t result = begin_mig(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    result = count && gpuInstances ? profile_by_id(&call, profileId, &profile)
                                   : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    *count = 0;
    for (int i = 0; i < SIM_MAX_GIS; i++)
        if (call.gpu->gi[i].serial && &call.model->gi[call.gpu->gi[i].profile] == profile)
            gpuInstances[(*count)++] = handle_of_gi(&call.gpu->gi[i]);
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *gpuInstance)
{
    struct call call = {0};
    nvmlReturn_t result = begin_mig(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_gi *gi = sim_gi_by_id(call.gpu, id);
    if (!gpuInstance)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (gi)
        *gpuInstance = handle_of_gi(gi);
    return call_end(&call, gi ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    if (!info)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    info->device = handle_of_gpu(call.gpu);
    info->id = call.gi->id;
    info->profileId = gi_profile_of(&call)->id;
    info->placement = (nvmlGpuInstancePlacement_t){call.gi->start, gi_profile_of(&call)->size};
    return call_end(&call, NVML_SUCCESS);
}
