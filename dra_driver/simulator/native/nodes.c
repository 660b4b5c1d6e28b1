/*
 * Device nodes: which GPUs and partitions this process may use, and what the kernel driver does in
 * /dev/nvidia-caps and /proc/driver/nvidia/capabilities when partitions come and go.
 *
 * Capability minors are numbered as in /proc/driver/nvidia-caps/mig-minors: config 1, monitor 2, then
 * for each GPU minor 15 GPU instances, each followed by its 8 compute instances.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "state.h"

#define GI_MINORS 9u
#define GPU_MINORS (15u * GI_MINORS)
#define FIRST_MINOR 3u
#define CONFIG_MINOR 1u
#define NODE_PATH (PATH_MAX + 128)
#define ACCESS_PATH (NODE_PATH + 16)

/* Opening a node with no kernel driver behind it answers ENXIO: access was granted. */
static int try_open(const char *path, int flags)
{
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO ? 0 : errno;
}

static void cap_path(const sim_t *sim, uint32_t minor, char path[NODE_PATH])
{
    snprintf(path, NODE_PATH, "%s/dev/nvidia-caps/nvidia-cap%u", sim->prefix, minor);
}

static int cap_visible(const sim_t *sim, uint32_t minor)
{
    char path[NODE_PATH];
    cap_path(sim, minor, path);
    return try_open(path, O_RDONLY) == 0;
}

nvmlReturn_t sim_control_visible(const sim_t *sim)
{
    char path[NODE_PATH];
    snprintf(path, sizeof path, "%s/dev/nvidiactl", sim->prefix);
    switch (try_open(path, O_RDWR)) {
    case 0:
        return NVML_SUCCESS;
    case EACCES:
    case EPERM:
        return NVML_ERROR_NO_PERMISSION;
    default:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
}

int sim_gpu_visible(const sim_t *sim, const struct sim_gpu *gpu)
{
    char path[NODE_PATH];
    snprintf(path, sizeof path, "%s/dev/nvidia%d", sim->prefix, gpu->identity.minor);
    return try_open(path, O_RDWR) == 0;
}

int sim_mig_admin(const sim_t *sim)
{
    return cap_visible(sim, CONFIG_MINOR);
}

uint32_t sim_gi_minor(const struct sim_gpu *gpu, uint32_t gi)
{
    return FIRST_MINOR + (uint32_t)gpu->identity.minor * GPU_MINORS + gi * GI_MINORS;
}

uint32_t sim_ci_minor(const struct sim_gpu *gpu, uint32_t gi, uint32_t ci)
{
    return sim_gi_minor(gpu, gi) + 1 + ci;
}

int sim_ci_visible(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi, uint32_t ci)
{
    return cap_visible(sim, sim_gi_minor(gpu, gi)) && cap_visible(sim, sim_ci_minor(gpu, gi, ci));
}

/* A new capability node is of the same kind as the config node: a device or a plain file. Failing
 * is the node's state, not an error of the call: the partition is then there but not usable. */
static void make_node(const sim_t *sim, const struct stat *kind, uint32_t minor)
{
    char path[NODE_PATH];
    cap_path(sim, minor, path);
    if (access(path, F_OK) == 0)
        return;
    if (S_ISCHR(kind->st_mode)) {
        if (mknod(path, S_IFCHR | 0444, makedev(major(kind->st_rdev), minor)) == 0)
            (void)!chmod(path, 0444);
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd >= 0)
        close(fd);
}

/* One capability's file, with the fields that nvidia-modprobe reads. */
static void make_access_file(const char *dir, uint32_t minor)
{
    char path[ACCESS_PATH];
    snprintf(path, sizeof path, "%s/access", dir);
    if (mkdir(dir, 0755) < 0 && errno == EEXIST && access(path, F_OK) == 0)
        return;
    FILE *stream = fopen(path, "we");
    if (!stream)
        return;
    fprintf(stream, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    fclose(stream);
}

static void remove_dir(const char *dir)
{
    char path[ACCESS_PATH];
    snprintf(path, sizeof path, "%s/access", dir);
    unlink(path);
    rmdir(dir);
}

static void sync_compute_instances(const sim_t *sim, const struct sim_gpu *gpu, uint32_t gi_id,
                                   const struct sim_gi *gi, const char *gi_dir,
                                   const struct stat *kind)
{
    uint32_t exists = 0;
    char dir[NODE_PATH];
    for (int i = 0; gi && i < SIM_MAX_CIS; i++)
        if (gi->ci[i].serial)
            exists |= 1u << gi->ci[i].id;
    for (uint32_t id = 0; id < SIM_MAX_CIS; id++) {
        snprintf(dir, sizeof dir, "%s/ci%u", gi_dir, id);
        if (!(exists >> id & 1)) {
            remove_dir(dir);
            continue;
        }
        if (kind)
            make_node(sim, kind, sim_ci_minor(gpu, gi_id, id));
        make_access_file(dir, sim_ci_minor(gpu, gi_id, id));
    }
}

void sim_nodes_sync_gpu(const sim_t *sim, const struct sim_gpu *gpu)
{
    char config[NODE_PATH], mig_dir[NODE_PATH - 64], gi_dir[NODE_PATH - 32];
    struct stat kind;
    cap_path(sim, CONFIG_MINOR, config);
    int nodes = stat(config, &kind) == 0;
    snprintf(mig_dir, sizeof mig_dir, "%s/proc/driver/nvidia/capabilities/gpu%d/mig", sim->prefix,
             gpu->identity.minor);
    if (access(mig_dir, F_OK) < 0 && !nodes)
        return;
    for (uint32_t id = 0; id < GPU_MINORS / GI_MINORS; id++) {
        const struct sim_gi *gi = sim_gi_by_id((struct sim_gpu *)gpu, id);
        snprintf(gi_dir, sizeof gi_dir, "%s/gi%u", mig_dir, id);
        if (!gi && access(gi_dir, F_OK) < 0)
            continue;
        if (gi && nodes)
            make_node(sim, &kind, sim_gi_minor(gpu, id));
        if (gi)
            make_access_file(gi_dir, sim_gi_minor(gpu, id));
        sync_compute_instances(sim, gpu, id, gi, gi_dir, nodes ? &kind : NULL);
        if (!gi)
            remove_dir(gi_dir);
    }
}

/* The folder of each GPU in /proc/driver/nvidia/capabilities, by device minor. */
static void sync_gpu_dirs(const sim_t *sim)
{
    char base[PATH_MAX + 64], path[NODE_PATH];
    snprintf(base, sizeof base, "%s/proc/driver/nvidia/capabilities", sim->prefix);
    if (access(base, W_OK) < 0)
        return;
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++) {
        const struct sim_gpu *gpu = &sim->core->gpu[slot];
        if (!gpu->serial || !(sim_model_of(sim, gpu)->abilities & SIM_MIG))
            continue;
        snprintf(path, sizeof path, "%s/gpu%d", base, gpu->identity.minor);
        mkdir(path, 0755);
        snprintf(path, sizeof path, "%s/gpu%d/mig", base, gpu->identity.minor);
        mkdir(path, 0755);
    }
}

void sim_nodes_sync(const sim_t *sim)
{
    if (!sim->prefix[0])
        return;
    sync_gpu_dirs(sim);
    for (int slot = 0; slot < SIM_MAX_GPUS; slot++)
        if (sim->core->gpu[slot].serial)
            sim_nodes_sync_gpu(sim, &sim->core->gpu[slot]);
}
