/*
 * A state as JSON: what `simulate show -o json` and `simulate calls` print.
 *
 *   {driverVersion, cudaVersion, bootId, stateFile, nvmlCalls, gpus: [...], mps: [...],
 *    faults: [...]}; mps is in show_mps.c
 *   gpu:      {index, minor, uuid, serial, pci, model, name, memoryBytes, moduleId, numaNode, lost,
 *              open, persistence, computeMode, timeslice, recoveryAction,
 *              ecc: {volatile, aggregate}, rows: {remapped, pending},
 *              mig: {supported, current, pending}, instances, processes, memoryLimits}
 *   instance: {id, profileId, profile, start, size, slices, memoryMiB, capabilityMinor,
 *              computeInstances: [{id, profileId, profile, start, size, uuid, computeMode,
 *                                  capabilityMinor}]}
 *   process:  {pid, memoryBytes, smPercent, type, gi, ci}; type: told (by hand), cuda, mps-client,
 *              mps-server; pid 0: in a PID namespace that can't be seen from here
 *   limit:    {cgroup, softBytes, hardBytes}
 *   fault:    {gpu, call, error, times, hangMs}         gpu null: all; times 0: for ever
 *   call:     {time, pid, process, call, arguments, result}
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "json.h"
#include "state.h"

static const char *compute_mode_name(uint32_t mode)
{
    static const char *const names[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED",
                                        "EXCLUSIVE_PROCESS"};
    return mode < sizeof names / sizeof *names ? names[mode] : "UNKNOWN";
}

/* Profile names without the word MIG, as people write them. */
static const char *bare(const char *name)
{
    return strncmp(name, "MIG ", 4) == 0 ? name + 4 : name;
}

static void put_ci(FILE *out, const struct sim_gpu *gpu, const struct sim_gi *gi,
                   const struct sim_ci *ci, const sim_ci_profile_t *profile, int session)
{
    fprintf(out, "{\"id\": %u, \"profileId\": %u, ", ci->id, profile->id);
    json_field(out, "profile", bare(profile->name));
    fprintf(out, "\"start\": %u, \"size\": %u, ", ci->start, profile->slices);
    json_field(out, "uuid", ci->uuid);
    json_field(out, "computeMode", compute_mode_name(session ? ci->compute_mode : 0));
    fprintf(out, "\"capabilityMinor\": %u}", sim_ci_minor(gpu, gi->id, ci->id));
}

static void put_gi(FILE *out, const struct sim_gpu *gpu, struct sim_gi *gi,
                   const sim_gi_profile_t *profile, int session)
{
    const char *comma = "";
    fprintf(out, "{\"id\": %u, \"profileId\": %u, ", gi->id, profile->id);
    json_field(out, "profile", bare(profile->name));
    fprintf(out, "\"start\": %u, \"size\": %u, \"slices\": %u, \"memoryMiB\": %u, ", gi->start,
            profile->size, profile->slices, profile->memory_mib);
    fprintf(out, "\"capabilityMinor\": %u, \"computeInstances\": [", sim_gi_minor(gpu, gi->id));
    for (uint32_t id = 0; id < SIM_MAX_CIS; id++) {
        const struct sim_ci *ci = sim_ci_by_id(gi, id);
        if (!ci)
            continue;
        fputs(comma, out);
        put_ci(out, gpu, gi, ci, &profile->ci[ci->profile], session);
        comma = ", ";
    }
    fputs("]}", out);
}

static void put_instances(FILE *out, struct sim_gpu *gpu, const sim_model_t *model, int session)
{
    const char *comma = "";
    fputs("\"instances\": [", out);
    for (uint32_t id = 0; id < 15; id++) {
        struct sim_gi *gi = sim_gi_by_id(gpu, id);
        if (!gi)
            continue;
        fputs(comma, out);
        put_gi(out, gpu, gi, &model->gi[gi->profile], session);
        comma = ", ";
    }
    fputs("], ", out);
}

