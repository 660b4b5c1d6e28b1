/* What MIG allows: profiles, placements, capacity, making and removing instances, mode switches. */
#include <stdio.h>
#include <string.h>

#include "state.h"

/* GPU-instance ids follow from size and place, as on real GPUs: the whole GPU has 0, halves have 1
 * and 2, quarters 3 to 6, eighths 7 to 14. */
static uint32_t gi_id_at(uint32_t size, uint32_t start)
{
    uint32_t first = size >= 8 ? 0 : size >= 4 ? 1 : size >= 2 ? 3 : 7;
    return first + start / size;
}

const sim_gi_profile_t *sim_gi_profile(const sim_model_t *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->gi_count; i++)
        if (model->gi[i].id == id)
            return &model->gi[i];
    return NULL;
}

const sim_ci_profile_t *sim_ci_profile(const sim_gi_profile_t *profile, uint32_t id)
{
    for (uint32_t i = 0; i < profile->ci_count; i++)
        if (profile->ci[i].id == id)
            return &profile->ci[i];
    return NULL;
}

struct sim_gi *sim_gi_by_id(struct sim_gpu *gpu, uint32_t id)
{
    for (int i = 0; i < SIM_MAX_GIS; i++)
        if (gpu->gi[i].serial && gpu->gi[i].id == id)
            return &gpu->gi[i];
    return NULL;
}

struct sim_ci *sim_ci_by_id(struct sim_gi *gi, uint32_t id)
{
    for (int i = 0; i < SIM_MAX_CIS; i++)
        if (gi->ci[i].serial && gi->ci[i].id == id)
            return &gi->ci[i];
    return NULL;
}

int sim_has_instances(const struct sim_gpu *gpu)
{
    for (int i = 0; i < SIM_MAX_GIS; i++)
        if (gpu->gi[i].serial)
            return 1;
    return 0;
}

/* What is taken of a GPU, or would be. */
struct use {
    uint32_t memory_slices; /* bits */
    uint32_t slices;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t same_profile;
};

static uint32_t slice_bits(uint32_t start, uint32_t size)
{
    return ((1u << size) - 1) << start;
}

static void use_add(struct use *use, const sim_gi_profile_t *profile, uint32_t start)
{
    use->memory_slices |= slice_bits(start, profile->size);
    use->slices += profile->slices;
    use->copy_engines += profile->copy_engines;
    use->decoders += profile->decoders;
    use->encoders += profile->encoders;
    use->jpegs += profile->jpegs;
    use->ofas += profile->ofas;
}

static struct use use_of(const sim_model_t *model, const struct sim_gpu *gpu,
                         const sim_gi_profile_t *profile)
{
    struct use use = {0};
    for (int i = 0; i < SIM_MAX_GIS; i++) {
        if (!gpu->gi[i].serial)
            continue;
        const sim_gi_profile_t *other = &model->gi[gpu->gi[i].profile];
        use_add(&use, other, gpu->gi[i].start);
        use.same_profile += other == profile;
    }
    return use;
}

static int fits(const sim_model_t *model, const struct use *use, const sim_gi_profile_t *profile,
                uint32_t start)
{
    struct use sum = *use;
    if (use->memory_slices & slice_bits(start, profile->size) ||
        use->same_profile >= profile->max_instances)
        return 0;
    use_add(&sum, profile, start);
    return sum.slices <= model->compute_slices && sum.copy_engines <= model->copy_engines &&
           sum.decoders <= model->decoders && sum.encoders <= model->encoders &&
           sum.jpegs <= model->jpegs && sum.ofas <= model->ofas;
}

/* How many placements that are free now these memory slices would block. */
static int blocked_by(const sim_model_t *model, const struct use *use, uint32_t slices)
{
    int blocked = 0;
    for (uint32_t i = 0; i < model->gi_count; i++)
        for (uint32_t start = 0; start < 8; start++) {
            uint32_t bits = slice_bits(start, model->gi[i].size);
            if (model->gi[i].starts >> start & 1 && !(bits & use->memory_slices))
                blocked += (bits & slices) != 0;
        }
    return blocked;
}

