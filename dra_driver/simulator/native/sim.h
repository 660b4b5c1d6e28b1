/*
 * The administrative face of the simulated GPU node: making a state, changing it by hand, reading
 * it. nvml.h is the other face. Both are in libnvidia-ml.so (for ctypes) and in libsim.a (for static
 * programs such as nvidia-smi).
 *
 * Where things are. PREFIX is the root of the file tree that holds the code: of the library's own
 * path (PREFIX/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1) or, in a static program, of
 * /proc/self/exe (PREFIX/usr/bin/nvidia-smi). In a container it is empty.
 *
 *   PREFIX/usr/lib/x86_64-linux-gnu/libnvidia-simstate.so.<driver version>     the state
 *   PREFIX/dev/nvidiactl, nvidia<minor>, nvidia-caps/nvidia-cap<minor>         what is visible
 *   PREFIX/proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<G>/[ci<C>/]access kept, where it exists
 *
 * A GPU is visible where nvidiactl and its own node open (ENXIO counts as opened); a partition also
 * needs the nodes of its GPU instance and compute instance. As the kernel driver would, the library
 * makes missing capability nodes when instances are made: of the kind and major of nvidia-cap1 (a
 * device or a plain file), and only if nvidia-cap1 exists.
 *
 * A library in any other folder still finds the state beside itself; its PREFIX is empty then. The
 * environment variables SIM_NVML_STATE (a state file) and SIM_NVML_PREFIX (a tree) replace what is
 * derived from the path; they are for tests. So are SIM_NVML_CGROUP (cgroup.c) and SIM_MPS_SHM
 * (mps_server.c).
 *
 * A driver upgrade: copy the library to its new name (a new inode, or a process that has the old one
 * loaded can't load the new one), call sim_driver_version, which renames the state file and keeps
 * its inode, then remove the old copies. Until it loads the new library, a process gets
 * NVML_ERROR_LIB_RM_VERSION_MISMATCH.
 *
 * All functions return an nvmlReturn_t (0 is success); sim_error_text() then says what was wrong.
 * `gpu` is the position among all GPUs of the node in PCI order, hidden ones included; -1 means all
 * where that makes sense.
 */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>

/* Real libraries export both the versioned names and the first versions without a suffix. */
#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#endif
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#define SIM_API __attribute__((visibility("default")))

#define SIM_MAX_GPUS 16
#define SIM_MAX_GI_PROFILES NVML_GPU_INSTANCE_PROFILE_COUNT
#define SIM_MAX_CI_PROFILES NVML_COMPUTE_INSTANCE_PROFILE_COUNT
#define SIM_NAME 96

typedef struct sim sim_t;

/* What a GPU model can do; bits of sim_model_t.abilities. */
enum {
    SIM_MIG = 1 << 0,                /* has MIG */
    SIM_MIG_SWITCH_AT_ONCE = 1 << 1, /* mode switch without reset; the mode does not survive a reboot */
    SIM_TIME_SLICE = 1 << 2,         /* compute-policy time-slices */
    SIM_MEMORY_INFO = 1 << 3,        /* memory figures; without: memory shared with the CPU */
    SIM_ECC = 1 << 4,                /* ECC memory */
    SIM_ROW_REMAP = 1 << 5,          /* row remapping */
    SIM_FABRIC = 1 << 6,             /* NVLink fabric */
    SIM_MODULE_ID = 1 << 7,          /* numbered modules on a base board */
};

/* One compute-instance profile of a GPU-instance profile. Bit N of starts: may begin at slice N. */
typedef struct {
    uint32_t index; /* NVML_COMPUTE_INSTANCE_PROFILE_... */
    uint32_t id;
    uint32_t slices;
    uint32_t multiprocessors;
    uint32_t starts;
    uint32_t creatable; /* 0: listed, but creation answers NOT_SUPPORTED */
    char name[SIM_NAME];
} sim_ci_profile_t;