static void put_process(FILE *out, const struct sim_process *process, const char *type,
                        const char *comma)
{
    fprintf(out, "%s{\"pid\": %u, \"memoryBytes\": %" PRIu64 ", \"smPercent\": %u, ", comma,
            process->pid, process->memory, process->sm_percent);
    json_field(out, "type", type);
    json_id(out, "gi", process->gi, ", ");
    json_id(out, "ci", process->ci, "}");
}

static void put_processes(FILE *out, const sim_t *sim, const struct sim_gpu *gpu)
{
    static const char *const types[] = {"cuda", "mps-client", "mps-server"};
    struct sim_context context;
    const char *comma = "";
    fputs("\"processes\": [", out);
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        if (!gpu->process[i].pid)
            continue;
        put_process(out, &gpu->process[i], "told", comma);
        comma = ", ";
    }
    for (int slot = -1; (slot = sim_next_context(sim, slot + 1, &context)) >= 0;) {
        if (!sim_context_runs_on(&context, gpu, SIM_NONE, SIM_NONE) || context.kind > 2)
            continue;
        uint32_t pid = sim_pid_here(context.pid, context.pid_namespace);
        put_process(out, &(struct sim_process){pid, context.gi, context.ci, 0, context.memory},
                    types[context.kind], comma);
        comma = ", ";
    }
    fputs("], ", out);
}

static void put_limits(FILE *out, const struct sim_core *core, const struct sim_gpu *gpu)
{
    const char *comma = "";
    fputs("\"memoryLimits\": [", out);
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        const struct sim_limit *limit = &core->limit[i];
        if (limit->gpu_serial != gpu->serial || !sim_limit_lives(limit))
            continue;
        fprintf(out, "%s{", comma);
        json_field(out, "cgroup", limit->path);
        fprintf(out, "\"softBytes\": %" PRIu64 ", \"hardBytes\": %" PRIu64 "}", limit->soft,
                limit->hard);
        comma = ", ";
    }
    fputs("]", out);
}

static void put_identity(FILE *out, const struct sim_gpu *gpu, const sim_model_t *model, int index)
{
    char pci[32];
    const sim_gpu_t *identity = &gpu->identity;
    fprintf(out, "{\"index\": %d, \"minor\": %d, ", index, identity->minor);
    json_field(out, "uuid", identity->uuid);
    json_field(out, "serial", identity->serial);
    snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", identity->pci_domain, identity->pci_bus,
             identity->pci_device);
    json_field(out, "pci", pci);
    json_field(out, "model", model->key);
    json_field(out, "name", model->name);
    fprintf(out, "\"memoryBytes\": %" PRIu64 ", \"moduleId\": %u, \"numaNode\": %d, ",
            model->memory_bytes, identity->module_id, identity->numa_node);
}

static void put_gpu(FILE *out, sim_t *sim, struct sim_gpu *gpu, int index)
{
    const sim_model_t *model = sim_model_of(sim, gpu);
    int session = sim_session_lives(sim, gpu);
    put_identity(out, gpu, model, index);
    json_bool(out, "lost", (int)gpu->lost);
    json_bool(out, "open", sim_client_others(sim, gpu));
    json_bool(out, "persistence", (int)gpu->persistence);
    json_field(out, "computeMode", compute_mode_name(session ? gpu->compute_mode : 0));
    fprintf(out, "\"timeslice\": %u, \"recoveryAction\": %u, ", session ? gpu->timeslice : 0,
            gpu->recovery_action);
    fprintf(out, "\"ecc\": {\"volatile\": %" PRIu64 ", \"aggregate\": %" PRIu64 "}, ",
            gpu->ecc_volatile, gpu->ecc_aggregate);
    fprintf(out, "\"rows\": {\"remapped\": %u, \"pending\": %s}, ", gpu->remapped_rows,
            gpu->remap_pending ? "true" : "false");
    fprintf(out, "\"mig\": {\"supported\": %s, \"current\": %s, \"pending\": %s}, ",
            model->abilities & SIM_MIG ? "true" : "false", gpu->mig_current ? "true" : "false",
            gpu->mig_pending ? "true" : "false");
    put_instances(out, gpu, model, session);
    put_processes(out, sim, gpu);
    put_limits(out, sim->core, gpu);
    fputs("}", out);
}

