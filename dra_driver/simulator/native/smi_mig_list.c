/* nvidia-smi mig: lists of profiles, placements and instances. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const int gi_profile_width[] = {79, 0};
static const int gi_width[] = {55, 0};
static const int ci_profile_width[] = {86, 0};
static const int ci_width[] = {68, 0};

static int none_found(const char *what)
{
    printf("No %s found.\n", what);
    return NVML_ERROR_NOT_FOUND;
}

/* GPUs whose MIG mode is on now. */
static smi_gpus_t mig_gpus(const smi_gpus_t *gpus)
{
    smi_gpus_t on = {0};
    for (unsigned int i = 0; i < gpus->count; i++) {
        if (smi_mig_on(gpus->gpu[i].device)) {
            on.gpu[on.count++] = gpus->gpu[i];
        }
    }
    return on;
}

static void print_gi_profile(const smi_gpu_t *gpu, const nvmlGpuInstanceProfileInfo_v2_t *profile)
{
    unsigned int left = 0;
    nvmlDeviceGetGpuInstanceRemainingCapacity(gpu->device, profile->id, &left);
    smi_row(79, "%4u  %-19s%3u%6u/%-2u%11.2f%9s%7u%6u%6u", gpu->index, profile->name, profile->id,
            left, profile->instanceCount, (double)profile->memorySizeMB / 1024,
            profile->isP2pSupported ? "Yes" : "No", profile->multiprocessorCount,
            profile->decoderCount, profile->encoderCount);
    smi_row(79, "%64u%6u%6u", profile->copyEngineCount, profile->jpegCount, profile->ofaCount);
    smi_rule('-', '-', gi_profile_width);
}

int smi_mig_list_profiles(const smi_gpus_t *gpus)
{
    bool any = false;
    for (unsigned int i = 0; i < gpus->count; i++) {
        for (unsigned int index = 0; index < NVML_GPU_INSTANCE_PROFILE_COUNT; index++) {
            nvmlGpuInstanceProfileInfo_v2_t profile;
            if (!smi_gi_profile(gpus->gpu[i].device, index, &profile)) {
                continue;
            }
            if (!any) {
                any = true;
                smi_rule('-', '-', gi_profile_width);
                smi_row(79, " GPU instance profiles:");
                smi_row(79, " GPU   Name               ID    Instances   Memory     P2P    SM    DEC"
                            "   ENC");
                smi_row(79, "                                Free/Total   GiB              CE    JPEG"
                            "  OFA");
                smi_rule('=', '=', gi_profile_width);
            }
            print_gi_profile(&gpus->gpu[i], &profile);
        }
    }
    return any ? 0 : none_found("MIG-supported devices");
}

static bool print_placements(const smi_gpu_t *gpu, unsigned int index)
{
    nvmlGpuInstanceProfileInfo_v2_t profile;
    nvmlGpuInstancePlacement_t places[32];
    unsigned int count = sizeof(places) / sizeof(*places);
    if (!smi_gi_profile(gpu->device, index, &profile) ||
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu->device, profile.id, places, &count) !=
            NVML_SUCCESS) {
        return false;
    }
    printf("GPU %2u Profile ID %2u %s {", gpu->index, profile.id,
           count == 1 ? "Placement :" : "Placements:");
    for (unsigned int i = 0; i < count; i++) {
        printf("%s%u", i > 0 ? "," : "", places[i].start);
    }
    printf("}:%u\n", count > 0 ? places[0].size : 0);
    return true;
}

int smi_mig_list_placements(const smi_gpus_t *gpus)
{
    bool any = false;
    for (unsigned int i = 0; i < gpus->count; i++) {
        for (unsigned int index = 0; index < NVML_GPU_INSTANCE_PROFILE_COUNT; index++) {
            any = print_placements(&gpus->gpu[i], index) || any;
        }
    }
    return any ? 0 : none_found("MIG-supported devices");
}

int smi_mig_list_instances(const smi_gpus_t *gpus)
{
    smi_gpus_t on = mig_gpus(gpus);
    bool any = false;
    if (on.count == 0) {
        return none_found("MIG-enabled devices");
    }
    for (unsigned int i = 0; i < on.count; i++) {
        smi_gi_t gi[SMI_MAX_GI];
        unsigned int count = smi_gpu_instances(on.gpu[i].device, gi, SMI_MAX_GI);
        for (unsigned int j = 0; j < count; j++) {
            if (!any) {
                any = true;
                smi_rule('-', '-', gi_width);
                smi_row(55, " GPU instances:");
                smi_row(55, " GPU   Name             Profile  Instance   Placement");
                smi_row(55, "                          ID       ID       Start:Size");
                smi_rule('=', '=', gi_width);
            }
            smi_row(55, "%4u  %-19s%3u%9u%11u:%u", on.gpu[i].index, gi[j].profile.name,
                    gi[j].info.profileId, gi[j].info.id, gi[j].info.placement.start,
                    gi[j].info.placement.size);
            smi_rule('-', '-', gi_width);
        }
    }
    return any ? 0 : none_found("GPU instances");
}