/* The free start that blocks the fewest other placements, the lowest of them; -1: none. This gives
 * the instance ids that `nvidia-smi mig -cgi` prints on real GPUs: 13, 11, 12, 7, 8, 9, 10 for
 * seven times 1g; 5, 3, 4, 13 for 2g, 2g, 2g, 1g+me. */
static int free_start(const sim_model_t *model, const struct use *use,
                      const sim_gi_profile_t *profile)
{
    int best = -1, fewest = 0;
    for (int start = 0; start < 8; start++) {
        if (!(profile->starts >> start & 1) || !fits(model, use, profile, (uint32_t)start))
            continue;
        int blocked = blocked_by(model, use, slice_bits((uint32_t)start, profile->size));
        if (best < 0 || blocked < fewest) {
            best = start;
            fewest = blocked;
        }
    }
    return best;
}

uint32_t sim_gi_capacity(const sim_model_t *model, const struct sim_gpu *gpu,
                         const sim_gi_profile_t *profile)
{
    struct use use = use_of(model, gpu, profile);
    uint32_t count = 0;
    for (int start; (start = free_start(model, &use, profile)) >= 0; count++) {
        use_add(&use, profile, (uint32_t)start);
        use.same_profile++;
    }
    return count;
}

static uint32_t used_slices(const sim_gi_profile_t *profile, const struct sim_gi *gi)
{
    uint32_t used = 0;
    for (int i = 0; i < SIM_MAX_CIS; i++)
        if (gi->ci[i].serial)
            used |= slice_bits(gi->ci[i].start, profile->ci[gi->ci[i].profile].slices);
    return used;
}

static int free_slice(uint32_t used, const sim_ci_profile_t *profile)
{
    for (int start = 0; start < 32; start++)
        if (profile->starts >> start & 1 && !(used & slice_bits((uint32_t)start, profile->slices)))
            return start;
    return -1;
}

uint32_t sim_ci_capacity(const sim_gi_profile_t *profile, const struct sim_gi *gi,
                         const sim_ci_profile_t *ci_profile)
{
    uint32_t used = used_slices(profile, gi), count = 0;
    for (int start; (start = free_slice(used, ci_profile)) >= 0; count++)
        used |= slice_bits((uint32_t)start, ci_profile->slices);
    return ci_profile->creatable ? count : 0;
}

static nvmlReturn_t choose_start(const sim_model_t *model, const struct sim_gpu *gpu,
                                 const sim_gi_profile_t *profile, int *start)
{
    struct use use = use_of(model, gpu, profile);
    if (*start >= 0 && (*start > 31 || !(profile->starts >> *start & 1)))
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s can't begin at memory slice %d",
                        profile->name, *start);
    if (*start < 0)
        *start = free_start(model, &use, profile);
    else if (!fits(model, &use, profile, (uint32_t)*start))
        *start = -1;
    if (*start < 0)
        return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "no room for another %s on GPU %s",
                        profile->name, gpu->identity.uuid);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_gi_create(sim_t *sim, struct sim_gpu *gpu, uint32_t profile_id, int start,
                           struct sim_gi **out)
{
    const sim_model_t *model = sim_model_of(sim, gpu);
    const sim_gi_profile_t *profile = sim_gi_profile(model, profile_id);
    struct sim_gi *gi = gpu->gi;
    if (!gpu->mig_current)
        return sim_fail(NVML_ERROR_NOT_SUPPORTED, "MIG mode is off on GPU %s", gpu->identity.uuid);
    if (!profile)
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s has no GPU-instance profile %u",
                        model->name, profile_id);
    nvmlReturn_t result = choose_start(model, gpu, profile, &start);
    if (result != NVML_SUCCESS)
        return result;
    while (gi->serial) /* at most 7 instances fit, there is room for 8 */
        gi++;
    memset(gi, 0, sizeof *gi);
    gi->serial = sim->core->next_serial++;
    gi->id = gi_id_at(profile->size, (uint32_t)start);
    gi->profile = (uint32_t)(profile - model->gi);
    gi->start = (uint32_t)start;
    *out = gi;
    return NVML_SUCCESS;
}

