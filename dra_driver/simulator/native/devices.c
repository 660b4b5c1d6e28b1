/* CUDA devices: the GPUs and partitions that a process may compute on, and who may open them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "state.h"

#define UNMETERED ((uint64_t)1 << 39) /* memory of a GPU that shares it with the CPU */

static void describe_gpu(const sim_t *sim, const struct sim_gpu *gpu, struct sim_device *device)
{
    const sim_model_t *model = sim_model_of(sim, gpu);
    memset(device, 0, sizeof *device);
    device->gpu_serial = gpu->serial;
    device->incarnation = gpu->incarnation;
    device->gi = device->ci = SIM_NONE;
    device->compute_major = model->compute_major;
    device->memory = model->abilities & SIM_MEMORY_INFO
                         ? model->memory_bytes - model->reserved_bytes
                         : UNMETERED;
    sim_copy(device->uuid, sizeof device->uuid, gpu->identity.uuid);
    sim_copy(device->name, sizeof device->name, model->name);
}

static int add_partitions(const sim_t *sim, struct sim_gpu *gpu, struct sim_device *found, int room)
{
    int count = 0;
    for (uint32_t id = 0; id < 15; id++) {
        struct sim_gi *gi = sim_gi_by_id(gpu, id);
        for (uint32_t ci_id = 0; gi && ci_id < SIM_MAX_CIS && count < room; ci_id++) {
            const struct sim_ci *ci = sim_ci_by_id(gi, ci_id);
            if (!ci || !sim_ci_visible(sim, gpu, id, ci_id))
                continue;
            struct sim_device *device = &found[count++];
            describe_gpu(sim, gpu, device);
            device->gi = id;
            device->ci = ci_id;
            device->memory = (uint64_t)sim_model_of(sim, gpu)->gi[gi->profile].memory_mib << 20;
            sim_copy(device->uuid, sizeof device->uuid, ci->uuid);
        }
    }
    return count;
}

int sim_devices(const sim_t *sim, struct sim_device found[SIM_MAX_DEVICES])
{
    int slots[SIM_MAX_GPUS], count = 0;
    int gpus = sim_gpu_order(sim->core, slots);
    for (int i = 0; i < gpus && count < SIM_MAX_DEVICES; i++) {
        struct sim_gpu *gpu = &sim->core->gpu[slots[i]];
        if (gpu->lost || !sim_gpu_visible(sim, gpu))
            continue;
        if (gpu->mig_current)
            count += add_partitions(sim, gpu, &found[count], SIM_MAX_DEVICES - count);
        else
            describe_gpu(sim, gpu, &found[count++]);
    }
    return count;
}

/* By position, or by a UUID of which the beginning is enough. */
static int find_device(const struct sim_device *all, int count, const char *name)
{
    char *end;
    size_t length = strlen(name);
    if (isdigit((unsigned char)name[0])) {
        long number = strtol(name, &end, 10);
        return !*end && number < count ? (int)number : -1;
    }
    if (strncmp(name, "GPU-", 4) != 0 && strncmp(name, "MIG-", 4) != 0)
        return -1;
    for (int i = 0; i < count; i++)
        if (length > 4 && strncasecmp(all[i].uuid, name, length) == 0)
            return i;
    return -1;
}

int sim_devices_pick(const struct sim_device *all, int count, const char *names,
                     struct sim_device picked[SIM_MAX_DEVICES], int *all_found)
{
    char copy[SIM_MAX_DEVICES * 50];
    char *rest = copy;
    int found = 0;
    *all_found = 1;
    sim_copy(copy, sizeof copy, names);
    for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        int at = find_device(all, count, name);
        if (at < 0) {
            *all_found = 0;
            break;
        }
        if (found < SIM_MAX_DEVICES)
            picked[found++] = all[at];
    }
    return found;
}

struct sim_gpu *sim_device_gpu(const sim_t *sim, const struct sim_device *device)
{
    int slot = sim_gpu_slot(sim->core, device->gpu_serial);
    struct sim_gpu *gpu = slot < 0 ? NULL : &sim->core->gpu[slot];
    return gpu && gpu->incarnation == device->incarnation && !gpu->lost ? gpu : NULL;
}

static uint32_t compute_mode(const sim_t *sim, struct sim_gpu *gpu, const struct sim_device *device)
{
    struct sim_gi *gi = device->gi == SIM_NONE ? NULL : sim_gi_by_id(gpu, device->gi);
    const struct sim_ci *ci = gi ? sim_ci_by_id(gi, device->ci) : NULL;
    if (!sim_session_lives(sim, gpu))
        return NVML_COMPUTEMODE_DEFAULT;
    return ci ? ci->compute_mode : gpu->compute_mode;
}

int sim_device_admits(const sim_t *sim, const struct sim_device *device)
{
    struct sim_gpu *gpu = sim_device_gpu(sim, device);
    if (!gpu)
        return 0;
    switch (compute_mode(sim, gpu, device)) {
    case NVML_COMPUTEMODE_DEFAULT:
        return 1;
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        return !sim_busy(sim, gpu, device->gi, device->ci);
    default:
        return 0;
    }
}

uint64_t sim_device_free(const sim_t *sim, const struct sim_device *device)
{
    const struct sim_gpu *gpu = sim_device_gpu(sim, device);
    uint64_t used = gpu ? sim_used_memory(sim, gpu, device->gi) : device->memory;
    return used < device->memory ? device->memory - used : 0;
}

void sim_device_hold(sim_t *sim, const struct sim_device *device)
{
    if (sim_lock(sim, 0) != NVML_SUCCESS)
        return;
    int slot = sim_gpu_slot(sim->core, device->gpu_serial);
    sim_unlock(sim);
    if (slot >= 0)
        sim_client_open(sim, slot);
}
