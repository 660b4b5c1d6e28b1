/* Changing a state from outside: models and GPUs, partitions by hand, processes, bad luck. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define MAX_MINOR 253 /* 254 and 255 are nvidia-modeset and nvidiactl */

/* Begin a change of one GPU; on success sim_unlock or finish must follow. */
static nvmlReturn_t begin(sim_t *sim, int position, struct sim_gpu **gpu)
{
    int slot = 0;
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    result = sim_gpu_at(sim, position, &slot);
    if (result != NVML_SUCCESS)
        sim_unlock(sim);
    else
        *gpu = &sim->core->gpu[slot];
    return result;
}

static nvmlReturn_t finish(sim_t *sim, nvmlReturn_t result)
{
    sim_unlock(sim);
    sim_wake(sim);
    return result;
}

static int profile_is_sound(const sim_gi_profile_t *profile)
{
    int sound = profile->slices >= 1 && profile->slices <= SIM_MAX_CIS && profile->size >= 1 &&
                profile->size <= 8 && profile->starts && profile->starts < 1u << 8 &&
                profile->max_instances <= SIM_MAX_GIS && profile->ci_count <= SIM_MAX_CI_PROFILES;
    for (uint32_t i = 0; sound && i < profile->ci_count; i++) {
        const sim_ci_profile_t *ci = &profile->ci[i];
        sound = ci->slices >= 1 && ci->slices <= profile->slices && ci->starts &&
                ci->starts < 1u << SIM_MAX_CIS && memchr(ci->name, 0, sizeof ci->name);
    }
    return sound && memchr(profile->name, 0, sizeof profile->name);
}

/* The rest of the code trusts these bounds. */
static nvmlReturn_t check_model(const sim_model_t *model)
{
    int sound = model->gi_count <= SIM_MAX_GI_PROFILES && model->compute_slices < SIM_MAX_GIS &&
                memchr(model->key, 0, sizeof model->key) &&
                memchr(model->name, 0, sizeof model->name) &&
                memchr(model->vbios, 0, sizeof model->vbios);
    for (uint32_t i = 0; sound && i < model->gi_count; i++)
        sound = profile_is_sound(&model->gi[i]);
    return sound ? NVML_SUCCESS
                 : sim_fail(NVML_ERROR_INVALID_ARGUMENT, "model %.*s goes beyond what a GPU can be",
                            SIM_NAME - 1, model->key);
}

static const sim_model_t *find_model(const sim_t *sim, const char *key)
{
    for (uint32_t i = 0; i < sim->core->model_count; i++)
        if (strcmp(sim->file->model[i].key, key) == 0)
            return &sim->file->model[i];
    return NULL;
}

nvmlReturn_t sim_add_model(sim_t *sim, const sim_model_t *model, size_t size)
{
    if (size != sizeof *model)
        return sim_fail(NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                        "the native library is of another build: run `make native`");
    nvmlReturn_t result = check_model(model);
    if (result == NVML_SUCCESS)
        result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    const sim_model_t *known = find_model(sim, model->key);
    if (known && memcmp(known, model, sizeof *model) != 0)
        result = sim_fail(NVML_ERROR_INVALID_STATE, "the node has another model of the name %s",
                          model->key);
    else if (!known && sim->core->model_count == SIM_MAX_MODELS)
        result = sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "a node holds %d models at most",
                          SIM_MAX_MODELS);
    else if (!known)
        sim->file->model[sim->core->model_count++] = *model;
    return finish(sim, result);
}

static int minor_taken(const struct sim_core *core, int minor)
{
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (core->gpu[slot].serial && core->gpu[slot].identity.minor == minor)
            return 1;
    return 0;
}

