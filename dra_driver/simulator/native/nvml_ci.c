/* NVML: compute instances, and MIG devices, which stand for them among devices. */
#include <string.h>

#include "call.h"

const sim_ci_profile_t *ci_profile_of(const struct call *call)
{
    return &gi_profile_of(call)->ci[call->ci->profile];
}

static nvmlReturn_t profile_at(const struct call *call, unsigned int index, unsigned int engines,
                               const sim_ci_profile_t **profile)
{
    const sim_gi_profile_t *gi = gi_profile_of(call);
    if (index >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
        engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < gi->ci_count; i++) {
        if (gi->ci[i].index != index)
            continue;
        *profile = &gi->ci[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

/* All that the three versions of the structure share, as the third. */
static nvmlComputeInstanceProfileInfo_v3_t describe(const struct call *call,
                                                    const sim_ci_profile_t *profile)
{
    const sim_gi_profile_t *gi = gi_profile_of(call);
    nvmlComputeInstanceProfileInfo_v3_t info = {
        .version = nvmlComputeInstanceProfileInfo_v3,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = (unsigned int)__builtin_popcount(profile->starts),
        .multiprocessorCount = profile->multiprocessors,
        .sharedCopyEngineCount = gi->copy_engines,
        .sharedDecoderCount = gi->decoders,
        .sharedEncoderCount = gi->encoders,
        .sharedJpegCount = gi->jpegs,
        .sharedOfaCount = gi->ofas,
    };
    sim_copy(info.name, sizeof info.name, profile->name);
    return info;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance,
                                                          unsigned int profile,
                                                          unsigned int engProfile,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    struct call call = {0};
    const sim_ci_profile_t *found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    result = info ? profile_at(&call, profile, engProfile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        nvmlComputeInstanceProfileInfo_v3_t all = describe(&call, found);
        *info = (nvmlComputeInstanceProfileInfo_t){
            .id = all.id,
            .sliceCount = all.sliceCount,
            .instanceCount = all.instanceCount,
            .multiprocessorCount = all.multiprocessorCount,
            .sharedCopyEngineCount = all.sharedCopyEngineCount,
            .sharedDecoderCount = all.sharedDecoderCount,
            .sharedEncoderCount = all.sharedEncoderCount,
            .sharedJpegCount = all.sharedJpegCount,
            .sharedOfaCount = all.sharedOfaCount,
        };
    }
    return call_end(&call, result);
}

/* The third version only appends to the second. */
static nvmlReturn_t fill_versioned(nvmlComputeInstanceProfileInfo_v2_t *info,
                                   const nvmlComputeInstanceProfileInfo_v3_t *all)
{
    unsigned int version = info->version;
    if (version != nvmlComputeInstanceProfileInfo_v2 &&
        version != nvmlComputeInstanceProfileInfo_v3)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy((void *)info, all, version == nvmlComputeInstanceProfileInfo_v3 ? sizeof *all
                                                                            : sizeof *info);
    info->version = version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t gpuInstance, unsigned int profile, unsigned int engProfile,
    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct call call = {0};
    const sim_ci_profile_t *found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    result = info ? profile_at(&call, profile, engProfile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        nvmlComputeInstanceProfileInfo_v3_t all = describe(&call, found);
        result = fill_versioned(info, &all);
    }
    return call_end(&call, result);
}

static nvmlReturn_t profile_by_id(const struct call *call, unsigned int id,
                                  const sim_ci_profile_t **profile)
{
    *profile = sim_ci_profile(gi_profile_of(call), id);
    return *profile ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance,
                                                                unsigned int profileId,
                                                                unsigned int *count)
{
    struct call call = {0};
    const sim_ci_profile_t *profile;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    result = count ? profile_by_id(&call, profileId, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = sim_ci_capacity(gi_profile_of(&call), call.gi, profile);
    return call_end(&call, result);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t gpuInstance, unsigned int profileId,
    nvmlComputeInstancePlacement_t *placements, unsigned int *count)
{
    struct call call = {0};
    const sim_ci_profile_t *profile;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    result = count ? profile_by_id(&call, profileId, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    unsigned int found = 0;
    for (unsigned int start = 0; start < 32; start++) {
        if (!(profile->starts >> start & 1))
            continue;
        if (placements)
            placements[found] = (nvmlComputeInstancePlacement_t){start, profile->slices};
        found++;
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

/* As for GPU instances: making and removing needs the MIG configuration capability. */
static nvmlReturn_t begin_change(struct call *call, const char *function, int kinds,
                                 const void *handle)
{
    nvmlReturn_t result = call_begin_on(call, function, WRITING, kinds, handle);
    if (result != NVML_SUCCESS)
        return result;
    return sim_mig_admin(call->sim) ? NVML_SUCCESS : call_end(call, NVML_ERROR_NO_PERMISSION);
}

static nvmlReturn_t create_instance(struct call *call, const char *function,
                                    nvmlGpuInstance_t gpu_instance, unsigned int profile,
                                    int start, nvmlComputeInstance_t *instance)
{
    struct sim_ci *ci = NULL;
    nvmlReturn_t result = begin_change(call, function, ON_GI, gpu_instance);
    if (result != NVML_SUCCESS)
        return result;
    result = instance ? sim_ci_create(call->sim, call->gpu, call->gi, profile, start, &ci)
                      : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        sim_nodes_sync_gpu(call->sim, call->gpu);
        *instance = handle_of_ci(ci);
        call->ci = ci;
    }
    return call_end(call, result);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance,
                                                  unsigned int profileId,
                                                  nvmlComputeInstance_t *computeInstance)
{
    struct call call = {0};
    call_note(&call, "profile=%u", profileId);
    return create_instance(&call, __func__, gpuInstance, profileId, -1, computeInstance);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t gpuInstance, unsigned int profileId,
    const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *computeInstance)
{
    struct call call = {0};
    if (!placement || placement->start > 31)
        return NVML_ERROR_INVALID_ARGUMENT;
    call_note(&call, "profile=%u start=%u size=%u", profileId, placement->start, placement->size);
    return create_instance(&call, __func__, gpuInstance, profileId, (int)placement->start,
                           computeInstance);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
    struct call call = {0};
    nvmlReturn_t result = begin_change(&call, __func__, ON_CI, computeInstance);
    if (result != NVML_SUCCESS)
        return result;
    struct sim_ci gone = *call.ci;
    result = sim_ci_destroy(call.sim, call.gpu, call.gi, call.ci);
    sim_nodes_sync_gpu(call.sim, call.gpu);
    call.ci = &gone; /* the log says which one it was */
    return call_end(&call, result);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance,
                                                unsigned int profileId,
                                                nvmlComputeInstance_t *computeInstances,
                                                unsigned int *count)
{
    struct call call = {0};
    const sim_ci_profile_t *profile;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    result = count && computeInstances ? profile_by_id(&call, profileId, &profile)
                                       : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    *count = 0;
    for (int i = 0; i < SIM_MAX_CIS; i++)
        if (call.gi->ci[i].serial && &gi_profile_of(&call)->ci[call.gi->ci[i].profile] == profile)
            computeInstances[(*count)++] = handle_of_ci(&call.gi->ci[i]);
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                   nvmlComputeInstance_t *computeInstance)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GI, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_ci *ci = sim_ci_by_id(call.gi, id);
    if (!computeInstance)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (ci)
        *computeInstance = handle_of_ci(ci);
    return call_end(&call, ci ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

static nvmlReturn_t instance_info(const char *function, nvmlComputeInstance_t instance,
                                  nvmlComputeInstanceInfo_t *info)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_CI, instance);
    if (result != NVML_SUCCESS)
        return result;
    if (!info)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    info->device = handle_of_gpu(call.gpu);
    info->gpuInstance = handle_of_gi(call.gi);
    info->id = call.ci->id;
    info->profileId = ci_profile_of(&call)->id;
    info->placement = (nvmlComputeInstancePlacement_t){call.ci->start,
                                                       ci_profile_of(&call)->slices};
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance,
                                        nvmlComputeInstanceInfo_t *info)
{
    return instance_info(__func__, computeInstance, info);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance,
                                           nvmlComputeInstanceInfo_t *info)
{
    return instance_info(__func__, computeInstance, info);
}
