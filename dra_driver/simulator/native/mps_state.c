/* MPS daemons in the state of the node: what they are, and the faults that were put on them. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "state.h"

const struct sim_mps *sim_mps_at(const sim_t *sim, int place)
{
    return sim_byte_held(sim->fd, SIM_BYTE_MPS + place, 1) ? &sim->file->mps[place] : NULL;
}

/* Under the lock for writing. A description of its own holds the byte until the process ends. */
static nvmlReturn_t take_place(const sim_t *sim, int *place, int *fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", sim->fd);
    *fd = open(link, O_RDONLY | O_CLOEXEC);
    for (*place = 0; *fd >= 0 && *place < SIM_MAX_MPS; ++*place)
        if (!sim_byte_held(sim->fd, SIM_BYTE_MPS + *place, 1) &&
            sim_byte_lock(*fd, F_RDLCK, SIM_BYTE_MPS + *place, 1, 0) == 0)
            return NVML_SUCCESS;
    if (*fd >= 0)
        close(*fd);
    return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "there are %d MPS daemons already",
                    SIM_MAX_MPS);
}

nvmlReturn_t sim_mps_enter(sim_t *sim, struct sim_mps *entry, int *place, int *fd)
{
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    result = take_place(sim, place, fd);
    if (result == NVML_SUCCESS) {
        entry->serial = sim->core->next_serial++;
        sim->file->mps[*place] = *entry;
    }
    sim_unlock(sim);
    return result;
}

void sim_mps_update(sim_t *sim, int place, const struct sim_mps *entry)
{
    if (sim_lock(sim, 1) != NVML_SUCCESS)
        return;
    sim->file->mps[place] = *entry;
    sim_unlock(sim);
}

nvmlReturn_t sim_mps_fault(sim_t *sim, const char *action, const struct sim_device *devices,
                           int count, uint32_t *hang_ms)
{
    nvmlReturn_t error = NVML_SUCCESS;
    *hang_ms = 0;
    if (sim_lock(sim, sim->writable) != NVML_SUCCESS)
        return NVML_SUCCESS;
    if (count == 0)
        error = sim_fault_use(sim, action, 0, hang_ms);
    for (int i = 0; i < count && error == NVML_SUCCESS && *hang_ms == 0; i++)
        error = sim_fault_use(sim, action, devices[i].gpu_serial, hang_ms);
    sim_unlock(sim);
    return error;
}