static nvmlReturn_t check_new_gpu(sim_t *sim, const sim_gpu_t *new)
{
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++) {
        const sim_gpu_t *other = &sim->core->gpu[slot].identity;
        if (!sim->core->gpu[slot].serial)
            continue;
        if (strcmp(other->uuid, new->uuid) == 0 ||
            (other->pci_domain == new->pci_domain && other->pci_bus == new->pci_bus &&
             other->pci_device == new->pci_device))
            return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s has this UUID or PCI address already",
                            other->uuid);
    }
    if (new->minor > MAX_MINOR || (new->minor >= 0 && minor_taken(sim->core, new->minor)))
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "minor %d is taken or above %d", new->minor,
                        MAX_MINOR);
    return NVML_SUCCESS;
}

static nvmlReturn_t plug_in(sim_t *sim, const sim_gpu_t *new)
{
    const sim_model_t *model = find_model(sim, new->model);
    int slot = 0, minor = new->minor < 0 ? 0 : new->minor;
    if (!model)
        return sim_fail(NVML_ERROR_NOT_FOUND, "the node knows no model %s", new->model);
    nvmlReturn_t result = check_new_gpu(sim, new);
    while (slot < SIM_MAX_GPUS && sim->core->gpu[slot].serial)
        slot++;
    if (result == NVML_SUCCESS && slot == SIM_MAX_GPUS)
        result = sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "a node holds %d GPUs at most",
                          SIM_MAX_GPUS);
    if (result != NVML_SUCCESS)
        return result;
    while (new->minor < 0 && minor_taken(sim->core, minor))
        minor++;
    struct sim_gpu *gpu = &sim->core->gpu[slot];
    memset(gpu, 0, sizeof *gpu);
    gpu->identity = *new;
    gpu->identity.minor = minor;
    gpu->model = (uint32_t)(model - sim->file->model);
    gpu->serial = sim->core->next_serial++;
    gpu->incarnation = sim->core->next_serial++;
    sim_nodes_sync(sim);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_add_gpu(sim_t *sim, const sim_gpu_t *gpu, size_t size)
{
    sim_gpu_t new;
    if (size != sizeof new)
        return sim_fail(NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                        "the native library is of another build: run `make native`");
    new = *gpu;
    new.model[sizeof new.model - 1] = new.uuid[sizeof new.uuid - 1] = '\0';
    new.serial[sizeof new.serial - 1] = '\0';
    nvmlReturn_t result = sim_lock(sim, 1);
    return result == NVML_SUCCESS ? finish(sim, plug_in(sim, &new)) : result;
}

nvmlReturn_t sim_remove_gpu(sim_t *sim, int position)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    sim_gpu_clear(gpu);
    sim_nodes_sync_gpu(sim, gpu);
    sim_limits_forget(sim->core, gpu->serial);
    memset(gpu, 0, sizeof *gpu);
    return finish(sim, NVML_SUCCESS);
}

nvmlReturn_t sim_set_mig_mode(sim_t *sim, int position, int on)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (!(sim_model_of(sim, gpu)->abilities & SIM_MIG))
        return finish(sim, sim_fail(NVML_ERROR_NOT_SUPPORTED, "%s has no MIG",
                                    sim_model_of(sim, gpu)->name));
    if (sim_mig_switch(sim, gpu, on ? 1 : 0, 0) == NVML_ERROR_IN_USE) {
        gpu->mig_pending = gpu->mig_current;
        result = sim_fail(NVML_ERROR_IN_USE, "GPU %d has instances or processes", position);
    }
    return finish(sim, result);
}

/* A profile by number, `1g.10gb` or `MIG 1g.10gb`. */
static const sim_gi_profile_t *find_profile(const sim_model_t *model, const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (*text && !*end)
        return sim_gi_profile(model, (uint32_t)number);
    for (uint32_t i = 0; i < model->gi_count; i++) {
        const char *name = model->gi[i].name;
        if (strcmp(name, text) == 0 || (strncmp(name, "MIG ", 4) == 0 && !strcmp(name + 4, text)))
            return &model->gi[i];
    }
    return NULL;
}

