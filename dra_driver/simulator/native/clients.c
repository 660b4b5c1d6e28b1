/*
 * Who keeps a GPU open. Compute mode and time-slice hold from the first client to the last, unless
 * persistence mode is on; a GPU with other clients can't switch its MIG mode or be reset.
 *
 * A client holds a shared lock on a byte beyond the end of the state file, so the kernel knows who
 * lives. The byte belongs to one incarnation of the GPU: a driver reload, which no client survives,
 * gives it another. The first client finds nobody there, clears what an earlier session left (its
 * last client may have been killed) and begins a session. A process that may not write can't clear:
 * it joins a session if there is one, else it is a guest on the next byte, and what is left over from
 * the earlier session does not count.
 */
#include <fcntl.h>
#include <string.h>

#include "state.h"

static off_t session_byte(const struct sim_gpu *gpu)
{
    return SIM_BYTE_CLIENTS + (off_t)(gpu->incarnation * 2);
}

static off_t guest_byte(const struct sim_gpu *gpu)
{
    return session_byte(gpu) + 1;
}

static int in_session(const sim_t *sim, const struct sim_gpu *gpu)
{
    return sim->client[gpu - sim->core->gpu] == session_byte(gpu) ||
           sim_byte_held(sim->fd, session_byte(gpu), 1);
}

static void clear_session(struct sim_gpu *gpu)
{
    gpu->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    gpu->timeslice = 0;
    for (int i = 0; i < SIM_MAX_GIS; i++)
        for (int j = 0; j < SIM_MAX_CIS; j++)
            gpu->gi[i].ci[j].compute_mode = NVML_COMPUTEMODE_DEFAULT;
}

int sim_client_is_open(const sim_t *sim, int slot)
{
    const struct sim_gpu *gpu = &sim->core->gpu[slot];
    return sim->client[slot] == session_byte(gpu) || sim->client[slot] == guest_byte(gpu);
}

void sim_client_open(sim_t *sim, int slot)
{
    if (sim_lock(sim, sim->writable) != NVML_SUCCESS)
        return;
    struct sim_gpu *gpu = &sim->core->gpu[slot];
    off_t byte = in_session(sim, gpu) || sim->writable ? session_byte(gpu) : guest_byte(gpu);
    if (!sim_client_is_open(sim, slot)) {
        if (sim->writable && !in_session(sim, gpu) && !gpu->persistence)
            clear_session(gpu);
        if (sim->client[slot])
            sim_byte_lock(sim->fd, F_UNLCK, sim->client[slot], 1, 0);
        sim->client[slot] = sim_byte_lock(sim->fd, F_RDLCK, byte, 1, 0) == 0 ? byte : 0;
    }
    sim_unlock(sim);
}

void sim_client_close_all(sim_t *sim)
{
    if (sim_lock(sim, 0) != NVML_SUCCESS)
        return;
    sim_byte_lock(sim->fd, F_UNLCK, SIM_BYTE_CLIENTS, 0, 0);
    memset(sim->client, 0, sizeof sim->client);
    sim_unlock(sim);
}

int sim_session_lives(const sim_t *sim, const struct sim_gpu *gpu)
{
    return gpu->persistence || in_session(sim, gpu);
}

int sim_client_others(const sim_t *sim, const struct sim_gpu *gpu)
{
    return sim_byte_held(sim->fd, session_byte(gpu), 2);
}
