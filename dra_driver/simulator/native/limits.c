/*
 * Limits on what a cgroup may allocate on a GPU (driver 615 and later): NVML sets and reads them,
 * CUDA obeys them. All processes of the cgroup count together. A limit is gone with its cgroup.
 * Whoever set it knows the cgroup by path; processes in another mount namespace may not have that
 * path and judge nothing from it.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "call.h"

#define FIRST_DRIVER 615

static uint64_t own_namespace(void)
{
    struct stat stat_of;
    return stat("/proc/self/ns/mnt", &stat_of) == 0 ? (uint64_t)stat_of.st_ino : 0;
}

int sim_limit_lives(const struct sim_limit *limit)
{
    struct stat stat_of;
    if (limit->namespace != own_namespace())
        return 1;
    if (stat(limit->path, &stat_of) < 0)
        return errno == EACCES; /* then it can't be told from here */
    return (uint64_t)stat_of.st_dev == limit->device && (uint64_t)stat_of.st_ino == limit->inode;
}

void sim_limits_forget(struct sim_core *core, uint64_t gpu_serial)
{
    for (int i = 0; i < SIM_MAX_LIMITS; i++)
        if (core->limit[i].gpu_serial == gpu_serial)
            memset(&core->limit[i], 0, sizeof core->limit[i]);
}

static nvmlReturn_t supported(const struct call *call)
{
    if (call->ci || call->gpu->mig_current || !(call->model->abilities & SIM_MEMORY_INFO))
        return NVML_ERROR_NOT_SUPPORTED;
    return atoi(call->core->driver_version) >= FIRST_DRIVER ? NVML_SUCCESS
                                                            : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t find_cgroup(const char *path, struct stat *found)
{
    if (!path || !*path || strlen(path) >= SIM_PATH)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (stat(path, found) < 0 || !S_ISDIR(found->st_mode))
        return NVML_ERROR_OPERATING_SYSTEM;
    return NVML_SUCCESS;
}

static struct sim_limit *find_limit(const struct call *call, const struct stat *cgroup)
{
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        struct sim_limit *limit = &call->core->limit[i];
        if (limit->gpu_serial == call->gpu->serial && limit->device == cgroup->st_dev &&
            limit->inode == cgroup->st_ino)
            return limit;
    }
    return NULL;
}

static struct sim_limit *free_limit(struct sim_core *core)
{
    for (int i = 0; i < SIM_MAX_LIMITS; i++)
        if (!core->limit[i].gpu_serial || !sim_limit_lives(&core->limit[i]))
            return &core->limit[i];
    return NULL;
}

static nvmlReturn_t set_limit(const struct call *call, const nvmlSetMemoryLimits_v1_t *wanted)
{
    struct stat cgroup;
    uint64_t total = call->model->memory_bytes;
    if (wanted->softLimit > wanted->hardLimit || wanted->softLimit > total ||
        (wanted->hardLimit > total && wanted->hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = find_cgroup(wanted->nameSpace, &cgroup);
    if (result != NVML_SUCCESS)
        return result;
    int clears = wanted->softLimit == 0 && wanted->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX;
    struct sim_limit *limit = find_limit(call, &cgroup);
    if (!limit && !clears)
        limit = free_limit(call->core);
    if (!limit)
        return clears ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
    memset(limit, 0, sizeof *limit);
    if (clears)
        return NVML_SUCCESS;
    limit->gpu_serial = call->gpu->serial;
    limit->soft = wanted->softLimit;
    limit->hard = wanted->hardLimit;
    limit->device = cgroup.st_dev;
    limit->inode = cgroup.st_ino;
    limit->namespace = own_namespace();
    sim_copy(limit->path, sizeof limit->path, wanted->nameSpace);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    struct call call = {0};
    if (limits && limits->nameSpace)
        call_note(&call, "soft=%llu hard=%llu cgroup=%s", limits->softLimit, limits->hardLimit,
                  limits->nameSpace);
    nvmlReturn_t result = call_begin_on(&call, __func__, WRITING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = limits ? supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    return call_end(&call, result == NVML_SUCCESS ? set_limit(&call, limits) : result);
}

static uint64_t used_by_pid(const struct sim_gpu *gpu, unsigned int pid)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (gpu->process[i].pid == pid)
            used += gpu->process[i].memory;
    return used;
}

/* What the processes of a cgroup and of those below it use; Pods, containers: three levels. */
static uint64_t used_below(const struct sim_gpu *gpu, const char *cgroup, int levels)
{
    char path[PATH_MAX];
    unsigned int pid;
    uint64_t used = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    FILE *stream = fopen(path, "re");
    while (stream && fscanf(stream, "%u", &pid) == 1)
        used += used_by_pid(gpu, pid);
    if (stream)
        fclose(stream);
    DIR *dir = levels ? opendir(cgroup) : NULL;
    while (dir && (entry = readdir(dir))) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
            continue;
        if (snprintf(path, sizeof path, "%s/%s", cgroup, entry->d_name) < (int)sizeof path)
            used += used_below(gpu, path, levels - 1);
    }
    if (dir)
        closedir(dir);
    return used;
}

/* Processes told by hand are found in the cgroup's own list, CUDA contexts know their cgroup. */
static uint64_t used_in(const sim_t *sim, const struct sim_gpu *gpu, const char *cgroup)
{
    struct sim_context context;
    uint64_t used = used_below(gpu, cgroup, 3);
    for (int slot = -1; (slot = sim_next_context(sim, slot + 1, &context)) >= 0;)
        if (sim_context_runs_on(&context, gpu, SIM_NONE, SIM_NONE) &&
            sim_context_in(sim, &context, cgroup))
            used += context.memory;
    return used;
}

static int holds_for_us(const struct sim_limit *limit)
{
    uint64_t own[SIM_CGROUP_LEVELS];
    int levels = sim_own_cgroups(own);
    for (int level = 0; level < levels; level++)
        if (sim_cgroup_ends_with(limit->path, own[level]))
            return 1;
    return 0;
}

int sim_limit_forbids(const sim_t *sim, const struct sim_gpu *gpu, uint64_t more)
{
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        const struct sim_limit *limit = &sim->core->limit[i];
        if (limit->gpu_serial != gpu->serial || !sim_limit_lives(limit) || !holds_for_us(limit))
            continue;
        uint64_t used = used_in(sim, gpu, limit->path);
        if (used > limit->hard || more > limit->hard - used)
            return 1;
    }
    return 0;
}

static nvmlReturn_t get_limit(const struct call *call, nvmlGetMemoryLimits_v1_t *limits)
{
    struct stat cgroup;
    nvmlReturn_t result = find_cgroup(limits->nameSpace, &cgroup);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_limit *limit = find_limit(call, &cgroup);
    if (!limit || !sim_limit_lives(limit))
        return NVML_ERROR_NOT_FOUND;
    limits->softLimit = limit->soft;
    limits->hardLimit = limit->hard;
    limits->currentUsed = used_in(call->sim, call->gpu, limits->nameSpace);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    result = limits ? supported(&call) : NVML_ERROR_INVALID_ARGUMENT;
    return call_end(&call, result == NVML_SUCCESS ? get_limit(&call, limits) : result);
}
