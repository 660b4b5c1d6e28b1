/* CUDA: contexts, and memory with the limits on it. */
#include <stdlib.h>

#include "cuda_state.h"

#define MAX_ALLOCATIONS 4096

static struct allocation {
    unsigned long long pointer; /* 0: free */
    uint64_t bytes;
    int device;
} allocations[MAX_ALLOCATIONS];
static unsigned long long next_pointer = 1ull << 40;
static _Thread_local int current = -1; /* the device of this thread's context */

/* A context handle is the device's number plus one. */
static void *handle_of(int index)
{
    return (void *)(uintptr_t)(index + 1);
}

static int index_of(const void *handle)
{
    int index = (int)(uintptr_t)handle - 1;
    return index >= 0 && index < cuda.count && cuda.device[index].context.fd >= 0 ? index : -1;
}

static CUresult begin(void)
{
    pthread_mutex_lock(&cuda.mutex);
    CUresult result = cuda_check();
    if (result != CUDA_SUCCESS)
        pthread_mutex_unlock(&cuda.mutex);
    return result;
}

static CUresult finish(CUresult result)
{
    pthread_mutex_unlock(&cuda.mutex);
    return result;
}

/* Under MPS it is the server that the compute mode had to admit. */
static CUresult admit(const struct cuda_device *device)
{
    if (!sim_device_gpu(cuda.sim, &device->is))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (cuda.mps < 0 && !sim_device_admits(cuda.sim, &device->is))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return CUDA_SUCCESS;
}

/* Lock the state, and other processes' contexts out. */
static CUresult lock_contexts(void)
{
    if (sim_lock(cuda.sim, 0) != NVML_SUCCESS)
        return CUDA_ERROR_UNKNOWN;
    if (sim_contexts_lock(cuda.sim) == NVML_SUCCESS)
        return CUDA_SUCCESS;
    sim_unlock(cuda.sim);
    return CUDA_ERROR_UNKNOWN;
}

static void unlock_contexts(void)
{
    sim_contexts_unlock(cuda.sim);
    sim_unlock(cuda.sim);
}

CUresult cuda_open(int index)
{
    struct cuda_device *device = &cuda.device[index];
    CUresult result = lock_contexts();
    if (result != CUDA_SUCCESS)
        return result;
    result = admit(device);
    device->context = (struct sim_context){
        .incarnation = device->is.incarnation,
        .kind = cuda.mps < 0 ? SIM_CONTEXT_CUDA : SIM_CONTEXT_MPS_CLIENT,
        .gi = device->is.gi,
        .ci = device->is.ci,
        .mps = cuda.mps_serial,
        .fd = -1,
    };
    if (result == CUDA_SUCCESS && sim_context_open(cuda.sim, &device->context) != NVML_SUCCESS)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    unlock_contexts();
    return result == CUDA_SUCCESS && cuda.mps >= 0 ? cuda_mps_opened(index) : result;
}

void cuda_close(int index)
{
    sim_context_close(&cuda.device[index].context);
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (allocations[i].pointer && allocations[i].device == index)
            allocations[i].pointer = 0;
}

SIM_API CUresult cuCtxCreate_v2(void **context, unsigned int flags, int device)
{
    (void)flags;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    if (device < 0 || device >= cuda.count)
        return finish(CUDA_ERROR_INVALID_DEVICE);
    if (cuda.device[device].context.fd < 0)
        result = cuda_open(device);
    if (result == CUDA_SUCCESS) {
        current = device;
        *context = handle_of(device);
    }
    return finish(result);
}

SIM_API CUresult cuCtxDestroy_v2(void *context)
{
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    int index = index_of(context);
    if (index < 0)
        return finish(CUDA_ERROR_INVALID_CONTEXT);
    cuda_close(index);
    return finish(CUDA_SUCCESS);
}

