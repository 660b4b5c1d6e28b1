/*
 * CUDA contexts: which processes use which GPU, and how much of its memory.
 *
 * They must vanish with their process, and unprivileged processes in containers, which may only read
 * the state, have them too. So a context is no entry of the state but a set of shared locks on bytes
 * far beyond the end of its file: the kernel keeps them, shows them to everybody who has the file
 * open, in whatever namespace, and drops them with their holder. Each context has a slot of such
 * bytes and in it one lock for each pair of numbers: where the lock begins says one, how long it is
 * the other. The first pair holds the GPU's incarnation and the memory; it is made last, and memory
 * changes by one call that makes the lock longer or shorter.
 *
 * Whoever opens a context or wants more memory for one first checks what the others have: flock on
 * the state file, which also readers of a file may take, lets one at a time do so.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

#define NUMBER_BITS 40 /* of each number of a pair */
#define PAIR_BYTES ((off_t)1 << (NUMBER_BITS + 1))
#define SLOT_BYTES ((off_t)1 << (NUMBER_BITS + 4))
#define FIRST_BYTE ((off_t)1 << 60)
#define MAX_NUMBER (((uint64_t)1 << NUMBER_BITS) - 1)

/* The pairs of a slot. */
enum { USE, PROCESS, WHAT, CGROUPS };

_Static_assert(CGROUPS + SIM_CGROUP_LEVELS <= SLOT_BYTES / PAIR_BYTES, "a slot holds all pairs");

static off_t pair_start(int slot, int pair)
{
    return FIRST_BYTE + slot * SLOT_BYTES + pair * PAIR_BYTES;
}

/* ---- reading ---- */

static int find_lock(int fd, off_t start, off_t length, struct flock *lock)
{
    *lock = (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, F_OFD_GETLK, lock) == 0 && lock->l_type != F_UNLCK;
}

static int read_pair(int fd, int slot, int pair, uint64_t *first, uint64_t *second)
{
    struct flock lock;
    if (!find_lock(fd, pair_start(slot, pair), PAIR_BYTES, &lock))
        return 0;
    *first = (uint64_t)(lock.l_start - pair_start(slot, pair));
    *second = (uint64_t)lock.l_len - 1;
    return 1;
}

/* Ids of instances are small; SIM_NONE is stored as 0. */
static uint64_t pack_what(const struct sim_context *context)
{
    return context->kind | (uint64_t)(uint8_t)(context->gi + 1) << 8 |
           (uint64_t)(uint8_t)(context->ci + 1) << 16;
}

static void unpack_what(uint64_t what, struct sim_context *context)
{
    context->kind = what & 0xff;
    context->gi = (uint32_t)(what >> 8 & 0xff) - 1;
    context->ci = (uint32_t)(what >> 16 & 0xff) - 1;
}

/* A context may end while it is read: then some pair is missing. */
static int read_context(int fd, int slot, struct sim_context *context)
{
    uint64_t what, pid, namespace;
    memset(context, 0, sizeof *context);
    if (!read_pair(fd, slot, USE, &context->incarnation, &context->memory) ||
        !read_pair(fd, slot, WHAT, &what, &context->mps) ||
        !read_pair(fd, slot, PROCESS, &pid, &namespace))
        return 0;
    unpack_what(what, context);
    context->pid = (uint32_t)pid;
    context->pid_namespace = (uint32_t)namespace;
    context->slot = slot;
    return 1;
}

int sim_next_context(const sim_t *sim, int slot, struct sim_context *context)
{
    struct flock any;
    off_t end = pair_start(SIM_MAX_CONTEXTS, 0);
    for (; slot < SIM_MAX_CONTEXTS; slot++) {
        if (read_context(sim->fd, slot, context))
            return slot;
        if (!find_lock(sim->fd, pair_start(slot, 0), end - pair_start(slot, 0), &any))
            return -1;
    }
    return -1;
}

int sim_context_in(const sim_t *sim, const struct sim_context *context, const char *cgroup)
{
    uint64_t hash, unused;
    for (int level = 0; level < SIM_CGROUP_LEVELS; level++) {
        if (!read_pair(sim->fd, context->slot, CGROUPS + level, &hash, &unused))
            return 0;
        if (sim_cgroup_ends_with(cgroup, hash))
            return 1;
    }
    return 0;
}

int sim_context_runs_on(const struct sim_context *context, const struct sim_gpu *gpu, uint32_t gi,
                        uint32_t ci)
{
    return context->incarnation == gpu->incarnation && (gi == SIM_NONE || context->gi == gi) &&
           (ci == SIM_NONE || context->ci == ci);
}

/* ---- process ids ---- */

static uint32_t namespace_of(const char *process)
{
    struct stat found;
    char path[NAME_MAX + 32];
    snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
    return stat(path, &found) == 0 ? (uint32_t)found.st_ino : 0;
}

