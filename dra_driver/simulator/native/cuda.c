/*
 * libcuda.so.1 of the simulated node: as much as a program needs to find out which devices it may
 * use and how much memory they give it. Devices are the GPUs and partitions that the simulated NVML
 * shows to this process; as in CUDA, GPUs with MIG enabled give only their partitions.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "cuda_state.h"

struct cuda cuda = {.mutex = PTHREAD_MUTEX_INITIALIZER, .mps = -1};

static const struct {
    CUresult code;
    const char *name;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED"},
    {CUDA_ERROR_MPS_RPC_FAILURE, "CUDA_ERROR_MPS_RPC_FAILURE"},
    {CUDA_ERROR_MPS_SERVER_NOT_READY, "CUDA_ERROR_MPS_SERVER_NOT_READY"},
    {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"},
    {CUDA_ERROR_MPS_CLIENT_TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

const char *cuda_error_name(CUresult error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            return errors[i].name;
    return NULL;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char **name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = cuda_error_name(error);
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void cuda_end(CUresult error)
{
    for (int i = 0; i < cuda.count; i++)
        cuda_close(i);
    cuda.sticky = error;
}

/* The GPU driver went away, or a GPU was reset, under this process. */
static int driver_is_gone(void)
{
    int gone;
    if (sim_lock(cuda.sim, 0) != NVML_SUCCESS)
        return 1;
    gone = cuda.sim->core->epoch != cuda.epoch;
    for (int i = 0; i < cuda.count; i++)
        if (cuda.device[i].context.fd >= 0 && !sim_device_gpu(cuda.sim, &cuda.device[i].is))
            gone = 1;
    sim_unlock(cuda.sim);
    return gone;
}

CUresult cuda_check(void)
{
    if (!cuda.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!cuda.sticky)
        cuda_mps_hear();
    if (!cuda.sticky && driver_is_gone())
        cuda_end(CUDA_ERROR_UNKNOWN);
    return cuda.sticky;
}

static int visible_devices(struct cuda_device *found)
{
    struct sim_device all[SIM_MAX_DEVICES];
    if (sim_lock(cuda.sim, 0) != NVML_SUCCESS)
        return 0;
    int count = sim_devices(cuda.sim, all);
    cuda.epoch = cuda.sim->core->epoch;
    sim_unlock(cuda.sim);
    for (int i = 0; i < count; i++)
        found[i] = (struct cuda_device){.is = all[i], .context = {.fd = -1}};
    return count;
}

static void pick(const struct cuda_device *all, int count)
{
    struct sim_device from[SIM_MAX_DEVICES], to[SIM_MAX_DEVICES];
    const char *names = getenv("CUDA_VISIBLE_DEVICES");
    int all_found;
    for (int i = 0; i < count; i++)
        from[i] = all[i].is;
    if (!names) {
        memcpy(cuda.device, all, (size_t)count * sizeof *all);
        cuda.count = count;
        return;
    }
    cuda.count = sim_devices_pick(from, count, names, to, &all_found);
    for (int i = 0; i < cuda.count; i++)
        for (int j = 0; j < count; j++)
            if (strcmp(to[i].uuid, all[j].is.uuid) == 0)
                cuda.device[i] = all[j];
}

static CUresult initialise(void)
{
    struct cuda_device all[SIM_MAX_DEVICES];
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
    cuda.sim = nvml_state();
    int count = visible_devices(all);
    CUresult result = count ? cuda_mps_attach(all, &count) : CUDA_ERROR_NO_DEVICE;
    if (result == CUDA_SUCCESS) {
        pick(all, count);
        result = cuda.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
    }
    if (result != CUDA_SUCCESS) {
        nvmlShutdown();
        return result;
    }
    if (cuda.mps >= 0)
        cuda_mps_own_limits();
    for (int i = 0; i < cuda.count; i++)
        sim_device_hold(cuda.sim, &cuda.device[i].is);
    cuda.ready = 1;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuInit(unsigned int flags)
{
    CUresult result;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda.mutex);
    result = cuda.ready ? cuda_check() : initialise();
    pthread_mutex_unlock(&cuda.mutex);
    return result;
}

SIM_API CUresult cuDeviceGetCount(int *count)
{
    if (!cuda.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = cuda.count;
    return CUDA_SUCCESS;
}

static CUresult check_device(const void *out, int device)
{
    if (!cuda.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return device >= 0 && device < cuda.count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuDeviceGet(int *device, int ordinal)
{
    CUresult result = check_device(device, ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

SIM_API CUresult cuDeviceGetName(char *name, int size, int device)
{
    CUresult result = size > 0 ? check_device(name, device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        sim_copy(name, (size_t)size, cuda.device[device].is.name);
    return result;
}

/* The sixteen bytes that NVML writes as GPU-... or MIG-... . */
SIM_API CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], int device)
{
    CUresult result = check_device(uuid, device);
    if (result != CUDA_SUCCESS)
        return result;
    const char *text = cuda.device[device].is.uuid + strlen("GPU-");
    for (int i = 0; i < 16; i++) {
        unsigned int byte = 0;
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        uuid[i] = (unsigned char)byte;
        text += strnlen(text, 2);
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    CUresult result = check_device(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = cuda.device[device].is.memory;
    return result;
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