static nvmlReturn_t fill_instance(sim_t *sim, struct sim_gpu *gpu, struct sim_gi *gi)
{
    const sim_gi_profile_t *profile = &sim_model_of(sim, gpu)->gi[gi->profile];
    struct sim_ci *ci;
    for (uint32_t i = 0; i < profile->ci_count; i++)
        if (profile->ci[i].slices == profile->slices && profile->ci[i].creatable)
            return sim_ci_create(sim, gpu, gi, profile->ci[i].id, -1, &ci);
    return sim_fail(NVML_ERROR_NOT_SUPPORTED, "%s has no whole compute instance", profile->name);
}

nvmlReturn_t sim_partition(sim_t *sim, int position, const char *profile, int start,
                           int compute_instance, uint32_t *gi_id)
{
    struct sim_gpu *gpu;
    struct sim_gi *gi = NULL;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    const sim_gi_profile_t *found = find_profile(sim_model_of(sim, gpu), profile);
    if (!found)
        return finish(sim, sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s has no MIG profile %s",
                                    sim_model_of(sim, gpu)->name, profile));
    result = sim_gi_create(sim, gpu, found->id, start, &gi);
    if (result == NVML_SUCCESS && compute_instance)
        result = fill_instance(sim, gpu, gi);
    if (result == NVML_SUCCESS)
        *gi_id = gi->id;
    else if (gi)
        memset(gi, 0, sizeof *gi);
    sim_nodes_sync_gpu(sim, gpu);
    return finish(sim, result);
}

nvmlReturn_t sim_unpartition(sim_t *sim, int position, uint32_t gi_id)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    struct sim_gi *gi = sim_gi_by_id(gpu, gi_id);
    if (!gi)
        return finish(sim, sim_fail(NVML_ERROR_NOT_FOUND, "GPU %d has no GPU instance %u", position,
                                    gi_id));
    if (sim_busy(sim, gpu, gi_id, SIM_NONE))
        return finish(sim, sim_fail(NVML_ERROR_IN_USE, "processes run on instance %u", gi_id));
    memset(gi, 0, sizeof *gi);
    sim_nodes_sync_gpu(sim, gpu);
    return finish(sim, NVML_SUCCESS);
}

/* gi, ci as given by callers: negative for the whole GPU or the whole GPU instance. */
static nvmlReturn_t check_instance(struct sim_gpu *gpu, int gi_id, int ci_id)
{
    struct sim_gi *gi = gi_id < 0 ? NULL : sim_gi_by_id(gpu, (uint32_t)gi_id);
    if ((gi_id >= 0 && !gi) || (ci_id >= 0 && (!gi || !sim_ci_by_id(gi, (uint32_t)ci_id))))
        return sim_fail(NVML_ERROR_NOT_FOUND, "the GPU has no instance %d with compute instance %d",
                        gi_id, ci_id);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_xid(sim_t *sim, int position, uint64_t xid, int gi_id, int ci_id)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    result = check_instance(gpu, gi_id, ci_id);
    if (result == NVML_SUCCESS) {
        struct sim_event event = {gpu->serial, nvmlEventTypeXidCriticalError, xid,
                                  gi_id < 0 ? SIM_NONE : (uint32_t)gi_id,
                                  ci_id < 0 ? SIM_NONE : (uint32_t)ci_id};
        sim_event_push(sim, &event);
    }
    return finish(sim, result);
}

nvmlReturn_t sim_ecc(sim_t *sim, int position)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    uint32_t abilities = sim_model_of(sim, gpu)->abilities;
    if (!(abilities & SIM_ECC))
        return finish(sim, sim_fail(NVML_ERROR_NOT_SUPPORTED, "%s has no ECC memory",
                                    sim_model_of(sim, gpu)->name));
    struct sim_event event = {gpu->serial, nvmlEventTypeDoubleBitEccError, 0, SIM_NONE, SIM_NONE};
    sim_event_push(sim, &event);
    gpu->ecc_volatile++;
    gpu->ecc_aggregate++;
    if (abilities & SIM_ROW_REMAP) {
        gpu->remapped_rows++;
        gpu->remap_pending = 1;
        gpu->recovery_action = NVML_GPU_RECOVERY_ACTION_GPU_RESET;
    }
    return finish(sim, NVML_SUCCESS);
}

