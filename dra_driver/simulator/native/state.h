/*
 * The state of a simulated node as it lies in its file, and how one gets at it. Only this folder
 * knows this layout; SIM_LAYOUT changes with it.
 *
 * The file has a fixed size and is mapped shared. `core` is what changes; before a writer touches
 * it, all of it is copied to `undo` and `undo_valid` is set. Whoever next takes the lock after a
 * writer died in between uses the copy (readers) or puts it back (writers). Models and the two
 * rings only grow, and what counts them stands in `core`, so they need no copy.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "sim.h"

#define SIM_MAGIC 0x646f6e2d6d697367ULL
#define SIM_LAYOUT 1
#define SIM_MAX_MODELS 16
#define SIM_MAX_GIS 8
#define SIM_MAX_CIS 8
#define SIM_MAX_PROCESSES 64
#define SIM_MAX_LIMITS 256
#define SIM_MAX_FAULTS 64
/* One entry of a ring is never read: the one that a killed writer may have half overwritten. */
#define SIM_EVENTS 256
#define SIM_CALLS 512
#define SIM_PATH 256
#define SIM_NONE 0xFFFFFFFFu
/* Not a call: what nvmlDeviceSetMigMode, itself successful, says of the activation. */
#define SIM_FAULT_ACTIVATION "nvmlDeviceSetMigMode.activation"

struct sim_ci {
    uint64_t serial; /* 0: free */
    uint32_t id;
    uint32_t profile; /* position in the GPU-instance profile's list */
    uint32_t start;
    uint32_t compute_mode;
    char uuid[48];
};

struct sim_gi {
    uint64_t serial; /* 0: free */
    uint32_t id;
    uint32_t profile; /* position in the model's list */
    uint32_t start;
    struct sim_ci ci[SIM_MAX_CIS];
};

struct sim_process {
    uint32_t pid; /* 0: free */
    uint32_t gi;  /* SIM_NONE: the whole GPU */
    uint32_t ci;
    uint32_t sm_percent;
    uint64_t memory;
};

struct sim_gpu {
    uint64_t serial;      /* 0: free */
    uint64_t incarnation; /* changes when clients lose the GPU, see clients.c */
    sim_gpu_t identity;
    uint32_t model;
    uint32_t lost;
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t persistence;
    uint32_t recovery_action;
    /* These two hold while somebody keeps the GPU open, see clients.c. */
    uint32_t compute_mode;
    uint32_t timeslice;
    uint64_t ecc_volatile;
    uint64_t ecc_aggregate;
    uint32_t remapped_rows;
    uint32_t remap_pending;
    struct sim_gi gi[SIM_MAX_GIS];
    struct sim_process process[SIM_MAX_PROCESSES];
};

/* A memory limit of one cgroup on one GPU. A cgroup is known by its folder's identity, and by its
 * path in the mount namespace of whoever set the limit. */
struct sim_limit {
    uint64_t gpu_serial; /* 0: free */
    uint64_t soft;
    uint64_t hard;
    uint64_t device;
    uint64_t inode;
    uint64_t namespace;
    char path[SIM_PATH];
};

struct sim_fault {
    char function[SIM_NAME]; /* empty: free */
    uint64_t gpu_serial;     /* 0: every device, and calls that have none */
    uint32_t error;
    uint32_t times; /* 0: for ever */
    uint32_t hang_ms;
};

struct sim_event {
    uint64_t gpu_serial;
    uint64_t type;
    uint64_t data;
    uint32_t gi;
    uint32_t ci;
};

struct sim_call {
    uint64_t time_ns; /* since 1970 */
    uint32_t pid;
    uint32_t result;
    char process[16];
    char function[64];
    char arguments[480];
};

