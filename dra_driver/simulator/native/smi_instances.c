/* nvidia-smi: walking GPU instances and compute instances. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

bool smi_gi_profile(nvmlDevice_t device, unsigned int index,
                    nvmlGpuInstanceProfileInfo_v2_t *info)
{
    memset(info, 0, sizeof(*info));
    info->version = nvmlGpuInstanceProfileInfo_v2;
    return nvmlDeviceGetGpuInstanceProfileInfoV(device, index, info) == NVML_SUCCESS;
}

bool smi_ci_profile(nvmlGpuInstance_t gi, unsigned int index,
                    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    memset(info, 0, sizeof(*info));
    info->version = nvmlComputeInstanceProfileInfo_v2;
    return nvmlGpuInstanceGetComputeInstanceProfileInfoV(
               gi, index, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info) == NVML_SUCCESS;
}

bool smi_mig_on(nvmlDevice_t device)
{
    unsigned int current = NVML_DEVICE_MIG_DISABLE;
    unsigned int pending = NVML_DEVICE_MIG_DISABLE;
    return nvmlDeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS &&
           current == NVML_DEVICE_MIG_ENABLE;
}

unsigned int smi_gpu_instances(nvmlDevice_t device, smi_gi_t *found, unsigned int room)
{
    unsigned int total = 0;
    for (unsigned int index = 0; index < NVML_GPU_INSTANCE_PROFILE_COUNT; index++) {
        nvmlGpuInstanceProfileInfo_v2_t profile;
        nvmlGpuInstance_t handles[SMI_MAX_GI];
        unsigned int count = SMI_MAX_GI;
        if (!smi_gi_profile(device, index, &profile) || profile.instanceCount > SMI_MAX_GI ||
            nvmlDeviceGetGpuInstances(device, profile.id, handles, &count) != NVML_SUCCESS) {
            continue;
        }
        for (unsigned int i = 0; i < count && total < room; i++) {
            found[total].handle = handles[i];
            found[total].profile = profile;
            if (nvmlGpuInstanceGetInfo(handles[i], &found[total].info) == NVML_SUCCESS) {
                total++;
            }
        }
    }
    return total;
}

unsigned int smi_compute_instances(const smi_gi_t *gi, smi_ci_t *found, unsigned int room)
{
    unsigned int total = 0;
    for (unsigned int index = 0; index < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; index++) {
        nvmlComputeInstanceProfileInfo_v2_t profile;
        nvmlComputeInstance_t handles[SMI_MAX_CI];
        unsigned int count = SMI_MAX_CI;
        if (!smi_ci_profile(gi->handle, index, &profile) || profile.instanceCount > SMI_MAX_CI ||
            nvmlGpuInstanceGetComputeInstances(gi->handle, profile.id, handles, &count) !=
                NVML_SUCCESS) {
            continue;
        }
        for (unsigned int i = 0; i < count && total < room; i++) {
            found[total].handle = handles[i];
            found[total].profile = profile;
            if (nvmlComputeInstanceGetInfo_v2(handles[i], &found[total].info) == NVML_SUCCESS) {
                total++;
            }
        }
    }
    return total;
}

bool smi_listed(const char *list, unsigned int number)
{
    char copy[SMI_ARGUMENT];
    char *rest = copy;
    unsigned int entry;
    if (list == NULL) {
        return true;
    }
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *text = strsep(&rest, ","); text != NULL; text = strsep(&rest, ",")) {
        if (smi_number(text, &entry) && entry == number) {
            return true;
        }
    }
    return false;
}
