/* Where the running code lies, and from that the tree it belongs to and the state beside it. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define STATE_NAME "libnvidia-simstate.so."

#if defined(__aarch64__)
#define MAIN_LIBRARY_DIR "/usr/lib/aarch64-linux-gnu"
#else
#define MAIN_LIBRARY_DIR "/usr/lib/x86_64-linux-gnu"
#endif

/* Longest first: the first that ends a path is cut off. */
static const char *const library_dirs[] = {MAIN_LIBRARY_DIR, "/usr/lib64", "/usr/lib", "/lib64"};
static const char *const program_dirs[] = {"/usr/bin", "/usr/sbin", "/bin", "/sbin"};

static char own_prefix[PATH_MAX];
static char own_dir[PATH_MAX];
static char own_version[32];

static void cut_dir(char *dir, const char *const *ends, size_t count)
{
    size_t length = strlen(dir);
    for (size_t i = 0; i < count; i++) {
        size_t end = strlen(ends[i]);
        if (length >= end && strcmp(dir + length - end, ends[i]) == 0) {
            dir[length - end] = '\0';
            return;
        }
    }
    dir[0] = '\0';
}

static void cut_file(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
}

#ifdef SIM_STATIC
static void find_prefix(void)
{
    ssize_t length = readlink("/proc/self/exe", own_prefix, sizeof own_prefix - 1);
    own_prefix[length > 0 ? length : 0] = '\0';
    cut_file(own_prefix);
    cut_dir(own_prefix, program_dirs, sizeof program_dirs / sizeof *program_dirs);
    (void)library_dirs;
}
#else
/* The file name of an installed library ends in the driver's version: libnvidia-ml.so.580.95.05. */
static void find_version(const char *real_path)
{
    const char *suffix = strstr(real_path, ".so.");
    if (suffix && strchr(suffix + 4, '.'))
        sim_copy(own_version, sizeof own_version, suffix + 4);
}

static void find_prefix(void)
{
    static const char anchor = 0;
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr(&anchor, &info) || !info.dli_fname)
        return;
    if (realpath(info.dli_fname, path))
        find_version(path);
    sim_copy(path, sizeof path, info.dli_fname);
    cut_file(path);
    if (!realpath(path, own_dir))
        sim_copy(own_dir, sizeof own_dir, path);
    sim_copy(own_prefix, sizeof own_prefix, own_dir);
    cut_dir(own_prefix, library_dirs, sizeof library_dirs / sizeof *library_dirs);
    (void)program_dirs;
}
#endif

__attribute__((constructor)) static void find_self(void)
{
    find_prefix();
}

const char *sim_own_prefix(void)
{
    const char *wanted = getenv("SIM_NVML_PREFIX");
    return wanted ? wanted : own_prefix;
}

const char *sim_own_version(void)
{
    return own_version;
}

nvmlReturn_t sim_state_path(const char *prefix, const char *version, char *path, size_t size)
{
    int length = snprintf(path, size, "%s%s/%s%s", prefix, MAIN_LIBRARY_DIR, STATE_NAME, version);
    if (length < 0 || (size_t)length >= size)
        return sim_fail(NVML_ERROR_INVALID_ARGUMENT, "path of the state is too long: %s", prefix);
    return NVML_SUCCESS;
}

/* The state in one folder: the one of this version, else any. Versions differ for a moment while a
 * driver is upgraded. */
static int find_in_dir(const char *dir, const char *version, char *path, size_t size)
{
    char name[NAME_MAX + 1] = "";
    struct dirent *entry;
    DIR *stream = opendir(dir);
    if (!stream)
        return 0;
    while ((entry = readdir(stream))) {
        if (strncmp(entry->d_name, STATE_NAME, strlen(STATE_NAME)) != 0)
            continue;
        if (!name[0] || strcmp(entry->d_name + strlen(STATE_NAME), version) == 0)
            sim_copy(name, sizeof name, entry->d_name);
    }
    closedir(stream);
    return name[0] && snprintf(path, size, "%s/%s", dir, name) < (int)size;
}

/* A library finds the state beside itself, wherever that is; else the usual folders are searched. */
nvmlReturn_t sim_find_state(const char *prefix, const char *version, char *path, size_t size)
{
    char dir[PATH_MAX];
    if (prefix == own_prefix && own_dir[0] && find_in_dir(own_dir, version, path, size))
        return NVML_SUCCESS;
    for (size_t i = 0; i < sizeof library_dirs / sizeof *library_dirs; i++) {
        snprintf(dir, sizeof dir, "%s%s", prefix, library_dirs[i]);
        if (find_in_dir(dir, version, path, size))
            return NVML_SUCCESS;
    }
    return sim_fail(NVML_ERROR_DRIVER_NOT_LOADED, "no simulated state: looked for %s%s/%s*", prefix,
                    MAIN_LIBRARY_DIR, STATE_NAME);
}