struct sim_core {
    char driver_version[32];
    char boot_id[40];
    int32_t cuda_version;
    uint32_t model_count;
    uint64_t epoch; /* grows when the driver goes away under its clients */
    uint64_t next_serial;
    uint64_t event_count;
    uint64_t call_count;
    struct sim_gpu gpu[SIM_MAX_GPUS];
    struct sim_limit limit[SIM_MAX_LIMITS];
    struct sim_fault fault[SIM_MAX_FAULTS];
};

struct sim_file {
    uint64_t magic;
    uint64_t layout;
    uint64_t size;
    atomic_uint undo_valid;
    atomic_uint wake; /* futex: changes whenever a waiter may want to look */
    atomic_ullong nvml_calls;
    struct sim_core core;
    struct sim_core undo;
    sim_model_t model[SIM_MAX_MODELS];
    struct sim_event event[SIM_EVENTS];
    struct sim_call call[SIM_CALLS];
};

/* One opening of a state by one process. Valid core only between lock and unlock. */
struct sim {
    int fd;
    int writable;
    pid_t pid; /* who opened fd; a forked child needs its own locks */
    pthread_mutex_t mutex;
    int writing;
    struct sim_file *file;
    struct sim_core *core;
    off_t client[SIM_MAX_GPUS]; /* the byte by which this process keeps each GPU open; 0: none */
    char prefix[SIM_PATH * 2];
    char path[SIM_PATH * 2];
};

/* ---- paths.c ---- */
/* The tree the running code belongs to, and the version in the library's own file name (or ""). */
const char *sim_own_prefix(void);
const char *sim_own_version(void);
nvmlReturn_t sim_find_state(const char *prefix, const char *version, char *path, size_t size);
nvmlReturn_t sim_state_path(const char *prefix, const char *version, char *path, size_t size);

/* ---- file.c ---- */
nvmlReturn_t sim_check_version(const char *version);
nvmlReturn_t sim_open_path(const char *path, const char *prefix, sim_t **out);

/* ---- lock.c ---- */
nvmlReturn_t sim_lock(sim_t *sim, int write);
/* Ends what sim_lock began; what a writer changed stands from here on. */
void sim_unlock(sim_t *sim);
/* Wake whoever sleeps in sim_sleep, after the change they wait for is unlocked. */
void sim_wake(sim_t *sim);
/* Sleep until sim_wake is called after `seen` was read from file->wake, or for milliseconds. */
void sim_sleep(sim_t *sim, unsigned int seen, unsigned int milliseconds);
int sim_byte_lock(int fd, int type, off_t start, off_t length, int wait);
/* Whether anybody else holds a lock in this range of bytes. */
int sim_byte_held(int fd, off_t start, off_t length);

