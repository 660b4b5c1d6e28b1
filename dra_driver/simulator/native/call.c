/* See call.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "call.h"

/* A handle's low 48 bits are the thing's serial, the high ones say what it is. */
enum { TAG_GPU = 0x4701, TAG_MIG = 0x4702, TAG_GI = 0x4703, TAG_CI = 0x4704 };
#define SERIAL_BITS 48

static void *make_handle(uint64_t tag, uint64_t serial)
{
    return (void *)(uintptr_t)(tag << SERIAL_BITS | serial);
}

void *handle_of_gpu(const struct sim_gpu *gpu)
{
    return make_handle(TAG_GPU, gpu->serial);
}

void *handle_of_mig(const struct sim_ci *ci)
{
    return make_handle(TAG_MIG, ci->serial);
}

void *handle_of_gi(const struct sim_gi *gi)
{
    return make_handle(TAG_GI, gi->serial);
}

void *handle_of_ci(const struct sim_ci *ci)
{
    return make_handle(TAG_CI, ci->serial);
}

static int kind_of(uint64_t tag)
{
    switch (tag) {
    case TAG_GPU:
        return ON_GPU;
    case TAG_MIG:
        return ON_MIG;
    case TAG_GI:
        return ON_GI;
    case TAG_CI:
        return ON_CI;
    default:
        return 0;
    }
}

static int find_ci(struct call *call, uint64_t serial)
{
    for (int i = 0; i < SIM_MAX_CIS; i++) {
        if (call->gi->ci[i].serial != serial)
            continue;
        call->ci = &call->gi->ci[i];
        return 1;
    }
    return 0;
}

static int find_instance(struct call *call, int kind, uint64_t serial)
{
    for (int i = 0; i < SIM_MAX_GIS; i++) {
        call->gi = &call->gpu->gi[i];
        if (call->gi->serial && (kind == ON_GI ? call->gi->serial == serial : find_ci(call, serial)))
            return 1;
    }
    call->gi = NULL;
    return 0;
}

static int find_thing(struct call *call, int kind, uint64_t serial)
{
    for (int slot = 0; serial && slot < SIM_MAX_GPUS; slot++) {
        call->slot = slot;
        call->gpu = &call->core->gpu[slot];
        if (call->gpu->serial &&
            (kind == ON_GPU ? call->gpu->serial == serial : find_instance(call, kind, serial))) {
            call->model = sim_model_of(call->sim, call->gpu);
            return 1;
        }
    }
    call->slot = -1;
    call->gpu = NULL;
    return 0;
}