SIM_API CUresult cuCtxSetCurrent(void *context)
{
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    int index = index_of(context);
    if (index < 0 && context)
        return finish(CUDA_ERROR_INVALID_CONTEXT);
    current = index;
    return finish(CUDA_SUCCESS);
}

/* There is no work to wait for; what it answers is whether the context still lives. */
SIM_API CUresult cuCtxSynchronize(void)
{
    CUresult result = begin();
    return result == CUDA_SUCCESS ? finish(CUDA_SUCCESS) : result;
}

/* Under both locks. In this order, so that the answer names the limit that matters most. */
static enum cuda_refusal refusal_of(const struct cuda_device *device, uint64_t bytes)
{
    const struct sim_gpu *gpu = sim_device_gpu(cuda.sim, &device->is);
    uint64_t wanted = device->context.memory + bytes;
    int mps = device->mps_limit && wanted > device->mps_limit;
    int own = device->own_limit && wanted > device->own_limit;
    if (!gpu)
        return REFUSED_BY_DEVICE;
    if (device->is.gi == SIM_NONE && sim_limit_forbids(cuda.sim, gpu, bytes))
        return REFUSED_BY_CGROUP;
    if (own && (!mps || device->own_limit < device->mps_limit))
        return REFUSED_BY_CLIENT;
    if (mps)
        return REFUSED_BY_MPS;
    return bytes > sim_device_free(cuda.sim, &device->is) ? REFUSED_BY_DEVICE : REFUSED_BY_NOBODY;
}

static CUresult take(struct cuda_device *device, uint64_t bytes)
{
    CUresult result = lock_contexts();
    if (result != CUDA_SUCCESS)
        return result;
    cuda.refusal = refusal_of(device, bytes);
    if (cuda.refusal != REFUSED_BY_NOBODY)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (sim_context_resize(&device->context, device->context.memory + bytes) != NVML_SUCCESS)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    unlock_contexts();
    return result;
}

static struct allocation *find_allocation(unsigned long long pointer)
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++)
        if (allocations[i].pointer == pointer)
            return &allocations[i];
    return NULL;
}

SIM_API CUresult cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
    if (!pointer || !bytes || bytes >> 60)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *place = find_allocation(0);
    if (current < 0 || cuda.device[current].context.fd < 0)
        return finish(CUDA_ERROR_INVALID_CONTEXT);
    result = place ? take(&cuda.device[current], bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        return finish(result);
    *place = (struct allocation){next_pointer, bytes, current};
    *pointer = next_pointer;
    next_pointer += (bytes + 0x1fffffu) & ~0x1fffffull;
    return finish(CUDA_SUCCESS);
}

SIM_API CUresult cuMemFree_v2(unsigned long long pointer)
{
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *place = pointer ? find_allocation(pointer) : NULL;
    if (!place)
        return finish(pointer ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    struct sim_context *context = &cuda.device[place->device].context;
    sim_context_resize(context, context->memory - place->bytes);
    place->pointer = 0;
    return finish(CUDA_SUCCESS);
}

/* A limit of MPS is all the memory that a program on a whole GPU sees; on a partition it sees all. */
SIM_API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    if (!free || !total)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    if (current < 0 || cuda.device[current].context.fd < 0)
        return finish(CUDA_ERROR_INVALID_CONTEXT);
    const struct cuda_device *device = &cuda.device[current];
    uint64_t limit = device->mps_limit;
    if (device->own_limit && (!limit || device->own_limit < limit))
        limit = device->own_limit;
    result = lock_contexts();
    if (result != CUDA_SUCCESS)
        return finish(result);
    *total = device->is.memory;
    *free = sim_device_free(cuda.sim, &device->is);
    unlock_contexts();
    if (limit && limit < *total && device->is.gi == SIM_NONE) {
        uint64_t left = limit > device->context.memory ? limit - device->context.memory : 0;
        *total = limit;
        *free = left < *free ? left : *free;
    }
    return finish(CUDA_SUCCESS);
}