/* ---- text.c ---- */
nvmlReturn_t sim_fail(nvmlReturn_t code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_random_uuid(char *text, size_t size, const char *head);
void sim_copy(char *to, size_t size, const char *from);
const char *sim_error_name(nvmlReturn_t code);

/* ---- gpus.c ---- */
/* GPU slots in PCI order; gives their number. */
int sim_gpu_order(const struct sim_core *core, int slots[SIM_MAX_GPUS]);
nvmlReturn_t sim_gpu_at(sim_t *sim, int position, int *slot);
int sim_gpu_slot(const struct sim_core *core, uint64_t serial);
const sim_model_t *sim_model_of(const sim_t *sim, const struct sim_gpu *gpu);
void sim_pci_text(const sim_gpu_t *gpu, char *text, size_t size);
uint64_t sim_used_memory(const struct sim_gpu *gpu, uint32_t gi);
int sim_busy(const struct sim_gpu *gpu, uint32_t gi, uint32_t ci);
/* Forget instances and processes, and what only holds while the driver keeps the GPU. */
void sim_gpu_clear(struct sim_gpu *gpu);

/* ---- clients.c ---- */
enum { SIM_BYTE_STATE = 0, SIM_BYTE_CLIENTS = 64 };
/* Under the lock: whether this process keeps the GPU open. */
int sim_client_is_open(const sim_t *sim, int slot);
/* Outside the lock: keep it open from now on. */
void sim_client_open(sim_t *sim, int slot);
void sim_client_close_all(sim_t *sim);
/* Under the lock: whether what holds from the first client to the last holds now. */
int sim_session_lives(const sim_t *sim, const struct sim_gpu *gpu);
/* Under the lock: whether another process keeps the GPU open. */
int sim_client_others(const sim_t *sim, const struct sim_gpu *gpu);

/* ---- nodes.c ---- */
nvmlReturn_t sim_control_visible(const sim_t *sim);
int sim_gpu_visible(const sim_t *sim, const struct sim_gpu *gpu);
int sim_mig_admin(const sim_t *sim);
int sim_ci_visible(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi, uint32_t ci);
uint32_t sim_gi_minor(const struct sim_gpu *gpu, uint32_t gi);
uint32_t sim_ci_minor(const struct sim_gpu *gpu, uint32_t gi, uint32_t ci);
/* Make capability nodes and files for what exists, remove files for what does not. */
void sim_nodes_sync(const sim_t *sim);
void sim_nodes_sync_gpu(const sim_t *sim, const struct sim_gpu *gpu);

/* ---- mig.c ---- */
const sim_gi_profile_t *sim_gi_profile(const sim_model_t *model, uint32_t id);
const sim_ci_profile_t *sim_ci_profile(const sim_gi_profile_t *profile, uint32_t id);
struct sim_gi *sim_gi_by_id(struct sim_gpu *gpu, uint32_t id);
struct sim_ci *sim_ci_by_id(struct sim_gi *gi, uint32_t id);
int sim_has_instances(const struct sim_gpu *gpu);
uint32_t sim_gi_capacity(const sim_model_t *model, const struct sim_gpu *gpu,
                         const sim_gi_profile_t *profile);
uint32_t sim_ci_capacity(const sim_gi_profile_t *profile, const struct sim_gi *gi,
                         const sim_ci_profile_t *ci_profile);
/* start -1: the driver chooses. */
nvmlReturn_t sim_gi_create(sim_t *sim, struct sim_gpu *gpu, uint32_t profile_id, int start,
                           struct sim_gi **out);
nvmlReturn_t sim_ci_create(sim_t *sim, struct sim_gpu *gpu, struct sim_gi *gi, uint32_t profile_id,
                           int start, struct sim_ci **out);
nvmlReturn_t sim_gi_destroy(const struct sim_gpu *gpu, struct sim_gi *gi);
nvmlReturn_t sim_ci_destroy(const struct sim_gpu *gpu, const struct sim_gi *gi, struct sim_ci *ci);
/* Ask for a MIG mode; the answer is the activation status. */
nvmlReturn_t sim_mig_switch(sim_t *sim, struct sim_gpu *gpu, uint32_t mode, int others);

/* ---- power.c ---- */
/* A pending MIG mode becomes current; instances, processes and clients are gone. */
void sim_gpu_reset(sim_t *sim, struct sim_gpu *gpu);

/* ---- limits.c ---- */
/* Whether the cgroup is still there, as far as this process can tell. */
int sim_limit_lives(const struct sim_limit *limit);
void sim_limits_forget(struct sim_core *core, uint64_t gpu_serial);

/* ---- events.c ---- */
/* Under the lock for writing; call sim_wake after the unlock. */
void sim_event_push(sim_t *sim, const struct sim_event *event);
/* The oldest event still readable has number sim_event_first, the newest event_count - 1. */
uint64_t sim_event_first(const struct sim_core *core);

/* ---- faults.c ---- */
/* Under the lock: the first fault that matches a call; gpu_serial 0: a call that has no device. */
struct sim_fault *sim_fault_for(struct sim_core *core, const char *function, uint64_t gpu_serial);
/* Take one use of it: gives its error, or NVML_SUCCESS where none matches. */
nvmlReturn_t sim_fault_use(sim_t *sim, const char *function, uint64_t gpu_serial,
                           uint32_t *hang_ms);

#endif
