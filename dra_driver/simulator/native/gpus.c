/* Finding GPUs in a state, and what they hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "state.h"

static int pci_compare(const sim_gpu_t *a, const sim_gpu_t *b)
{
    uint32_t left[] = {a->pci_domain, a->pci_bus, a->pci_device};
    uint32_t right[] = {b->pci_domain, b->pci_bus, b->pci_device};
    for (int i = 0; i < 3; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

int sim_gpu_order(const struct sim_core *core, int slots[SIM_MAX_GPUS])
{
    int count = 0;
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++) {
        if (!core->gpu[slot].serial)
            continue;
        int at = count++;
        for (; at > 0; at--) {
            const sim_gpu_t *before = &core->gpu[slots[at - 1]].identity;
            if (pci_compare(before, &core->gpu[slot].identity) < 0)
                break;
            slots[at] = slots[at - 1];
        }
        slots[at] = slot;
    }
    return count;
}

nvmlReturn_t sim_gpu_at(sim_t *sim, int position, int *slot)
{
    int slots[SIM_MAX_GPUS];
    int count = sim_gpu_order(sim->core, slots);
    if (position < 0 || position >= count)
        return sim_fail(NVML_ERROR_NOT_FOUND, "there is no GPU %d, the node has %d", position,
                        count);
    *slot = slots[position];
    return NVML_SUCCESS;
}

int sim_gpu_slot(const struct sim_core *core, uint64_t serial)
{
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (serial && core->gpu[slot].serial == serial)
            return slot;
    return -1;
}

const sim_model_t *sim_model_of(const sim_t *sim, const struct sim_gpu *gpu)
{
    return &sim->file->model[gpu->model];
}

void sim_pci_text(const sim_gpu_t *gpu, char *text, size_t size)
{
    snprintf(text, size, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

/* A PCI address in any usual form: 00000000:1B:00.0, 0000:1b:00.0, 1b:00.0, with or without .0. */
static int pci_matches(const sim_gpu_t *gpu, const char *text)
{
    unsigned int domain = 0, bus, device, function = 0;
    int end = 0;
    if ((sscanf(text, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &end) < 4 ||
         text[end]) &&
        (sscanf(text, "%x:%x:%x%n", &domain, &bus, &device, &end) < 3 || text[end])) {
        domain = 0;
        if ((sscanf(text, "%x:%x.%x%n", &bus, &device, &function, &end) < 3 || text[end]) &&
            (sscanf(text, "%x:%x%n", &bus, &device, &end) < 2 || text[end]))
            return 0;
    }
    return gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == device &&
           function == 0;
}

static int position_of(const struct sim_core *core, const char *text)
{
    int slots[SIM_MAX_GPUS];
    int count = sim_gpu_order(core, slots);
    char *end;
    long number = strtol(text, &end, 10);
    if (*text && !*end)
        return number >= 0 && number < count ? (int)number : -1;
    for (int i = 0; i < count; i++) {
        const sim_gpu_t *identity = &core->gpu[slots[i]].identity;
        if (strcasecmp(identity->uuid, text) == 0 || pci_matches(identity, text))
            return i;
    }
    return -1;
}

nvmlReturn_t sim_find_gpu(sim_t *sim, const char *text, int *gpu)
{
    nvmlReturn_t result = sim_lock(sim, 0);
    if (result != NVML_SUCCESS)
        return result;
    *gpu = position_of(sim->core, text);
    sim_unlock(sim);
    return *gpu >= 0 ? NVML_SUCCESS : sim_fail(NVML_ERROR_NOT_FOUND, "there is no GPU %s", text);
}

uint64_t sim_used_memory(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi)
{
    struct sim_context context;
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (gpu->process[i].pid && (gi == SIM_NONE || gpu->process[i].gi == gi))
            used += gpu->process[i].memory;
    for (int slot = -1; (slot = sim_next_context(sim, slot + 1, &context)) >= 0;)
        if (sim_context_runs_on(&context, gpu, gi, SIM_NONE))
            used += context.memory;
    return used;
}

int sim_busy(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi, uint32_t ci)
{
    struct sim_context context;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &gpu->process[i];
        if (process->pid && (gi == SIM_NONE || process->gi == gi) &&
            (ci == SIM_NONE || process->ci == ci))
            return 1;
    }
    for (int slot = -1; (slot = sim_next_context(sim, slot + 1, &context)) >= 0;)
        if (sim_context_runs_on(&context, gpu, gi, ci))
            return 1;
    return 0;
}

void sim_gpu_clear(struct sim_gpu *gpu)
{
    memset(gpu->gi, 0, sizeof gpu->gi);
    memset(gpu->process, 0, sizeof gpu->process);
    gpu->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    gpu->timeslice = 0;
    gpu->ecc_volatile = 0;
    gpu->remap_pending = 0;
    gpu->recovery_action = NVML_GPU_RECOVERY_ACTION_NONE;
}
