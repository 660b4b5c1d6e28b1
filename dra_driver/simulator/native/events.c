/* The ring of events that NVML's event sets read. */
#include "state.h"

void sim_event_push(sim_t *sim, const struct sim_event *event)
{
    sim->file->event[sim->core->event_count % SIM_EVENTS] = *event;
    sim->core->event_count++;
}

uint64_t sim_event_first(const struct sim_core *core)
{
    uint64_t kept = SIM_EVENTS - 1;
    return core->event_count > kept ? core->event_count - kept : 0;
}
