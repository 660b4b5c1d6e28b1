/*
 * The lock on a state, its undo copy, and waiting for changes.
 *
 * Between processes: a byte-range lock of the open file description, which the kernel drops when
 * its last holder dies. Within a process, whose threads share the description: a mutex.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

int sim_byte_lock(int fd, int type, off_t start, off_t length, int wait)
{
    struct flock lock = {
        .l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    int answer;
    do
        answer = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    while (answer < 0 && errno == EINTR);
    return answer;
}

int sim_byte_held(int fd, off_t start, off_t length)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* A forked child shares its parent's description and thus its locks: give it one of its own. */
static nvmlReturn_t after_fork(sim_t *sim)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", sim->fd);
    int fd = open(link, (sim->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return sim_fail(NVML_ERROR_OPERATING_SYSTEM, "%s: %s", sim->path, strerror(errno));
    pthread_mutex_init(&sim->mutex, NULL);
    close(sim->fd);
    sim->fd = fd;
    memset(sim->client, 0, sizeof sim->client);
    sim->pid = getpid();
    return NVML_SUCCESS;
}

/* Keep the compiler from moving stores over the marks that make them count: a killed writer leaves
 * exactly the stores it came to. */
static void mark_undo(struct sim_file *file, unsigned int valid)
{
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store(&file->undo_valid, valid);
    atomic_thread_fence(memory_order_seq_cst);
}

static void begin_write(struct sim_file *file)
{
    if (atomic_load(&file->undo_valid)) {
        memcpy(&file->core, &file->undo, sizeof file->core);
        mark_undo(file, 0);
    }
    memcpy(&file->undo, &file->core, sizeof file->undo);
    mark_undo(file, 1);
}

nvmlReturn_t sim_lock(sim_t *sim, int write)
{
    if (write && !sim->writable)
        return sim_fail(NVML_ERROR_NO_PERMISSION, "%s may only be read by this process", sim->path);
    if (sim->pid != getpid()) {
        nvmlReturn_t result = after_fork(sim);
        if (result != NVML_SUCCESS)
            return result;
    }
    pthread_mutex_lock(&sim->mutex);
    if (sim_byte_lock(sim->fd, write ? F_WRLCK : F_RDLCK, SIM_BYTE_STATE, 1, 1) < 0) {
        pthread_mutex_unlock(&sim->mutex);
        return sim_fail(NVML_ERROR_OPERATING_SYSTEM, "lock %s: %s", sim->path, strerror(errno));
    }
    sim->writing = write;
    if (write)
        begin_write(sim->file);
    sim->core = !write && atomic_load(&sim->file->undo_valid) ? &sim->file->undo : &sim->file->core;
    return NVML_SUCCESS;
}

void sim_unlock(sim_t *sim)
{
    if (sim->writing)
        mark_undo(sim->file, 0);
    sim->writing = 0;
    sim->core = NULL;
    sim_byte_lock(sim->fd, F_UNLCK, SIM_BYTE_STATE, 1, 0);
    pthread_mutex_unlock(&sim->mutex);
}

void sim_wake(sim_t *sim)
{
    atomic_fetch_add(&sim->file->wake, 1);
    syscall(SYS_futex, &sim->file->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sim_sleep(sim_t *sim, unsigned int seen, unsigned int milliseconds)
{
    struct timespec limit = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    syscall(SYS_futex, &sim->file->wake, FUTEX_WAIT, seen, &limit, NULL, 0);
}

uint64_t sim_epoch(const sim_t *sim)
{
    return *(const volatile uint64_t *)&sim->file->core.epoch;
}

void sim_rest(uint32_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}
