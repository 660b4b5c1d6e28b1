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
#define SIM_LAYOUT 2
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
#define SIM_MAX_CONTEXTS 4096
#define SIM_MAX_MPS 64
#define SIM_MPS_LIMITS 16
#define SIM_MPS_DEVICES 32
#define SIM_MPS_CLIENTS 60
#define SIM_MAX_DEVICES 128 /* for CUDA, on a whole node */
#define SIM_CGROUP_LEVELS 5 /* above a process, the nearest ones count */
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

/* An MPS control daemon and its server. Only the daemon itself writes its entry, which counts as
 * long as it holds a byte of its own, so no undo copy is needed. */
struct sim_mps {
    uint64_t serial;
    uint32_t pid; /* as pid_namespace counts, also server_pid */
    uint32_t pid_namespace;
    uint32_t multi_user;
    uint32_t pending;      /* programs that wait for a server */
    uint32_t threads;      /* default percentage, in tenths */
    uint32_t limit_count;  /* default memory limits */
    uint32_t device_count; /* of the server */
    uint32_t client_count;
    uint32_t server_pid; /* 0: no server */
    uint32_t server_uid;
    uint32_t server_status; /* MPS_... */
    uint32_t server_threads;
    struct {
        char device[48]; /* as it was given: position or UUID */
        uint64_t bytes;
    } limit[SIM_MPS_LIMITS];
    struct {
        char uuid[48];
        uint64_t limit;
    } device[SIM_MPS_DEVICES];
    uint32_t client_pid[SIM_MPS_CLIENTS];
    uint32_t client_uid[SIM_MPS_CLIENTS];
    char visible[SIM_PATH * 4]; /* CUDA_VISIBLE_DEVICES, cut off where it is longer */
    char pipe[SIM_PATH];
    char log[SIM_PATH];
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
    struct sim_mps mps[SIM_MAX_MPS];
};

/* A CUDA context on a GPU or compute instance, see contexts.c. */
struct sim_context {
    uint64_t incarnation; /* of the GPU */
    uint64_t memory;
    uint64_t mps;  /* serial of the MPS daemon; 0: none, or one that can't write the state */
    uint32_t kind; /* SIM_CONTEXT_... */
    uint32_t gi;
    uint32_t ci;
    uint32_t pid; /* as its own PID namespace counts */
    uint32_t pid_namespace;
    int slot;
    int fd; /* of one's own only */
};