/* Calls `print` for each GPU instance that `instances` names. */
static int each_instance(const smi_gpus_t *gpus, const char *instances, const char *what,
                         bool (*print)(const smi_gpu_t *gpu, const smi_gi_t *gi, bool first))
{
    smi_gpus_t on = mig_gpus(gpus);
    bool any = false;
    if (on.count == 0) {
        return none_found("MIG-enabled devices");
    }
    for (unsigned int i = 0; i < on.count; i++) {
        smi_gi_t gi[SMI_MAX_GI];
        unsigned int count = smi_gpu_instances(on.gpu[i].device, gi, SMI_MAX_GI);
        for (unsigned int j = 0; j < count; j++) {
            if (smi_listed(instances, gi[j].info.id)) {
                any = print(&on.gpu[i], &gi[j], !any) || any;
            }
        }
    }
    return any ? 0 : none_found(what);
}

static bool print_compute_profiles(const smi_gpu_t *gpu, const smi_gi_t *gi, bool first)
{
    bool any = false;
    for (unsigned int index = 0; index < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; index++) {
        nvmlComputeInstanceProfileInfo_v2_t profile;
        unsigned int left = 0;
        char id[16];
        if (!smi_ci_profile(gi->handle, index, &profile)) {
            continue;
        }
        if (first && !any) {
            smi_rule('-', '-', ci_profile_width);
            smi_row(86, " Compute instance profiles:");
            smi_row(86, " GPU     GPU       Name             Profile  Instances   Exclusive"
                        "       Shared");
            smi_row(86, "       Instance                       ID     Free/Total     SM       DEC"
                        "   ENC   OFA");
            smi_row(86, "         ID                                                          CE"
                        "    JPEG");
            smi_rule('=', '=', ci_profile_width);
        }
        any = true;
        nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi->handle, profile.id, &left);
        /* the star marks the profile that is taken by default */
        snprintf(id, sizeof(id), "%u%s", profile.id,
                 profile.sliceCount == gi->profile.sliceCount ? "*" : " ");
        smi_row(86, "%4u%7u       %-19s%4s%6u/%-2u%12u%9u%6u%6u", gpu->index, gi->info.id,
                profile.name, id, left, profile.instanceCount, profile.multiprocessorCount,
                profile.sharedDecoderCount, profile.sharedEncoderCount, profile.sharedOfaCount);
        smi_row(86, "%71u%6u", profile.sharedCopyEngineCount, profile.sharedJpegCount);
        smi_rule('-', '-', ci_profile_width);
    }
    return any;
}

int smi_mig_list_compute_profiles(const smi_gpus_t *gpus, const char *instances)
{
    return each_instance(gpus, instances, "GPU instances", print_compute_profiles);
}

static bool print_compute_instances(const smi_gpu_t *gpu, const smi_gi_t *gi, bool first)
{
    smi_ci_t ci[SMI_MAX_CI];
    unsigned int count = smi_compute_instances(gi, ci, SMI_MAX_CI);
    for (unsigned int i = 0; i < count; i++) {
        if (first && i == 0) {
            smi_rule('-', '-', ci_width);
            smi_row(68, " Compute instances:");
            smi_row(68, " GPU     GPU       Name             Profile   Instance   Placement");
            smi_row(68, "       Instance                       ID        ID       Start:Size");
            smi_row(68, "         ID");
            smi_rule('=', '=', ci_width);
        }
        smi_row(68, "%4u%7u       %-19s%3u%10u%11u:%u", gpu->index, gi->info.id,
                ci[i].profile.name, ci[i].info.profileId, ci[i].info.id,
                ci[i].info.placement.start, ci[i].info.placement.size);
        smi_rule('-', '-', ci_width);
    }
    return count > 0;
}

int smi_mig_list_compute_instances(const smi_gpus_t *gpus, const char *instances)
{
    return each_instance(gpus, instances, "compute instances", print_compute_instances);
}