/* One GPU-instance profile. Bit N of starts: may begin at memory slice N. */
typedef struct {
    uint32_t index; /* NVML_GPU_INSTANCE_PROFILE_... */
    uint32_t id;
    uint32_t slices;
    uint32_t max_instances;
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t memory_mib;
    uint32_t capabilities; /* NVML_GPU_INSTANCE_PROFILE_CAPS_... */
    uint32_t size;         /* memory slices */
    uint32_t starts;
    uint32_t ci_count;
    char name[SIM_NAME];
    sim_ci_profile_t ci[SIM_MAX_CI_PROFILES];
} sim_gi_profile_t;

/* A GPU model: all that its GPUs have in common. */
typedef struct {
    char key[SIM_NAME]; /* h100-80gb */
    char name[SIM_NAME];
    char vbios[32];
    uint64_t memory_bytes;
    uint64_t reserved_bytes;
    uint32_t brand;        /* nvmlBrandType_t */
    uint32_t architecture; /* NVML_DEVICE_ARCH_... */
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t abilities;
    uint32_t addressing_mode; /* NVML_DEVICE_ADDRESSING_MODE_...; ~0: not supported */
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t compute_slices; /* 7 on today's MIG GPUs */
    uint32_t gi_count;
    sim_gi_profile_t gi[SIM_MAX_GI_PROFILES];
} sim_model_t;

/* What tells one GPU from another. */
typedef struct {
    char model[SIM_NAME];
    char uuid[SIM_NAME]; /* GPU-... */
    char serial[32];
    int32_t minor; /* -1: the lowest free one */
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t module_id;
    int32_t numa_node; /* -1: none */
} sim_gpu_t;

/* ---- a state ---- */

/* Make an empty state below root; its library folder exists already, a state does not. */
SIM_API nvmlReturn_t sim_create(const char *root, const char *driver_version, int cuda_version,
                                sim_t **out);
/* Open the state below root, or the program's own one where root is NULL; read-only if need be. */
SIM_API nvmlReturn_t sim_open(const char *root, sim_t **out);
SIM_API void sim_close(sim_t *sim);
/* What went wrong in this thread's last call that did not succeed. */
SIM_API const char *sim_error_text(void);
/* The number of an nvmlReturn_t by its name: NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED, SUCCESS. */
SIM_API nvmlReturn_t sim_error_number(const char *name, int *number);
/* Tell the model table; size = sizeof(sim_model_t), so that a caller with another layout is refused. */
SIM_API nvmlReturn_t sim_add_model(sim_t *sim, const sim_model_t *model, size_t size);
SIM_API nvmlReturn_t sim_add_gpu(sim_t *sim, const sim_gpu_t *gpu, size_t size);
SIM_API nvmlReturn_t sim_remove_gpu(sim_t *sim, int gpu);
/* The position of a GPU by its UUID, PCI bus id or number as text. */
SIM_API nvmlReturn_t sim_find_gpu(sim_t *sim, const char *text, int *gpu);

/* ---- reading; free texts with sim_free ---- */

/* The whole state as JSON. */
SIM_API nvmlReturn_t sim_show_json(sim_t *sim, char **text);
/* The latest state-changing NVML and nvidia-smi calls, oldest first, as a JSON list. */
SIM_API nvmlReturn_t sim_calls_json(sim_t *sim, char **text);
/* All NVML calls made so far by processes that can write the state, but waits for events: how many
 * of these there are is a matter of time, not of work. */
SIM_API nvmlReturn_t sim_call_count(sim_t *sim, uint64_t *count);
SIM_API void sim_free(char *text);
SIM_API nvmlReturn_t sim_get_driver_version(sim_t *sim, char *text, size_t size);
SIM_API nvmlReturn_t sim_get_boot_id(sim_t *sim, char *text, size_t size);

/* ---- changing it, as an administrator or as bad luck ---- */