/* What CUDA calls a device: a GPU, or a compute instance where MIG is on. */
struct sim_device {
    uint64_t gpu_serial;
    uint64_t incarnation; /* of the GPU when the device was found */
    uint64_t memory;      /* bytes that programs can have */
    uint32_t gi;          /* SIM_NONE: the whole GPU */
    uint32_t ci;
    uint32_t compute_major;
    char uuid[SIM_NAME];
    char name[SIM_NAME];
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
void sim_rest(uint32_t milliseconds);
/* Without the lock: the epoch, for those that only watch for its change. */
uint64_t sim_epoch(const sim_t *sim);
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
/* By processes told by hand and by contexts; gi, ci SIM_NONE: on all of the GPU. */
uint64_t sim_used_memory(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi);
int sim_busy(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi, uint32_t ci);
/* Forget instances and processes, and what only holds while the driver keeps the GPU. */
void sim_gpu_clear(struct sim_gpu *gpu);

/* ---- clients.c ---- */
enum { SIM_BYTE_STATE = 0, SIM_BYTE_MPS = 1 << 16, SIM_BYTE_CLIENTS = 1 << 20 };
/* Under the lock: whether this process keeps the GPU open. */
int sim_client_is_open(const sim_t *sim, int slot);
/* Outside the lock: keep it open from now on. */
void sim_client_open(sim_t *sim, int slot);
void sim_client_close_all(sim_t *sim);
/* Under the lock: whether what holds from the first client to the last holds now. */
int sim_session_lives(const sim_t *sim, const struct sim_gpu *gpu);
/* Under the lock: whether another process keeps the GPU open. */
int sim_client_others(const sim_t *sim, const struct sim_gpu *gpu);

/* ---- contexts.c ---- */
enum { SIM_CONTEXT_CUDA, SIM_CONTEXT_MPS_CLIENT, SIM_CONTEXT_MPS_SERVER };
/* The first context at this slot or later; gives its slot, -1: none. */
int sim_next_context(const sim_t *sim, int slot, struct sim_context *context);
int sim_context_runs_on(const struct sim_context *context, const struct sim_gpu *gpu, uint32_t gi,
                        uint32_t ci);
/* Whether its process is in this cgroup or one below. */
int sim_context_in(const sim_t *sim, const struct sim_context *context, const char *cgroup);
/* A process id as this process's PID namespace counts; 0: not to be seen from here. */
uint32_t sim_pid_here(uint32_t pid, uint32_t namespace);
uint32_t sim_pid_namespace(void);
/* Between these, which come inside sim_lock, nobody else's contexts open or grow. */
nvmlReturn_t sim_contexts_lock(sim_t *sim);
void sim_contexts_unlock(sim_t *sim);
/* For this process; what slot, fd and pids are is filled in. */
nvmlReturn_t sim_context_open(sim_t *sim, struct sim_context *context);
nvmlReturn_t sim_context_resize(struct sim_context *context, uint64_t memory);
void sim_context_close(struct sim_context *context);

/* ---- devices.c, all under the lock ---- */
/* All that this process may see, in the order of PCI addresses and instances. */
int sim_devices(const sim_t *sim, struct sim_device found[SIM_MAX_DEVICES]);
/* What a list such as CUDA_VISIBLE_DEVICES leaves of them, in its order: positions and UUIDs, up to
 * the first that does not exist, which is told by *all_found. */
int sim_devices_pick(const struct sim_device *all, int count, const char *names,
                     struct sim_device picked[SIM_MAX_DEVICES], int *all_found);
/* NULL where the GPU is gone, lost, or was reset. */
struct sim_gpu *sim_device_gpu(const sim_t *sim, const struct sim_device *device);
/* Whether its compute mode lets one more process open it. */
int sim_device_admits(const sim_t *sim, const struct sim_device *device);
uint64_t sim_device_free(const sim_t *sim, const struct sim_device *device);
/* Outside the lock: keep its GPU open, so that compute modes hold as long as this process. */
void sim_device_hold(sim_t *sim, const struct sim_device *device);

/* ---- cgroup.c ---- */
/* Hashes of this process's cgroup and of those above it, nearest first; gives their number. */
int sim_own_cgroups(uint64_t hashes[SIM_CGROUP_LEVELS]);
/* Whether a path ends with the cgroup of this hash. */
int sim_cgroup_ends_with(const char *path, uint64_t hash);

/* ---- mps_state.c ---- */
/* Enter a daemon; from then on *place is its entry and *fd what keeps it alive. */
nvmlReturn_t sim_mps_enter(sim_t *sim, struct sim_mps *entry, int *place, int *fd);
void sim_mps_update(sim_t *sim, int place, const struct sim_mps *entry);
/* Under the lock: the daemon at this place, NULL where none lives. */
const struct sim_mps *sim_mps_at(const sim_t *sim, int place);
/* Take one use of a fault on this action of a daemon that has these devices. */
nvmlReturn_t sim_mps_fault(sim_t *sim, const char *action, const struct sim_device *devices,
                           int count, uint32_t *hang_ms);

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
nvmlReturn_t sim_gi_destroy(const sim_t *sim, const struct sim_gpu *gpu, struct sim_gi *gi);
nvmlReturn_t sim_ci_destroy(const sim_t *sim, const struct sim_gpu *gpu, const struct sim_gi *gi,
                            struct sim_ci *ci);
/* Ask for a MIG mode; the answer is the activation status. */
nvmlReturn_t sim_mig_switch(sim_t *sim, struct sim_gpu *gpu, uint32_t mode, int others);

/* ---- power.c ---- */
/* A pending MIG mode becomes current; instances, processes and clients are gone. */
void sim_gpu_reset(sim_t *sim, struct sim_gpu *gpu);

/* ---- limits.c ---- */
/* Whether the cgroup is still there, as far as this process can tell. */
int sim_limit_lives(const struct sim_limit *limit);
void sim_limits_forget(struct sim_core *core, uint64_t gpu_serial);
/* Under the lock: whether the hard limit of this process's cgroup lets it not have more memory. */
int sim_limit_forbids(const sim_t *sim, const struct sim_gpu *gpu, uint64_t more);

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