static void put_faults(FILE *out, const struct sim_core *core)
{
    int slots[SIM_MAX_GPUS];
    int count = sim_gpu_order(core, slots);
    const char *comma = "";
    fputs("\"faults\": [", out);
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &core->fault[i];
        uint32_t index = SIM_NONE;
        if (!fault->function[0])
            continue;
        for (int n = 0; n < count; n++)
            if (core->gpu[slots[n]].serial == fault->gpu_serial)
                index = (uint32_t)n;
        fprintf(out, "%s{", comma);
        json_id(out, "gpu", index, ", ");
        json_field(out, "call", fault->function);
        json_field(out, "error", sim_error_name((nvmlReturn_t)fault->error));
        fprintf(out, "\"times\": %u, \"hangMs\": %u}", fault->times, fault->hang_ms);
        comma = ", ";
    }
    fputs("]", out);
}

static void put_node(FILE *out, sim_t *sim)
{
    int slots[SIM_MAX_GPUS];
    int count = sim_gpu_order(sim->core, slots);
    char cuda[16];
    fputs("{", out);
    json_field(out, "driverVersion", sim->core->driver_version);
    snprintf(cuda, sizeof cuda, "%d.%d", sim->core->cuda_version / 1000,
             sim->core->cuda_version % 1000 / 10);
    json_field(out, "cudaVersion", cuda);
    json_field(out, "bootId", sim->core->boot_id);
    json_field(out, "stateFile", sim->path);
    fprintf(out, "\"nvmlCalls\": %llu, \"gpus\": [", atomic_load(&sim->file->nvml_calls));
    for (int i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        put_gpu(out, sim, &sim->core->gpu[slots[i]], i);
    }
    fputs("], ", out);
    sim_put_mps(out, sim);
    fputs(", ", out);
    put_faults(out, sim->core);
    fputs("}\n", out);
}

static void put_call(FILE *out, const struct sim_call *call)
{
    time_t seconds = (time_t)(call->time_ns / 1000000000u);
    struct tm utc;
    char time[32];
    gmtime_r(&seconds, &utc);
    strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
    fprintf(out, "{\"time\": \"%s.%06uZ\", \"pid\": %u, ", time,
            (unsigned int)(call->time_ns % 1000000000u / 1000u), call->pid);
    json_field(out, "process", call->process);
    json_field(out, "call", call->function);
    json_field(out, "arguments", call->arguments);
    fputs("\"result\": ", out);
    json_text(out, sim_error_name((nvmlReturn_t)call->result));
    fputs("}", out);
}

static void put_calls(FILE *out, sim_t *sim)
{
    uint64_t count = sim->core->call_count, kept = SIM_CALLS - 1;
    fputs("[", out);
    for (uint64_t i = count > kept ? count - kept : 0; i < count; i++) {
        put_call(out, &sim->file->call[i % SIM_CALLS]);
        fputs(i + 1 < count ? ", " : "", out);
    }
    fputs("]\n", out);
}

static nvmlReturn_t print(sim_t *sim, void (*put)(FILE *, sim_t *), char **text)
{
    size_t size;
    FILE *out = open_memstream(text, &size);
    if (!out)
        return sim_fail(NVML_ERROR_MEMORY, "out of memory");
    nvmlReturn_t result = sim_lock(sim, 0);
    if (result == NVML_SUCCESS) {
        put(out, sim);
        sim_unlock(sim);
    }
    fclose(out);
    if (result != NVML_SUCCESS)
        free(*text);
    return result;
}

nvmlReturn_t sim_show_json(sim_t *sim, char **text)
{
    return print(sim, put_node, text);
}

nvmlReturn_t sim_calls_json(sim_t *sim, char **text)
{
    return print(sim, put_calls, text);
}

nvmlReturn_t sim_call_count(sim_t *sim, uint64_t *count)
{
    *count = atomic_load(&sim->file->nvml_calls);
    return NVML_SUCCESS;
}

void sim_free(char *text)
{
    free(text);
}
