/* NVML: event sets. A set remembers what it is registered for and which events it has delivered. */
#include <stdlib.h>
#include <time.h>

#include "call.h"

struct registration {
    uint64_t gpu_serial; /* 0: free */
    uint64_t types;
    uint64_t from; /* number of the first event it is for */
};

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    uint64_t delivered; /* events below this number are done with */
    struct registration registration[SIM_MAX_GPUS];
};

static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;

static int set_exists(const struct nvmlEventSet_st *wanted)
{
    int found = 0;
    pthread_mutex_lock(&sets_mutex);
    for (const struct nvmlEventSet_st *set = sets; set; set = set->next)
        found |= set == wanted;
    pthread_mutex_unlock(&sets_mutex);
    return found;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    struct nvmlEventSet_st *new = set ? calloc(1, sizeof *new) : NULL;
    if (!new)
        return call_end(&call, set ? NVML_ERROR_MEMORY : NVML_ERROR_INVALID_ARGUMENT);
    new->delivered = call.core->event_count;
    pthread_mutex_lock(&sets_mutex);
    new->next = sets;
    sets = new;
    pthread_mutex_unlock(&sets_mutex);
    *set = new;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    struct call call = {0};
    struct nvmlEventSet_st **link = &sets;
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    pthread_mutex_lock(&sets_mutex);
    while (*link && *link != set)
        link = &(*link)->next;
    int found = *link != NULL;
    if (found)
        *link = (*link)->next;
    pthread_mutex_unlock(&sets_mutex);
    if (found)
        free(set);
    return call_end(&call, found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

static uint64_t supported_types(const struct call *call)
{
    uint64_t ecc = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
    return nvmlEventTypeXidCriticalError | (call->model->abilities & SIM_ECC ? ecc : 0);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (eventTypes)
        *eventTypes = supported_types(&call);
    return call_end(&call, eventTypes ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t add_types(struct nvmlEventSet_st *set, const struct call *call, uint64_t types)
{
    struct registration *free_one = NULL;
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        struct registration *registration = &set->registration[i];
        if (registration->gpu_serial == call->gpu->serial) {
            registration->types |= types;
            return NVML_SUCCESS;
        }
        if (!registration->gpu_serial && !free_one)
            free_one = registration;
    }
    if (!free_one)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *free_one = (struct registration){call->gpu->serial, types, call->core->event_count};
    return NVML_SUCCESS;
}

/* Per-instance registration does not exist (nvml.h): events of instances come with the GPU's. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes,
                                      nvmlEventSet_t set)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!set_exists(set) || eventTypes & ~(unsigned long long)nvmlEventTypeAll)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (call.ci || eventTypes & ~supported_types(&call))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, add_types(set, &call, eventTypes));
}

static int wants(const struct nvmlEventSet_st *set, uint64_t number, const struct sim_event *event)
{
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        const struct registration *registration = &set->registration[i];
        if (registration->gpu_serial == event->gpu_serial && registration->types & event->type &&
            number >= registration->from)
            return 1;
    }
    return 0;
}

static const struct sim_event *next_event(const struct call *call, struct nvmlEventSet_st *set)
{
    uint64_t first = sim_event_first(call->core);
    if (set->delivered < first)
        set->delivered = first;
    while (set->delivered < call->core->event_count) {
        uint64_t number = set->delivered++;
        const struct sim_event *event = &call->sim->file->event[number % SIM_EVENTS];
        if (wants(set, number, event))
            return event;
    }
    return NULL;
}

static int any_lost(const struct call *call, const struct nvmlEventSet_st *set)
{
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        uint64_t serial = set->registration[i].gpu_serial;
        int slot = serial ? sim_gpu_slot(call->core, serial) : -1;
        if (serial && (slot < 0 || call->core->gpu[slot].lost))
            return 1;
    }
    return 0;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* The first version of the structure ends before the instance ids. */
static nvmlReturn_t deliver(struct call *call, const struct sim_event *event, int version,
                            nvmlEventData_t *data)
{
    int slot = sim_gpu_slot(call->core, event->gpu_serial);
    data->device = slot >= 0 ? handle_of_gpu(&call->core->gpu[slot]) : NULL;
    data->eventType = event->type;
    data->eventData = event->data;
    if (version > 1) {
        data->gpuInstanceId = event->gi;
        data->computeInstanceId = event->ci;
    }
    return call_end(call, NVML_SUCCESS);
}

/* Sleeps at most this long without looking: a writer may be killed between change and wake-up. */
#define LOOK_EVERY_MS 5000u

static nvmlReturn_t wait_for(const char *function, struct nvmlEventSet_st *set, int version,
                             nvmlEventData_t *data, unsigned int timeout_ms)
{
    uint64_t until = now_ms() + timeout_ms;
    for (;;) {
        struct call call = {.waits = 1};
        nvmlReturn_t result = call_begin(&call, function, READING);
        if (result != NVML_SUCCESS)
            return result;
        if (!data || !set_exists(set))
            return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
        unsigned int seen = atomic_load(&call.sim->file->wake);
        const struct sim_event *event = next_event(&call, set);
        if (event)
            return deliver(&call, event, version, data);
        if (any_lost(&call, set))
            return call_end(&call, NVML_ERROR_GPU_IS_LOST);
        uint64_t now = now_ms();
        call_end(&call, NVML_SUCCESS);
        if (now >= until)
            return NVML_ERROR_TIMEOUT;
        uint64_t rest = until - now;
        sim_sleep(call.sim, seen, rest < LOOK_EVERY_MS ? (unsigned int)rest : LOOK_EVERY_MS);
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    return wait_for(__func__, set, 1, data, timeoutms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    return wait_for(__func__, set, 2, data, timeoutms);
}
