/*
 * libcuda.so.1 of the simulated node: as much as a program needs to find out which devices it may
 * use. Devices are the GPUs and partitions that the simulated NVML shows to this process; as in
 * CUDA, GPUs with MIG enabled give only their partitions.
 */
#include <stddef.h>

#include "state.h"

typedef int CUresult; /* numbers as in cuda.h */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_UNKNOWN = 999,
};

static int device_count = -1;

static int count_on(nvmlDevice_t gpu)
{
    unsigned int current = 0, pending = 0, max = 0;
    int count = 0;
    nvmlDevice_t mig;
    if (nvmlDeviceGetMigMode(gpu, &current, &pending) != NVML_SUCCESS || !current)
        return 1;
    if (nvmlDeviceGetMaxMigDeviceCount(gpu, &max) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < max; i++)
        count += nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &mig) == NVML_SUCCESS;
    return count;
}

static int count_devices(void)
{
    unsigned int gpus = 0;
    int count = 0;
    nvmlDevice_t gpu;
    if (nvmlDeviceGetCount_v2(&gpus) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < gpus; i++)
        if (nvmlDeviceGetHandleByIndex_v2(i, &gpu) == NVML_SUCCESS)
            count += count_on(gpu);
    return count;
}

SIM_API CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_count >= 0)
        return CUDA_SUCCESS;
    switch (nvmlInit_v2()) {
    case NVML_SUCCESS:
        break;
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return CUDA_ERROR_NO_DEVICE;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
    int count = count_devices();
    if (count == 0) {
        nvmlShutdown();
        return CUDA_ERROR_NO_DEVICE;
    }
    device_count = count;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int *count)
{
    if (device_count < 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDriverGetVersion(int *version)
{
    sim_t *sim;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_open(NULL, &sim) != NVML_SUCCESS)
        return CUDA_ERROR_UNKNOWN;
    nvmlReturn_t result = sim_lock(sim, 0);
    if (result == NVML_SUCCESS) {
        *version = sim->core->cuda_version;
        sim_unlock(sim);
    }
    sim_close(sim);
    return result == NVML_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
