/* Making, opening and closing the file that holds a state. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

static nvmlReturn_t os_failure(const char *what, const char *path)
{
    return sim_fail(NVML_ERROR_OPERATING_SYSTEM, "%s %s: %s", what, path, strerror(errno));
}

static nvmlReturn_t check_file(const char *path, const struct sim_file *file)
{
    if (file->magic != SIM_MAGIC)
        return sim_fail(NVML_ERROR_INVALID_STATE, "%s is not a simulated state", path);
    if (file->layout != SIM_LAYOUT || file->size != sizeof *file)
        return sim_fail(NVML_ERROR_INVALID_STATE,
                        "%s was made by another build of the simulator: make the node anew", path);
    return NVML_SUCCESS;
}

static nvmlReturn_t map_file(sim_t *sim)
{
    struct stat stat;
    int protection = PROT_READ | (sim->writable ? PROT_WRITE : 0);
    if (fstat(sim->fd, &stat) < 0)
        return os_failure("stat", sim->path);
    if (stat.st_size != (off_t)sizeof *sim->file)
        return sim_fail(NVML_ERROR_INVALID_STATE, "%s has not the size of a simulated state",
                        sim->path);
    void *map = mmap(NULL, sizeof *sim->file, protection, MAP_SHARED, sim->fd, 0);
    if (map == MAP_FAILED)
        return os_failure("map", sim->path);
    sim->file = map;
    return check_file(sim->path, sim->file);
}

static int open_file(sim_t *sim)
{
    sim->writable = 1;
    sim->fd = open(sim->path, O_RDWR | O_CLOEXEC);
    if (sim->fd >= 0 || (errno != EACCES && errno != EROFS && errno != EPERM))
        return sim->fd;
    sim->writable = 0;
    sim->fd = open(sim->path, O_RDONLY | O_CLOEXEC);
    return sim->fd;
}

nvmlReturn_t sim_open_path(const char *path, const char *prefix, sim_t **out)
{
    sim_t *sim = calloc(1, sizeof *sim);
    if (!sim)
        return sim_fail(NVML_ERROR_MEMORY, "out of memory");
    pthread_mutex_init(&sim->mutex, NULL);
    sim->pid = getpid();
    sim_copy(sim->path, sizeof sim->path, path);
    sim_copy(sim->prefix, sizeof sim->prefix, prefix);
    nvmlReturn_t result = open_file(sim) < 0 ? os_failure("open", path) : map_file(sim);
    if (result != NVML_SUCCESS) {
        sim_close(sim);
        return result;
    }
    *out = sim;
    return NVML_SUCCESS;
}

/* A root as an absolute path; "" for /, so that what is appended begins with one slash. */
static nvmlReturn_t resolve_root(const char *root, char prefix[PATH_MAX])
{
    if (!realpath(root, prefix))
        return os_failure("open", root);
    if (strcmp(prefix, "/") == 0)
        prefix[0] = '\0';
    return NVML_SUCCESS;
}

nvmlReturn_t sim_open(const char *root, sim_t **out)
{
    char path[PATH_MAX], prefix[PATH_MAX];
    const char *wanted = root ? NULL : getenv("SIM_NVML_STATE");
    nvmlReturn_t result = root ? resolve_root(root, prefix) : NVML_SUCCESS;
    if (result == NVML_SUCCESS && !wanted)
        result = root ? sim_find_state(prefix, "", path, sizeof path)
                      : sim_find_state(sim_own_prefix(), sim_own_version(), path, sizeof path);
    if (result != NVML_SUCCESS)
        return result;
    return sim_open_path(wanted ? wanted : path, root ? prefix : sim_own_prefix(), out);
}

void sim_close(sim_t *sim)
{
    if (!sim)
        return;
    if (sim->file)
        munmap(sim->file, sizeof *sim->file);
    if (sim->fd >= 0)
        close(sim->fd);
    pthread_mutex_destroy(&sim->mutex);
    free(sim);
}

static void fill_new(struct sim_file *file, const char *driver_version, int cuda_version)
{
    file->magic = SIM_MAGIC;
    file->layout = SIM_LAYOUT;
    file->size = sizeof *file;
    file->core.next_serial = 1;
    file->core.epoch = 1;
    file->core.cuda_version = cuda_version;
    sim_copy(file->core.driver_version, sizeof file->core.driver_version, driver_version);
    sim_random_uuid(file->core.boot_id, sizeof file->core.boot_id, "");
}

/* Write a whole state under a passing name; posix_fallocate, so that a full disk is met here and not
 * as a signal in some later store. */
static nvmlReturn_t write_new(const char *path, const char *driver_version, int cuda_version)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return os_failure("create", path);
    int error = posix_fallocate(fd, 0, sizeof(struct sim_file));
    void *map = MAP_FAILED;
    if (!error) {
        map = mmap(NULL, sizeof(struct sim_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = map == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (error) {
        errno = error;
        return os_failure("fill", path);
    }
    fill_new(map, driver_version, cuda_version);
    munmap(map, sizeof(struct sim_file));
    return NVML_SUCCESS;
}

nvmlReturn_t sim_check_version(const char *version)
{
    size_t length = strlen(version);
    if (length == 0 || length >= sizeof(((struct sim_core *)0)->driver_version) ||
        strspn(version, "0123456789.") != length)
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT,
                        "driver version \"%s\" should look like 580.95.05", version);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_create(const char *root, const char *driver_version, int cuda_version,
                        sim_t **out)
{
    char prefix[PATH_MAX], path[PATH_MAX], passing[PATH_MAX + 32];
    nvmlReturn_t result = sim_check_version(driver_version);
    if (result == NVML_SUCCESS)
        result = resolve_root(root, prefix);
    if (result == NVML_SUCCESS)
        result = sim_state_path(prefix, driver_version, path, sizeof path);
    if (result != NVML_SUCCESS)
        return result;
    if (sim_find_state(prefix, "", passing, sizeof passing) == NVML_SUCCESS)
        return sim_fail(NVML_ERROR_INVALID_STATE, "%s exists already", passing);
    /* Under a hidden name nobody takes it for a state before it is one. */
    const char *name = strrchr(path, '/') + 1;
    snprintf(passing, sizeof passing, "%.*s.%s.%d", (int)(name - path), path, name, (int)getpid());
    result = write_new(passing, driver_version, cuda_version);
    if (result == NVML_SUCCESS && link(passing, path) < 0)
        result = os_failure("create", path);
    unlink(passing);
    return result == NVML_SUCCESS ? sim_open_path(path, prefix, out) : result;
}