/* Clients that hold the GPU open don't matter; instances do. Ampere: pending until reset or reboot. */
SIM_API nvmlReturn_t sim_set_mig_mode(sim_t *sim, int gpu, int on);
/* profile: `1g.10gb`, `1g.10gb+me` or a profile id as text; start -1: the driver chooses. The
 * compute instance, if wanted, takes the whole GPU instance. */
SIM_API nvmlReturn_t sim_partition(sim_t *sim, int gpu, const char *profile, int start,
                                   int compute_instance, uint32_t *gi_id);
/* Remove a GPU instance with its compute instances. */
SIM_API nvmlReturn_t sim_unpartition(sim_t *sim, int gpu, uint32_t gi_id);
/* Each matching call sleeps hang_ms, then answers error (0: goes on as usual); times 0: for ever.
 * A name without _vN means all versions; a final * means any rest. gpu -1 means every device and
 * the calls that have none. The name nvmlDeviceSetMigMode.activation stands for the activation
 * status that this call answers beside its success. Names that begin with mps. are what an MPS
 * daemon does, if it has the GPU; a hang of UINT32_MAX never ends:
 *   mps.start         starting; an error ends it at once
 *   mps.command.NAME  answering a command of nvidia-cuda-mps-control
 *   mps.attach        letting a CUDA program in
 *   mps.server        starting its server
 *   mps.crash, mps.server.crash   any error: the daemon, its server dies within the second */
SIM_API nvmlReturn_t sim_fault(sim_t *sim, int gpu, const char *function, int error, uint32_t times,
                               uint32_t hang_ms);
/* Forget all faults. */
SIM_API nvmlReturn_t sim_clear(sim_t *sim);
/* gi and ci: -1 for the whole GPU. */
SIM_API nvmlReturn_t sim_xid(sim_t *sim, int gpu, uint64_t xid, int gi_id, int ci_id);
/* A double-bit ECC error: event, counter, a row to remap. */
SIM_API nvmlReturn_t sim_ecc(sim_t *sim, int gpu);
SIM_API nvmlReturn_t sim_lose(sim_t *sim, int gpu);
SIM_API nvmlReturn_t sim_restore(sim_t *sim, int gpu);
/* A process on a GPU (gi, ci -1) or partition; memory 0 ends it. */
SIM_API nvmlReturn_t sim_process(sim_t *sim, int gpu, int gi_id, int ci_id, uint32_t pid,
                                 uint64_t memory_bytes, uint32_t sm_percent);
/* NVML_GPU_RECOVERY_ACTION_...: what nvml's recovery action answers. */
SIM_API nvmlReturn_t sim_set_recovery_action(sim_t *sim, int gpu, uint32_t action);
SIM_API nvmlReturn_t sim_set_minor(sim_t *sim, int gpu, uint32_t minor);
SIM_API nvmlReturn_t sim_set_persistence(sim_t *sim, int gpu, int on);
/* GPU reset: a pending MIG mode becomes current; processes, instances and a pending ECC repair go. */
SIM_API nvmlReturn_t sim_reset(sim_t *sim, int gpu);
SIM_API nvmlReturn_t sim_reboot(sim_t *sim);
SIM_API nvmlReturn_t sim_driver_reload(sim_t *sim);
/* The new version takes effect as after a driver reload; the state file takes its new name. */
SIM_API nvmlReturn_t sim_driver_version(sim_t *sim, const char *version, int cuda_version);

/* ---- for nvidia-smi: what NVML has no call for, on NVML handles after nvmlInit ---- */

/* 0 default, 1 short, 2 medium, 3 long; NOT_SUPPORTED where the model has no time-slices. */
SIM_API nvmlReturn_t sim_set_timeslice(nvmlDevice_t device, unsigned int value);
SIM_API nvmlReturn_t sim_get_timeslice(nvmlDevice_t device, unsigned int *value);
/* As sim_reset, but IN_USE while other processes hold the GPU open or run on it. */
SIM_API nvmlReturn_t sim_device_reset(nvmlDevice_t device);

#endif
