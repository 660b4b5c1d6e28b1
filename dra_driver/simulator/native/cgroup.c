/*
 * The cgroup of a process, for limits by cgroup (limits.c).
 *
 * Who sets a limit knows the cgroup by a path of the host, such as
 * /sys/fs/cgroup/kubepods/burstable/pod1; the process itself reads /kubepods/burstable/pod1/ctr in
 * /proc/self/cgroup. Mounts may differ, what follows them does not: a limit holds for a process if
 * its path ends with the process's cgroup or with one above it. Only hashes are compared, since they
 * fit where contexts are kept. A cgroup namespace of its own hides the path from a process: then,
 * and in tests without rights on cgroups, SIM_NVML_CGROUP says what would stand there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* FNV-1a, cut to what a context can hold; never 0. */
static uint64_t hash_of(const char *text, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    hash = (hash >> 40 ^ hash) & 0xffffffffffu;
    return hash ? hash : 1;
}

static size_t length_without_slashes(const char *path)
{
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        length--;
    return length;
}

/* The path of one line of /proc/self/cgroup: number, controllers, path. */
static const char *path_in(char *line)
{
    char *colon = strchr(line, ':');
    char *path = colon ? strchr(colon + 1, ':') : NULL;
    line[strcspn(line, "\n")] = '\0';
    return path ? path + 1 : "";
}

/* In version 1 controllers may differ in their paths; containers stand deepest. */
static void read_own(char *deepest, size_t size)
{
    char line[SIM_PATH * 4];
    FILE *stream = fopen("/proc/self/cgroup", "re");
    deepest[0] = '\0';
    while (stream && fgets(line, sizeof line, stream)) {
        const char *path = path_in(line);
        if (strlen(path) > strlen(deepest))
            sim_copy(deepest, size, path);
    }
    if (stream)
        fclose(stream);
}

int sim_own_cgroups(uint64_t hashes[SIM_CGROUP_LEVELS])
{
    char path[SIM_PATH * 4];
    const char *given = getenv("SIM_NVML_CGROUP");
    int count = 0;
    if (given)
        sim_copy(path, sizeof path, given);
    else
        read_own(path, sizeof path);
    size_t length = length_without_slashes(path);
    while (length && path[0] == '/' && count < SIM_CGROUP_LEVELS) {
        hashes[count++] = hash_of(path, length);
        while (length && path[length - 1] != '/')
            length--;
        path[length] = '\0';
        length = length_without_slashes(path);
    }
    return count;
}

int sim_cgroup_ends_with(const char *path, uint64_t hash)
{
    size_t length = length_without_slashes(path);
    for (size_t i = 0; i < length; i++)
        if (path[i] == '/' && hash_of(path + i, length - i) == hash)
            return 1;
    return 0;
}