/* XID 79 says that the GPU has fallen off the bus; it comes before the GPU stops to answer. */
nvmlReturn_t sim_lose(sim_t *sim, int position)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    struct sim_event event = {gpu->serial, nvmlEventTypeXidCriticalError, 79, SIM_NONE, SIM_NONE};
    sim_event_push(sim, &event);
    gpu->lost = 1;
    return finish(sim, NVML_SUCCESS);
}

nvmlReturn_t sim_restore(sim_t *sim, int position)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu->lost)
        sim_gpu_reset(sim, gpu);
    sim_nodes_sync_gpu(sim, gpu);
    return finish(sim, NVML_SUCCESS);
}

static nvmlReturn_t put_process(struct sim_gpu *gpu, const struct sim_process *wanted)
{
    struct sim_process *place = NULL;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *process = &gpu->process[i];
        int same = process->pid == wanted->pid && process->gi == wanted->gi &&
                   process->ci == wanted->ci;
        if (same || (!process->pid && !place))
            place = process;
        if (same)
            break;
    }
    if (!place)
        return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "a GPU holds %d processes at most",
                        SIM_MAX_PROCESSES);
    if (wanted->memory)
        *place = *wanted;
    else
        memset(place, 0, sizeof *place);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_process(sim_t *sim, int position, int gi_id, int ci_id, uint32_t pid,
                         uint64_t memory_bytes, uint32_t sm_percent)
{
    struct sim_gpu *gpu;
    struct sim_process process = {pid, gi_id < 0 ? SIM_NONE : (uint32_t)gi_id,
                                  ci_id < 0 ? SIM_NONE : (uint32_t)ci_id, sm_percent, memory_bytes};
    if (!pid || sm_percent > 100)
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "pid must not be 0, sm not above 100");
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    result = check_instance(gpu, gi_id, ci_id);
    if (result == NVML_SUCCESS && gpu->mig_current != (ci_id >= 0))
        result = sim_fail(NVML_ERROR_INVALID_ARGUMENT,
                          gpu->mig_current ? "with MIG on, processes run on compute instances"
                                           : "MIG is off: there are no instances");
    return finish(sim, result == NVML_SUCCESS ? put_process(gpu, &process) : result);
}

nvmlReturn_t sim_set_recovery_action(sim_t *sim, int position, uint32_t action)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (action > NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT)
        return finish(sim, sim_fail(NVML_ERROR_INVALID_ARGUMENT, "there is no action %u", action));
    gpu->recovery_action = action;
    return finish(sim, NVML_SUCCESS);
}

nvmlReturn_t sim_set_persistence(sim_t *sim, int position, int on)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    gpu->persistence = on ? 1 : 0;
    return finish(sim, NVML_SUCCESS);
}

nvmlReturn_t sim_set_minor(sim_t *sim, int position, uint32_t minor)
{
    struct sim_gpu *gpu;
    nvmlReturn_t result = begin(sim, position, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (minor > MAX_MINOR)
        return finish(sim, sim_fail(NVML_ERROR_INVALID_ARGUMENT, "minor %u is above %d", minor,
                                    MAX_MINOR));
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (sim->core->gpu[slot].serial && sim->core->gpu[slot].identity.minor == (int32_t)minor)
            sim->core->gpu[slot].identity.minor = gpu->identity.minor;
    gpu->identity.minor = (int32_t)minor;
    sim_nodes_sync(sim);
    return finish(sim, NVML_SUCCESS);
}
