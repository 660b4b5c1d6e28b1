/* Resets, reboots, driver reloads and upgrades: what survives them and what does not. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

void sim_gpu_reset(sim_t *sim, struct sim_gpu *gpu)
{
    sim_gpu_clear(gpu);
    gpu->lost = 0;
    gpu->mig_current = gpu->mig_pending;
    gpu->incarnation = sim->core->next_serial++;
    sim_limits_forget(sim->core, gpu->serial);
}

/* The driver comes up anew: MIG mode is kept where switching it takes a reset (Ampere), since it
 * stands in the GPU's own memory there; persistence mode is off. */
static void reload_gpu(sim_t *sim, struct sim_gpu *gpu)
{
    if (sim_model_of(sim, gpu)->abilities & SIM_MIG_SWITCH_AT_ONCE)
        gpu->mig_pending = NVML_DEVICE_MIG_DISABLE;
    sim_gpu_reset(sim, gpu);
    gpu->persistence = 0;
}

static void reload(sim_t *sim)
{
    sim->core->epoch++;
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (sim->core->gpu[slot].serial)
            reload_gpu(sim, &sim->core->gpu[slot]);
    sim_nodes_sync(sim);
}

nvmlReturn_t sim_reset(sim_t *sim, int gpu)
{
    int slot = 0;
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    result = sim_gpu_at(sim, gpu, &slot);
    if (result == NVML_SUCCESS) {
        sim_gpu_reset(sim, &sim->core->gpu[slot]);
        sim_nodes_sync_gpu(sim, &sim->core->gpu[slot]);
    }
    sim_unlock(sim);
    sim_wake(sim);
    return result;
}

nvmlReturn_t sim_reboot(sim_t *sim)
{
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    sim_random_uuid(sim->core->boot_id, sizeof sim->core->boot_id, "");
    reload(sim);
    sim_unlock(sim);
    sim_wake(sim);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_driver_reload(sim_t *sim)
{
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    reload(sim);
    sim_unlock(sim);
    sim_wake(sim);
    return NVML_SUCCESS;
}

/* Under the lock. The file is found anew: another process may have given it another name since. */
static nvmlReturn_t rename_state(sim_t *sim, const char *version)
{
    char from[PATH_MAX], to[PATH_MAX];
    nvmlReturn_t result = sim_find_state(sim->prefix, sim->core->driver_version, from, sizeof from);
    if (result == NVML_SUCCESS)
        result = sim_state_path(sim->prefix, version, to, sizeof to);
    if (result != NVML_SUCCESS)
        return result;
    if (strcmp(from, to) != 0 && rename(from, to) < 0)
        return sim_fail(NVML_ERROR_OPERATING_SYSTEM, "rename %s: %s", from, strerror(errno));
    sim_copy(sim->path, sizeof sim->path, to);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_driver_version(sim_t *sim, const char *version, int cuda_version)
{
    nvmlReturn_t result = sim_check_version(version);
    if (result == NVML_SUCCESS)
        result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    result = rename_state(sim, version);
    if (result == NVML_SUCCESS) {
        sim_copy(sim->core->driver_version, sizeof sim->core->driver_version, version);
        sim->core->cuda_version = cuda_version;
        reload(sim);
    }
    sim_unlock(sim);
    sim_wake(sim);
    return result;
}

static nvmlReturn_t give(sim_t *sim, size_t offset, char *text, size_t size)
{
    nvmlReturn_t result = sim_lock(sim, 0);
    if (result != NVML_SUCCESS)
        return result;
    sim_copy(text, size, (const char *)sim->core + offset);
    sim_unlock(sim);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_get_driver_version(sim_t *sim, char *text, size_t size)
{
    return give(sim, offsetof(struct sim_core, driver_version), text, size);
}

nvmlReturn_t sim_get_boot_id(sim_t *sim, char *text, size_t size)
{
    return give(sim, offsetof(struct sim_core, boot_id), text, size);
}
