/* nvidia-smi mig: making and removing instances. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char *bare(const char *name)
{
    return strncmp(name, "MIG ", 4) == 0 ? name + 4 : name;
}

/* Whether `text` is the id or the name of a profile. */
static bool names_profile(const char *text, unsigned int id, const char *name)
{
    unsigned int number;
    if (smi_number(text, &number)) {
        return number == id;
    }
    return strcmp(bare(text), bare(name)) == 0;
}

static bool find_gi_profile(nvmlDevice_t device, const char *text,
                            nvmlGpuInstanceProfileInfo_v2_t *profile)
{
    for (unsigned int index = 0; index < NVML_GPU_INSTANCE_PROFILE_COUNT; index++) {
        if (smi_gi_profile(device, index, profile) &&
            names_profile(text, profile->id, profile->name)) {
            return true;
        }
    }
    return false;
}

/* One compute instance: of the named profile, or of the first that takes the whole GPU instance. */
static int create_one_compute(const smi_gpu_t *gpu, const smi_gi_t *gi, const char *wanted)
{
    nvmlReturn_t result = NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int index = 0; index < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; index++) {
        nvmlComputeInstanceProfileInfo_v2_t profile;
        nvmlComputeInstance_t made;
        nvmlComputeInstanceInfo_t info;
        if (!smi_ci_profile(gi->handle, index, &profile)) {
            continue;
        }
        if (wanted != NULL ? !names_profile(wanted, profile.id, profile.name)
                           : profile.sliceCount != gi->profile.sliceCount) {
            continue;
        }
        result = nvmlGpuInstanceCreateComputeInstance(gi->handle, profile.id, &made);
        if (result == NVML_SUCCESS) {
            result = nvmlComputeInstanceGetInfo_v2(made, &info);
        }
        if (result == NVML_SUCCESS) {
            printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u "
                   "using profile %s (ID %2u)\n",
                   info.id, gpu->index, gi->info.id, profile.name, profile.id);
            return 0;
        }
        if (wanted != NULL || result != NVML_ERROR_NOT_SUPPORTED) {
            break;
        }
    }
    printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: "
           "%s\n",
           gpu->index, gi->info.id, wanted != NULL ? wanted : "default", nvmlErrorString(result));
    printf("Failed to create compute instances: %s\n", nvmlErrorString(result));
    return (int)result;
}

static nvmlReturn_t make_instance(nvmlDevice_t device, const char *start, smi_gi_t *gi)
{
    nvmlGpuInstancePlacement_t place = {0};
    nvmlReturn_t result;
    if (start == NULL) {
        result = nvmlDeviceCreateGpuInstance(device, gi->profile.id, &gi->handle);
    } else if (!smi_number(start, &place.start)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    } else {
        nvmlGpuInstancePlacement_t places[32];
        unsigned int count = sizeof(places) / sizeof(*places);
        result = nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, gi->profile.id, places,
                                                               &count);
        place.size = result == NVML_SUCCESS && count > 0 ? places[0].size : 0;
        result = nvmlDeviceCreateGpuInstanceWithPlacement(device, gi->profile.id, &place,
                                                          &gi->handle);
    }
    return result == NVML_SUCCESS ? nvmlGpuInstanceGetInfo(gi->handle, &gi->info) : result;
}

/* `tuple` is a profile's name or id, with `:start` where the placement is wished. */
static int create_one_instance(const smi_gpu_t *gpu, const char *tuple, bool compute)
{
    char wanted[SMI_ARGUMENT];
    char *start = wanted;
    smi_gi_t gi = {0};
    nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
    snprintf(wanted, sizeof(wanted), "%s", tuple);
    strsep(&start, ":");
    if (find_gi_profile(gpu->device, wanted, &gi.profile)) {
        result = make_instance(gpu->device, start, &gi);
    }
    if (result != NVML_SUCCESS) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu->index,
               tuple, nvmlErrorString(result));
        printf("Failed to create GPU instances: %s\n", nvmlErrorString(result));
        return (int)result;
    }
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n",
           gi.info.id, gpu->index, gi.profile.name, gi.profile.id);
    return compute ? create_one_compute(gpu, &gi, NULL) : 0;
}

static int no_mig(const smi_gpus_t *gpus)
{
    for (unsigned int i = 0; i < gpus->count; i++) {
        if (smi_mig_on(gpus->gpu[i].device)) {
            return 0;
        }
    }
    printf("No MIG-enabled devices found.\n");
    return NVML_ERROR_NOT_FOUND;
}