static nvmlReturn_t choose_slice(const sim_gi_profile_t *profile, const struct sim_gi *gi,
                                 const sim_ci_profile_t *ci_profile, int *start)
{
    uint32_t used = used_slices(profile, gi);
    if (*start >= 0 && (*start > 31 || !(ci_profile->starts >> *start & 1)))
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s can't begin at slice %d", ci_profile->name,
                        *start);
    if (*start < 0)
        *start = free_slice(used, ci_profile);
    else if (used & slice_bits((uint32_t)*start, ci_profile->slices))
        *start = -1;
    if (*start < 0)
        return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "no room for another %s in instance %u",
                        ci_profile->name, gi->id);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_ci_create(sim_t *sim, struct sim_gpu *gpu, struct sim_gi *gi, uint32_t profile_id,
                           int start, struct sim_ci **out)
{
    const sim_gi_profile_t *profile = &sim_model_of(sim, gpu)->gi[gi->profile];
    const sim_ci_profile_t *ci_profile = sim_ci_profile(profile, profile_id);
    if (!ci_profile)
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "%s has no compute-instance profile %u",
                        profile->name, profile_id);
    if (!ci_profile->creatable)
        return sim_fail(NVML_ERROR_NOT_SUPPORTED, "profile %u of %s can't be created", profile_id,
                        profile->name);
    nvmlReturn_t result = choose_slice(profile, gi, ci_profile, &start);
    if (result != NVML_SUCCESS)
        return result;
    uint32_t id = 0;
    while (sim_ci_by_id(gi, id)) /* slices run out before ids do */
        id++;
    struct sim_ci *ci = gi->ci;
    while (ci->serial)
        ci++;
    memset(ci, 0, sizeof *ci);
    ci->serial = sim->core->next_serial++;
    ci->id = id;
    ci->profile = (uint32_t)(ci_profile - profile->ci);
    ci->start = (uint32_t)start;
    sim_random_uuid(ci->uuid, sizeof ci->uuid, "MIG-");
    *out = ci;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_ci_destroy(const sim_t *sim, const struct sim_gpu *gpu, const struct sim_gi *gi,
                            struct sim_ci *ci)
{
    if (sim_busy(sim, gpu, gi->id, ci->id))
        return sim_fail(NVML_ERROR_IN_USE, "processes run on compute instance %u of instance %u",
                        ci->id, gi->id);
    memset(ci, 0, sizeof *ci);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_gi_destroy(const sim_t *sim, const struct sim_gpu *gpu, struct sim_gi *gi)
{
    if (sim_busy(sim, gpu, gi->id, SIM_NONE))
        return sim_fail(NVML_ERROR_IN_USE, "processes run on instance %u", gi->id);
    for (int i = 0; i < SIM_MAX_CIS; i++)
        if (gi->ci[i].serial)
            return sim_fail(NVML_ERROR_IN_USE, "instance %u has compute instances", gi->id);
    memset(gi, 0, sizeof *gi);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_mig_switch(sim_t *sim, struct sim_gpu *gpu, uint32_t mode, int others)
{
    gpu->mig_pending = mode;
    if (gpu->mig_current == mode)
        return NVML_SUCCESS;
    if (!(sim_model_of(sim, gpu)->abilities & SIM_MIG_SWITCH_AT_ONCE))
        return NVML_ERROR_RESET_REQUIRED;
    if (others || sim_has_instances(gpu) || sim_busy(sim, gpu, SIM_NONE, SIM_NONE))
        return NVML_ERROR_IN_USE;
    gpu->mig_current = mode;
    gpu->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    gpu->timeslice = 0;
    return NVML_SUCCESS;
}
