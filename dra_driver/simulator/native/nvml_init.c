/* NVML: initialisation, and what it says of the system rather than of a device. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "call.h"

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint references;
static _Atomic(sim_t *) state;
static _Atomic(uint64_t) epoch;

sim_t *nvml_state(void)
{
    return references ? atomic_load(&state) : NULL;
}

uint64_t nvml_epoch(void)
{
    return atomic_load(&epoch);
}

/* A state once opened stays mapped, since other threads may be in a call; it is used again unless
 * the file is another one by now. */
static nvmlReturn_t open_state(void)
{
    sim_t *old = atomic_load(&state), *new = NULL;
    struct stat before, after;
    nvmlReturn_t result = sim_open(NULL, &new);
    if (result != NVML_SUCCESS)
        return result;
    if (old && fstat(old->fd, &before) == 0 && fstat(new->fd, &after) == 0 &&
        before.st_dev == after.st_dev && before.st_ino == after.st_ino) {
        sim_close(new);
        return NVML_SUCCESS;
    }
    atomic_store(&state, new);
    return NVML_SUCCESS;
}

/* Under the lock: the library is of the driver that is loaded. */
static nvmlReturn_t check_version(const sim_t *sim)
{
    const char *own = sim_own_version();
    return own[0] && strcmp(own, sim->core->driver_version) != 0
               ? NVML_ERROR_LIB_RM_VERSION_MISMATCH
               : NVML_SUCCESS;
}

/* nvmlInit goes through the common door for the sake of its faults, which needs an epoch to match. */
static nvmlReturn_t enter(const char *function)
{
    struct call call = {0};
    sim_t *sim = atomic_load(&state);
    nvmlReturn_t result = sim_lock(sim, 0);
    if (result != NVML_SUCCESS)
        return result;
    result = check_version(sim);
    atomic_store(&epoch, sim->core->epoch);
    sim_unlock(sim);
    if (result != NVML_SUCCESS)
        return result;
    references++;
    result = call_begin(&call, function, READING);
    if (result == NVML_SUCCESS)
        call_end(&call, NVML_SUCCESS);
    references--;
    return result;
}

static nvmlReturn_t initialise(const char *function)
{
    pthread_mutex_lock(&init_mutex);
    nvmlReturn_t result = open_state();
    if (result == NVML_SUCCESS)
        result = sim_control_visible(atomic_load(&state));
    if (result == NVML_SUCCESS)
        result = enter(function);
    if (result == NVML_SUCCESS)
        references++;
    pthread_mutex_unlock(&init_mutex);
    return result;
}

nvmlReturn_t nvmlInit(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* they concern nodes without GPUs, where this library initialises anyway */
    return initialise(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&init_mutex);
    nvmlReturn_t result = references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references && --references == 0)
        sim_client_close_all(atomic_load(&state));
    pthread_mutex_unlock(&init_mutex);
    return result;
}

nvmlReturn_t give_text(const char *from, char *to, unsigned int size)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, strlen(from) + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    return call_end(&call, give_text(call.core->driver_version, version, length));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct call call = {0};
    char text[64];
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    snprintf(text, sizeof text, "%d.%s", call.core->cuda_version / 1000, call.core->driver_version);
    return call_end(&call, give_text(text, version, length));
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin(&call, function, READING);
    if (result != NVML_SUCCESS)
        return result;
    if (version)
        *version = call.core->cuda_version;
    return call_end(&call, version ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    return cuda_version(__func__, cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    return cuda_version(__func__, cudaDriverVersion);
}

static int read_first_word(unsigned int pid, const char *file, char *text, int size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/%s", pid, file);
    FILE *stream = fopen(path, "re");
    if (!stream)
        return 0;
    if (!fgets(text, size, stream))
        text[0] = '\0';
    fclose(stream);
    text[strcspn(text, "\n")] = '\0';
    return 1;
}

/* The kernel keeps 15 characters of a name; longer ones stand in the command line. */
static nvmlReturn_t process_name(unsigned int pid, char *name, unsigned int length)
{
    char text[256] = "", command[256] = "";
    if (!read_first_word(pid, "comm", text, sizeof text))
        return NVML_ERROR_NOT_FOUND;
    if (strlen(text) == 15 && read_first_word(pid, "cmdline", command, sizeof command) &&
        command[0])
        return give_text(command, name, length);
    return give_text(text, name, length);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    return call_end(&call, process_name(pid, name, length));
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    if (unitCount)
        *unitCount = 0; /* S-class units are no more */
    return call_end(&call, unitCount ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}