int smi_mig_create_instances(const smi_gpus_t *gpus, const char *profiles, bool compute)
{
    int code = no_mig(gpus);
    for (unsigned int i = 0; i < gpus->count && code == 0; i++) {
        char copy[SMI_ARGUMENT];
        char *rest = copy;
        if (!smi_mig_on(gpus->gpu[i].device)) {
            continue;
        }
        snprintf(copy, sizeof(copy), "%s", profiles);
        for (char *tuple = strsep(&rest, ","); tuple != NULL && code == 0;
             tuple = strsep(&rest, ",")) {
            code = create_one_instance(&gpus->gpu[i], tuple, compute);
        }
    }
    return code;
}

typedef int (*on_instance_t)(const smi_gpu_t *gpu, const smi_gi_t *gi, const char *argument);

/* Calls `act` on each GPU instance that `instances` names, until one fails. */
static int each_instance(const smi_gpus_t *gpus, const char *instances, on_instance_t act,
                         const char *argument)
{
    int code = no_mig(gpus);
    bool any = false;
    for (unsigned int i = 0; i < gpus->count && code == 0; i++) {
        smi_gi_t gi[SMI_MAX_GI];
        unsigned int count = smi_mig_on(gpus->gpu[i].device)
                                 ? smi_gpu_instances(gpus->gpu[i].device, gi, SMI_MAX_GI)
                                 : 0;
        for (unsigned int j = 0; j < count && code == 0; j++) {
            if (smi_listed(instances, gi[j].info.id)) {
                any = true;
                code = act(&gpus->gpu[i], &gi[j], argument);
            }
        }
    }
    if (code == 0 && !any) {
        printf("No GPU instances found: %s\n", nvmlErrorString(NVML_ERROR_NOT_FOUND));
        return NVML_ERROR_NOT_FOUND;
    }
    return code;
}

static int create_compute(const smi_gpu_t *gpu, const smi_gi_t *gi, const char *profiles)
{
    char copy[SMI_ARGUMENT];
    char *rest = copy;
    int code = 0;
    if (profiles == NULL) {
        return create_one_compute(gpu, gi, NULL);
    }
    snprintf(copy, sizeof(copy), "%s", profiles);
    for (char *name = strsep(&rest, ","); name != NULL && code == 0; name = strsep(&rest, ",")) {
        code = create_one_compute(gpu, gi, name);
    }
    return code;
}

int smi_mig_create_compute(const smi_gpus_t *gpus, const char *instances, const char *profiles)
{
    return each_instance(gpus, instances, create_compute, profiles);
}

static int destroy_compute(const smi_gpu_t *gpu, const smi_gi_t *gi, const char *ids)
{
    smi_ci_t ci[SMI_MAX_CI];
    unsigned int count = smi_compute_instances(gi, ci, SMI_MAX_CI);
    for (unsigned int i = 0; i < count; i++) {
        if (!smi_listed(ids, ci[i].info.id)) {
            continue;
        }
        nvmlReturn_t result = nvmlComputeInstanceDestroy(ci[i].handle);
        if (result != NVML_SUCCESS) {
            printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: "
                   "%s\nFailed to destroy compute instances: %s\n",
                   ci[i].info.id, gpu->index, gi->info.id, nvmlErrorString(result), nvmlErrorString(result));
            return (int)result;
        }
        printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n",
               ci[i].info.id, gpu->index, gi->info.id);
    }
    return 0;
}

int smi_mig_destroy_compute(const smi_gpus_t *gpus, const char *instances, const char *ids)
{
    return each_instance(gpus, instances, destroy_compute, ids);
}

static int destroy_instance(const smi_gpu_t *gpu, const smi_gi_t *gi, const char *unused)
{
    nvmlReturn_t result = nvmlGpuInstanceDestroy(gi->handle);
    (void)unused;
    if (result != NVML_SUCCESS) {
        printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n"
               "Failed to destroy GPU instances: %s\n",
               gi->info.id, gpu->index, nvmlErrorString(result), nvmlErrorString(result));
        return (int)result;
    }
    printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", gi->info.id, gpu->index);
    return 0;
}

int smi_mig_destroy_instances(const smi_gpus_t *gpus, const char *instances)
{
    return each_instance(gpus, instances, destroy_instance, NULL);
}