static nvmlReturn_t find_handle(struct call *call, int kinds, const void *handle)
{
    uint64_t number = (uintptr_t)handle;
    int kind = kind_of(number >> SERIAL_BITS);
    call->core = call->sim->core;
    call->slot = -1;
    call->gpu = NULL;
    call->gi = NULL;
    call->ci = NULL;
    if (!kinds)
        return NVML_SUCCESS;
    if (!(kind & kinds) || !find_thing(call, kind, number & ((1ULL << SERIAL_BITS) - 1)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

void call_note(struct call *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->arguments, sizeof call->arguments, format, arguments);
    va_end(arguments);
}

static void process_name(char *name, size_t size)
{
    FILE *stream = fopen("/proc/self/comm", "re");
    if (!stream)
        return;
    if (fgets(name, (int)size, stream))
        name[strcspn(name, "\n")] = '\0';
    fclose(stream);
}

/* What a call was about, then its other arguments. */
static void describe(const struct call *call, char *text, size_t size)
{
    char instance[32] = "";
    if (call->ci)
        snprintf(instance, sizeof instance, " gi=%u ci=%u", call->gi->id, call->ci->id);
    else if (call->gi)
        snprintf(instance, sizeof instance, " gi=%u", call->gi->id);
    snprintf(text, size, "%s%s%s%s", call->gpu ? call->gpu->identity.uuid : "", instance,
             call->arguments[0] ? " " : "", call->arguments);
}

/* Under the lock for writing. Destroyed instances are described by the note, made before. */
static void log_call(const struct call *call, nvmlReturn_t result)
{
    struct sim_call *entry = &call->sim->file->call[call->core->call_count % SIM_CALLS];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(entry, 0, sizeof *entry);
    entry->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    entry->pid = (uint32_t)getpid();
    entry->result = result;
    process_name(entry->process, sizeof entry->process);
    sim_copy(entry->function, sizeof entry->function, call->function);
    describe(call, entry->arguments, sizeof entry->arguments);
    call->core->call_count++;
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t result)
{
    if (call->writing)
        log_call(call, result);
    sim_unlock(call->sim);
    return result;
}

/* Under the lock: the driver this process was initialised with is still there. */
static nvmlReturn_t check_driver(const struct call *call)
{
    const char *own = sim_own_version();
    if (call->sim->core->epoch == nvml_epoch())
        return NVML_SUCCESS;
    if (own[0] && strcmp(own, call->sim->core->driver_version) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return NVML_ERROR_DRIVER_NOT_LOADED;
}

/* Take one use of a fault that matched; it may be gone by now, then the caller goes on. */
static nvmlReturn_t use_fault(struct call *call, uint64_t gpu_serial)
{
    uint32_t hang_ms = 0;
    if (sim_lock(call->sim, call->sim->writable) != NVML_SUCCESS)
        return NVML_SUCCESS;
    nvmlReturn_t error = sim_fault_use(call->sim, call->function, gpu_serial, &hang_ms);
    sim_unlock(call->sim);
    sim_rest(hang_ms);
    return error;
}

static nvmlReturn_t lock_and_find(struct call *call, int kinds, const void *handle)
{
    nvmlReturn_t result = sim_lock(call->sim, call->writing);
    if (result != NVML_SUCCESS)
        return result;
    result = check_driver(call);
    if (result == NVML_SUCCESS)
        result = find_handle(call, kinds, handle);
    if (result != NVML_SUCCESS)
        sim_unlock(call->sim);
    return result;
}

/* A fault that is due, after its sleep; what a changing call would have done is logged. */
static nvmlReturn_t answer_fault(struct call *call, int kinds, const void *handle)
{
    uint64_t serial = call->gpu ? call->gpu->serial : 0;
    sim_unlock(call->sim);
    nvmlReturn_t error = use_fault(call, serial);
    nvmlReturn_t result = lock_and_find(call, kinds, handle);
    if (result != NVML_SUCCESS)
        return error != NVML_SUCCESS ? error : result;
    return error != NVML_SUCCESS ? call_end(call, error) : NVML_SUCCESS;
}

static nvmlReturn_t open_gpu(struct call *call, int kinds, const void *handle)
{
    int slot = call->slot;
    sim_unlock(call->sim);
    sim_client_open(call->sim, slot);
    return lock_and_find(call, kinds, handle);
}

nvmlReturn_t call_begin_on(struct call *call, const char *function, int writing, int kinds,
                           const void *handle)
{
    call->function = function;
    call->writing = writing;
    call->sim = nvml_state();
    if (!call->sim)
        return NVML_ERROR_UNINITIALIZED;
    if (call->sim->writable && !call->waits)
        atomic_fetch_add(&call->sim->file->nvml_calls, 1);
    nvmlReturn_t result = lock_and_find(call, kinds, handle);
    if (result == NVML_SUCCESS &&
        sim_fault_for(call->core, function, call->gpu ? call->gpu->serial : 0))
        result = answer_fault(call, kinds, handle);
    if (result == NVML_SUCCESS && call->gpu && !sim_client_is_open(call->sim, call->slot))
        result = open_gpu(call, kinds, handle);
    if (result == NVML_SUCCESS && call->gpu && call->gpu->lost)
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    return result;
}

nvmlReturn_t call_begin(struct call *call, const char *function, int writing)
{
    return call_begin_on(call, function, writing, 0, NULL);
}
