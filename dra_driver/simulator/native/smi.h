/*
 * nvidia-smi of the simulated node: what its parts share. It is an ordinary NVML client, linked
 * statically so that it runs in a container that holds nothing else. Each verb returns the exit
 * code; like the real program's, these are NVML's error numbers.
 */
#ifndef SMI_H
#define SMI_H

#include <stdbool.h>
#include <stddef.h>

#include <nvml.h>

#include "sim.h"

#define SMI_TEXT 128
#define SMI_ARGUMENT 1024 /* longer arguments are refused, so copies are never cut short */

typedef struct {
    nvmlDevice_t device;
    unsigned int index;
    char bus_id[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
} smi_gpu_t;

typedef struct {
    unsigned int count;
    smi_gpu_t gpu[SIM_MAX_GPUS];
} smi_gpus_t;

/* One option of a verb: `-i V`, `--id V`, `--id=V`; with `present` only, a switch without value. */
typedef struct {
    const char *brief; /* "-i", or NULL */
    const char *full;  /* "--id" */
    const char **value;
    bool *present;      /* also set where a value is given; may be NULL beside a value */
    bool value_optional; /* only `--full=V` gives one */
} smi_option_t;

/* ---- smi_common.c ---- */

/* Reads all arguments; prints what is wrong and returns NVML_ERROR_INVALID_ARGUMENT. */
int smi_parse(int argc, char **argv, const smi_option_t *options, size_t count);
/* nvmlInit, with the real program's words on failure. */
int smi_init(void);
/* The visible GPUs, or those that `ids` names (numbers, UUIDs, bus ids, separated by commas). */
int smi_select(const char *ids, smi_gpus_t *gpus);
/* Whole unsigned number; false where text is something else. */
bool smi_number(const char *text, unsigned int *number);
/* "MIG 1g.10gb" of a MIG device's handle. */
void smi_mig_name(nvmlDevice_t mig, char *name, size_t size);
/* One line between bars, padded or cut to `width`. */
void smi_row(int width, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A rule such as +----+--+; widths end with 0; `fill` is '-' or '='. */
void smi_rule(char corner, char fill, const int *widths);

/* ---- verbs ---- */

int smi_table(const smi_gpus_t *gpus);
int smi_list(const smi_gpus_t *gpus);
int smi_query_gpus(const smi_gpus_t *gpus, const char *fields, const char *format);
int smi_query_processes(const smi_gpus_t *gpus, const char *fields, const char *format);
int smi_help_query_gpus(void);
int smi_mig(int argc, char **argv);
int smi_mig_list_profiles(const smi_gpus_t *gpus);
int smi_mig_list_placements(const smi_gpus_t *gpus);
int smi_mig_list_instances(const smi_gpus_t *gpus);
int smi_mig_list_compute_profiles(const smi_gpus_t *gpus, const char *instances);
int smi_mig_list_compute_instances(const smi_gpus_t *gpus, const char *instances);
int smi_mig_create_instances(const smi_gpus_t *gpus, const char *profiles, bool compute);
int smi_mig_create_compute(const smi_gpus_t *gpus, const char *instances, const char *profiles);
int smi_mig_destroy_compute(const smi_gpus_t *gpus, const char *instances, const char *ids);
int smi_mig_destroy_instances(const smi_gpus_t *gpus, const char *instances);
int smi_policy(int argc, char **argv);

/* ---- smi_instances.c: walking the instances of a GPU ---- */

typedef struct {
    nvmlGpuInstance_t handle;
    nvmlGpuInstanceInfo_t info;
    nvmlGpuInstanceProfileInfo_v2_t profile;
} smi_gi_t;

typedef struct {
    nvmlComputeInstance_t handle;
    nvmlComputeInstanceInfo_t info;
    nvmlComputeInstanceProfileInfo_v2_t profile;
} smi_ci_t;

/* GPU instances in the order of their profiles' ids; returns how many, at most `room`. */
unsigned int smi_gpu_instances(nvmlDevice_t device, smi_gi_t *found, unsigned int room);
unsigned int smi_compute_instances(const smi_gi_t *gi, smi_ci_t *found, unsigned int room);
bool smi_gi_profile(nvmlDevice_t device, unsigned int index, nvmlGpuInstanceProfileInfo_v2_t *info);
bool smi_ci_profile(nvmlGpuInstance_t gi, unsigned int index,
                    nvmlComputeInstanceProfileInfo_v2_t *info);
/* Whether `number` is in a list such as "1,2"; NULL holds every number. */
bool smi_listed(const char *list, unsigned int number);
/* Whether MIG is on now. */
bool smi_mig_on(nvmlDevice_t device);

#define SMI_MAX_GI 16
#define SMI_MAX_CI 8

#endif