/* The last number of the NSpid line: the process as its own namespace counts it. */
static uint32_t inner_pid(const char *process)
{
    char path[NAME_MAX + 32], line[256];
    uint32_t pid = 0;
    snprintf(path, sizeof path, "/proc/%s/status", process);
    FILE *stream = fopen(path, "re");
    if (!stream)
        return 0;
    while (fgets(line, sizeof line, stream)) {
        if (strncmp(line, "NSpid:", 6) != 0)
            continue;
        char *last = strrchr(line, '\t');
        pid = last ? (uint32_t)strtoul(last, NULL, 10) : 0;
        break;
    }
    fclose(stream);
    return pid;
}

uint32_t sim_pid_here(uint32_t pid, uint32_t namespace)
{
    struct dirent *entry;
    uint32_t found = 0;
    if (namespace == namespace_of("self"))
        return pid;
    DIR *dir = opendir("/proc");
    while (dir && !found && (entry = readdir(dir)))
        if (isdigit((unsigned char)entry->d_name[0]) && namespace_of(entry->d_name) == namespace &&
            inner_pid(entry->d_name) == pid)
            found = (uint32_t)strtoul(entry->d_name, NULL, 10);
    if (dir)
        closedir(dir);
    return found;
}

uint32_t sim_pid_namespace(void)
{
    return namespace_of("self");
}

/* ---- opening, resizing, closing one's own ---- */

nvmlReturn_t sim_contexts_lock(sim_t *sim)
{
    int answer;
    do
        answer = flock(sim->fd, LOCK_EX);
    while (answer < 0 && errno == EINTR);
    return answer == 0 ? NVML_SUCCESS
                       : sim_fail(NVML_ERROR_OPERATING_SYSTEM, "flock %s: %s", sim->path,
                                  strerror(errno));
}

void sim_contexts_unlock(sim_t *sim)
{
    flock(sim->fd, LOCK_UN);
}

static int hold(int fd, int slot, int pair, uint64_t first, uint64_t second)
{
    if (first > MAX_NUMBER || second > MAX_NUMBER)
        return -1;
    return sim_byte_lock(fd, F_RDLCK, pair_start(slot, pair) + (off_t)first, (off_t)second + 1, 0);
}

/* Under sim_contexts_lock. */
static int free_slot(const sim_t *sim)
{
    for (int slot = 0; slot < SIM_MAX_CONTEXTS; slot++)
        if (!sim_byte_held(sim->fd, pair_start(slot, 0), SLOT_BYTES))
            return slot;
    return -1;
}

static int hold_all(int fd, const struct sim_context *context)
{
    uint64_t cgroups[SIM_CGROUP_LEVELS];
    int levels = sim_own_cgroups(cgroups);
    for (int level = 0; level < levels; level++)
        if (hold(fd, context->slot, CGROUPS + level, cgroups[level], 0) < 0)
            return -1;
    if (hold(fd, context->slot, PROCESS, context->pid, context->pid_namespace) < 0 ||
        hold(fd, context->slot, WHAT, pack_what(context), context->mps) < 0)
        return -1;
    return hold(fd, context->slot, USE, context->incarnation, context->memory);
}

nvmlReturn_t sim_context_open(sim_t *sim, struct sim_context *context)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", sim->fd);
    context->slot = free_slot(sim);
    context->pid = (uint32_t)getpid();
    context->pid_namespace = sim_pid_namespace();
    /* A description of its own, so that closing it drops the locks of this context only. */
    context->fd = context->slot < 0 ? -1 : open(link, O_RDONLY | O_CLOEXEC);
    if (context->fd >= 0 && hold_all(context->fd, context) == 0)
        return NVML_SUCCESS;
    nvmlReturn_t result = sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "no room for a context: %s",
                                   strerror(errno));
    sim_context_close(context);
    return result;
}

nvmlReturn_t sim_context_resize(struct sim_context *context, uint64_t memory)
{
    off_t start = pair_start(context->slot, USE) + (off_t)context->incarnation;
    int failed;
    if (memory > MAX_NUMBER)
        return sim_fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "more memory than any GPU has");
    if (memory >= context->memory)
        failed = sim_byte_lock(context->fd, F_RDLCK, start, (off_t)memory + 1, 0);
    else
        failed = sim_byte_lock(context->fd, F_UNLCK, start + (off_t)memory + 1,
                               (off_t)(context->memory - memory), 0);
    if (failed)
        return sim_fail(NVML_ERROR_OPERATING_SYSTEM, "lock: %s", strerror(errno));
    context->memory = memory;
    return NVML_SUCCESS;
}

void sim_context_close(struct sim_context *context)
{
    if (context->fd >= 0)
        close(context->fd);
    context->fd = -1;
}
