/* Faults that an administrator or a test has put on NVML calls. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

/* The length of a function's name without what tells its versions apart. */
static size_t base_length(const char *function)
{
    static const char flags[] = "WithFlags";
    size_t length = strlen(function), digits = length;
    if (length > sizeof flags - 1 && strcmp(function + length - (sizeof flags - 1), flags) == 0)
        return length - (sizeof flags - 1);
    if (length && function[length - 1] == 'V')
        return length - 1;
    while (digits && isdigit((unsigned char)function[digits - 1]))
        digits--;
    if (digits < length && digits >= 2 && strncmp(function + digits - 2, "_v", 2) == 0)
        return digits - 2;
    return length;
}

static int name_matches(const char *wanted, const char *function)
{
    size_t length = strlen(wanted);
    if (length && wanted[length - 1] == '*')
        return strncmp(wanted, function, length - 1) == 0;
    return strcmp(wanted, function) == 0 ||
           (length == base_length(function) && strncmp(wanted, function, length) == 0);
}

struct sim_fault *sim_fault_for(struct sim_core *core, const char *function, uint64_t gpu_serial)
{
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &core->fault[i];
        if (fault->function[0] && (!fault->gpu_serial || fault->gpu_serial == gpu_serial) &&
            name_matches(fault->function, function))
            return fault;
    }
    return NULL;
}

nvmlReturn_t sim_fault_use(sim_t *sim, const char *function, uint64_t gpu_serial,
                           uint32_t *hang_ms)
{
    struct sim_fault *fault = sim_fault_for(sim->core, function, gpu_serial);
    if (!fault)
        return NVML_SUCCESS;
    nvmlReturn_t error = (nvmlReturn_t)fault->error;
    *hang_ms = fault->hang_ms;
    if (fault->times && sim->writing && --fault->times == 0)
        memset(fault, 0, sizeof *fault);
    return error;
}

/* What is no function: see sim_fault in sim.h. */
static int is_action(const char *name)
{
    static const char *const actions[] = {SIM_FAULT_ACTIVATION, "mps.start",        "mps.attach",
                                          "mps.server",         "mps.crash", "mps.server.crash"};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(name, actions[i]) == 0)
            return 1;
    return strncmp(name, "mps.command.", 12) == 0 && name[12];
}

/* Whether this library has such a function: a misspelt fault would never come. A static program
 * can't look itself up and believes it. */
static int function_exists(const char *name)
{
    if (is_action(name))
        return 1;
#ifdef SIM_STATIC
    return name[0] != '\0';
#else
    static const char *const endings[] = {"", "_v1", "_v2", "_v3", "_v4", "V", "WithFlags"};
    char versioned[SIM_NAME + 16];
    Dl_info info;
    void *self = dladdr(endings, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    int found = self == NULL || strchr(name, '*') != NULL;
    for (size_t i = 0; self && i < sizeof endings / sizeof *endings; i++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, endings[i]);
        found |= dlsym(self, versioned) != NULL;
    }
    if (self)
        dlclose(self);
    return found;
#endif
}

static nvmlReturn_t add_fault(sim_t *sim, const struct sim_fault *fault)
{
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        if (sim->core->fault[i].function[0])
            continue;
        sim->core->fault[i] = *fault;
        return NVML_SUCCESS;
    }
    return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "there are %d faults already",
                    SIM_MAX_FAULTS);
}

nvmlReturn_t sim_fault(sim_t *sim, int gpu, const char *function, int error, uint32_t times,
                       uint32_t hang_ms)
{
    struct sim_fault fault = {.error = (uint32_t)error, .times = times, .hang_ms = hang_ms};
    int slot = -1;
    if (strlen(function) >= sizeof fault.function || !function_exists(function))
        return sim_fail(NVML_ERROR_FUNCTION_NOT_FOUND, "the simulated NVML has no function %s",
                        function);
    sim_copy(fault.function, sizeof fault.function, function);
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu >= 0)
        result = sim_gpu_at(sim, gpu, &slot);
    if (result == NVML_SUCCESS) {
        fault.gpu_serial = slot >= 0 ? sim->core->gpu[slot].serial : 0;
        result = add_fault(sim, &fault);
    }
    sim_unlock(sim);
    sim_wake(sim);
    return result;
}

nvmlReturn_t sim_clear(sim_t *sim)
{
    nvmlReturn_t result = sim_lock(sim, 1);
    if (result != NVML_SUCCESS)
        return result;
    memset(sim->core->fault, 0, sizeof sim->core->fault);
    sim_unlock(sim);
    sim_wake(sim);
    return NVML_SUCCESS;
}
