/* NVML: memory, utilisation, processes. */
#include <string.h>
#include <time.h>

#include "call.h"

#define MAX_LISTED (SIM_MAX_PROCESSES + 1024)

struct memory {
    uint64_t total;
    uint64_t reserved;
    uint64_t used; /* by processes */
};

static nvmlReturn_t memory_of(const struct call *call, struct memory *memory)
{
    if (!(call->model->abilities & SIM_MEMORY_INFO))
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = call->gi ? (uint64_t)gi_profile_of(call)->memory_mib << 20
                             : call->model->memory_bytes;
    memory->reserved = call->gi ? 0 : call->model->reserved_bytes;
    memory->used = sim_used_memory(call->sim, call->gpu, call->gi ? call->gi->id : SIM_NONE);
    if (memory->used > memory->total - memory->reserved)
        memory->used = memory->total - memory->reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct call call = {0};
    struct memory found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = memory ? memory_of(&call, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        memory->total = found.total;
        memory->used = found.reserved + found.used;
        memory->free = found.total - memory->used;
    }
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct call call = {0};
    struct memory found;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = !memory                            ? NVML_ERROR_INVALID_ARGUMENT
             : memory->version != nvmlMemory_v2 ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH
                                                : memory_of(&call, &found);
    if (result == NVML_SUCCESS) {
        memory->total = found.total;
        memory->reserved = found.reserved;
        memory->used = found.used;
        memory->free = found.total - found.reserved - found.used;
    }
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct call call = {0};
    struct memory memory = {0};
    unsigned int busy = 0;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!utilization)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (call.ci || call.gpu->mig_current)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (call.gpu->process[i].pid)
            busy += call.gpu->process[i].sm_percent;
    if (memory_of(&call, &memory) != NVML_SUCCESS)
        memory.total = 1;
    utilization->gpu = busy > 100 ? 100 : busy;
    utilization->memory = (unsigned int)(memory.used * utilization->gpu / memory.total);
    return call_end(&call, NVML_SUCCESS);
}

static int runs_here(const struct call *call, uint32_t gi, uint32_t ci)
{
    return !call->ci || (gi == call->gi->id && ci == call->ci->id);
}

static unsigned int told_processes(const struct call *call, nvmlProcessInfo_v2_t *found)
{
    unsigned int count = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &call->gpu->process[i];
        if (process->pid && runs_here(call, process->gi, process->ci))
            found[count++] = (nvmlProcessInfo_v2_t){process->pid, process->memory, process->gi,
                                                    process->ci};
    }
    return count;
}

/* Processes with CUDA contexts. Clients of MPS stand in a list of their own, servers do not. Those
 * of other PID namespaces than the caller's and those below it can't be named. */
static unsigned int contexts(const struct call *call, int mps_clients, nvmlProcessInfo_v2_t *found,
                             unsigned int room)
{
    struct sim_context context;
    unsigned int count = 0;
    for (int slot = -1; (slot = sim_next_context(call->sim, slot + 1, &context)) >= 0;) {
        uint32_t pid;
        if (count == room || !sim_context_runs_on(&context, call->gpu, SIM_NONE, SIM_NONE) ||
            !runs_here(call, context.gi, context.ci) ||
            (context.kind == SIM_CONTEXT_MPS_CLIENT) != mps_clients)
            continue;
        pid = sim_pid_here(context.pid, context.pid_namespace);
        if (pid)
            found[count++] = (nvmlProcessInfo_v2_t){pid, context.memory, context.gi, context.ci};
    }
    return count;
}

/* Whether an array of *count fits what there is; *count becomes what is needed. */
static nvmlReturn_t fit_array(unsigned int needed, unsigned int *count, const void *array)
{
    unsigned int given;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    given = *count;
    *count = needed;
    if (needed > given)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return needed && !array ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* The first version of the structure lacks the instance ids. */
static nvmlReturn_t list_processes(const char *function, nvmlDevice_t device, int mps_clients,
                                   unsigned int *count, nvmlProcessInfo_v1_t *v1,
                                   nvmlProcessInfo_v2_t *v2)
{
    struct call call = {0};
    nvmlProcessInfo_v2_t found[MAX_LISTED];
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int running = mps_clients ? 0 : told_processes(&call, found);
    running += contexts(&call, mps_clients, found + running, MAX_LISTED - running);
    result = fit_array(running, count, v1 ? (void *)v1 : (void *)v2);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < running; i++) {
        if (v1)
            v1[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].usedGpuMemory};
        else
            v2[i] = found[i];
    }
    return call_end(&call, result);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                  nvmlProcessInfo_v1_t *infos)
{
    return list_processes(__func__, device, 0, infoCount, infos, NULL);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v2_t *infos)
{
    return list_processes(__func__, device, 0, infoCount, NULL, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_t *infos)
{
    return list_processes(__func__, device, 0, infoCount, NULL, infos);
}

/* No graphics run on a simulated GPU. */
static nvmlReturn_t list_none(const char *function, nvmlDevice_t device, unsigned int *count)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count)
        *count = 0;
    return call_end(&call, count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                      nvmlProcessInfo_t *infos)
{
    (void)infos;
    return list_none(__func__, device, infoCount);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                        unsigned int *infoCount,
                                                        nvmlProcessInfo_t *infos)
{
    return list_processes(__func__, device, 1, infoCount, NULL, infos);
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount,
                                             unsigned long long lastSeenTimeStamp)
{
    struct call call = {0};
    uint64_t now = now_us();
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    nvmlProcessInfo_v2_t told[SIM_MAX_PROCESSES];
    unsigned int needed = told_processes(&call, told);
    if (call.ci || call.gpu->mig_current)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    result = fit_array(needed, processSamplesCount, utilization);
    if (result == NVML_SUCCESS && (!needed || lastSeenTimeStamp >= now))
        result = NVML_ERROR_NOT_FOUND;
    for (int i = 0, n = 0; result == NVML_SUCCESS && i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &call.gpu->process[i];
        if (process->pid)
            utilization[n++] = (nvmlProcessUtilizationSample_t){
                .pid = process->pid, .timeStamp = now, .smUtil = process->sm_percent};
    }
    return call_end(&call, result);
}
