/*
 * What every NVML function does before and after its own work: is the library initialised, does the
 * handle exist, is a fault due, is the GPU lost; and the log of calls that change something.
 */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#include "state.h"

/* What a handle may stand for; bits. */
enum { ON_GPU = 1, ON_MIG = 2, ON_DEVICE = ON_GPU | ON_MIG, ON_GI = 4, ON_CI = 8 };

enum { READING = 0, WRITING = 1 };

struct call {
    const char *function;
    sim_t *sim;
    struct sim_core *core;
    int slot;            /* -1: the call has no device */
    struct sim_gpu *gpu; /* also the parent of a MIG device or instance */
    struct sim_gi *gi;   /* NULL on a whole GPU */
    struct sim_ci *ci;   /* NULL on a whole GPU or GPU instance */
    const sim_model_t *model;
    int writing;
    int waits; /* for events: made again as time passes, so it is not counted */
    char arguments[320];
};

/* Say with what arguments a changing call was made, before it begins. */
void call_note(struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* On success the state is locked and call_end must follow; on failure nothing is held. */
nvmlReturn_t call_begin(struct call *call, const char *function, int writing);
nvmlReturn_t call_begin_on(struct call *call, const char *function, int writing, int kinds,
                           const void *handle);
nvmlReturn_t call_end(struct call *call, nvmlReturn_t result);

/* Handles: numbers that name a thing by its serial, never pointers to anything. */
void *handle_of_gpu(const struct sim_gpu *gpu);
void *handle_of_mig(const struct sim_ci *ci);
void *handle_of_gi(const struct sim_gi *gi);
void *handle_of_ci(const struct sim_ci *ci);

/* ---- nvml_init.c ---- */
sim_t *nvml_state(void);
uint64_t nvml_epoch(void);

/* ---- used by several nvml_*.c ---- */
nvmlReturn_t give_text(const char *from, char *to, unsigned int size);
/* Slots of the GPUs this process may see, in NVML's order. */
int visible_gpus(const struct call *call, int slots[SIM_MAX_GPUS]);
/* The visible MIG device at this position, in the order of instance ids; NULL: none. */
const struct sim_ci *visible_mig(const struct call *call, unsigned int index);
const sim_gi_profile_t *gi_profile_of(const struct call *call);
const sim_ci_profile_t *ci_profile_of(const struct call *call);

#endif
