/* The GPU driver's libraries: found in the container, linked, and made known to its loader. */
#include "hook.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE_LIMIT (32u << 20)
#define CONF "00-gpu-dra-driver.conf"
#define INCLUDE "include /etc/ld.so.conf.d/*.conf\n"

typedef struct {
    library_t *items;
    size_t count;
} libraries_t;

static result_t worse(result_t one, result_t other)
{
    return one > other ? one : other;
}

static bool is_driver_library(const char *name, const options_t *options)
{
    size_t length = strlen(name), tail = strlen(options->version);
    for (size_t i = 0; i < options->name_count; i++)
        if (strcmp(name, options->names[i]) == 0)
            return true;
    if (strncmp(name, "lib", 3) != 0 || length >= MAX_NAME || length < tail + strlen("lib.so."))
        return false;
    const char *end = name + length - tail;
    return strcmp(end, options->version) == 0 && memcmp(end - 4, ".so.", 4) == 0;
}

static bool read_soname(int folder, const char *name, char *soname, uint32_t *flags)
{
    struct stat status;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool fine = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                elf_soname(fd, soname, MAX_NAME, flags);
    close(fd);
    return fine;
}

static bool leads_to(int folder, const char *link, const char *target)
{
    char found[MAX_NAME];
    ssize_t length = readlinkat(folder, link, found, sizeof found);
    return length == (ssize_t)strlen(target) && memcmp(found, target, (size_t)length) == 0;
}

/* Enter a library: the loader is asked for `key` and opens `name`. */
static void enter(libraries_t *found, const char *path, const char *key, const char *name,
                  uint32_t flags)
{
    if (found->count == MAX_LIBRARIES) {
        note("more than %d libraries; %s is left out", MAX_LIBRARIES, name);
        return;
    }
    library_t *library = &found->items[found->count];
    const char *slash = strcmp(path, "/") == 0 ? "" : "/";
    int length = snprintf(library->path, sizeof library->path, "%s%s%s", path, slash, name);
    snprintf(library->soname, sizeof library->soname, "%s", key);
    library->flags = flags;
    if (length > 0 && (size_t)length < sizeof library->path)
        found->count++;
}

/* Link one library; enter it by its soname, and by its name without version where there is one. */
static result_t add_library(int folder, int own, const char *path, const char *name,
                            libraries_t *found)
{
    char soname[MAX_NAME], plain[MAX_NAME];
    uint32_t flags;
    result_t result = DONE;
    if (!read_soname(folder, name, soname, &flags))
        return DONE; /* data of the driver, or a library of another machine */
    if (own >= 0 && strcmp(soname, name) != 0)
        result = put_link(own, soname, name);
    enter(found, path, soname, leads_to(folder, soname, name) ? soname : name, flags);

    const char *end = strstr(soname, ".so.");
    if (end != NULL) {
        snprintf(plain, sizeof plain, "%.*s", (int)(end - soname) + 3, soname);
        if (leads_to(folder, plain, soname))
            enter(found, path, plain, plain, flags);
    }
    return result;
}

static result_t scan_folder(int root, const char *path, const options_t *options,
                            libraries_t *found)
{
    int folder = open_in_root(root, path, O_RDONLY | O_DIRECTORY, false);
    DIR *entries = folder < 0 ? NULL : fdopendir(folder);
    if (entries == NULL) {
        note("cannot list %s: %s; going on without it", path, strerror(errno));
        if (folder >= 0)
            close(folder);
        return LEFT;
    }
    int own = open_in_root(root, path, O_PATH | O_DIRECTORY, true);
    if (own < 0)
        note("no links are made in %s: %s", path, strerror(errno));
    result_t result = DONE;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (is_driver_library(entry->d_name, options))
            result = worse(result, add_library(folder, own, path, entry->d_name, found));
    closedir(entries);
    if (own >= 0)
        close(own);
    return result;
}

static bool exists(int folder, const char *name)
{
    struct stat status;
    return fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Tell a later ldconfig in the container about the folders, first of all others. */
static result_t write_conf(int root, int etc, const options_t *options)
{
    result_t result = DONE;
    if (mkdirat(etc, "ld.so.conf.d", 0755) < 0 && errno != EEXIST)
        return refused("ld.so.conf.d");
    if (!exists(etc, "ld.so.conf"))
        result = put_file(etc, "ld.so.conf", INCLUDE, strlen(INCLUDE));
    int folder = open_in_root(root, "etc/ld.so.conf.d", O_PATH | O_DIRECTORY, true);
    if (folder < 0)
        return worse(result, refused("ld.so.conf.d"));
    char text[MAX_FOLDERS * MAX_PATH / 2 + MAX_FOLDERS] = "";
    size_t size = 0;
    for (size_t i = 0; i < options->folder_count; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%s\n", options->folders[i]);
    result = worse(result, put_file(folder, CONF, text, size));
    close(folder);
    return result;
}

static result_t write_cache(int root, int etc, const libraries_t *found)
{
    bytes_t old = {0}, fresh = {0};
    struct stat status;
    int fd = open_in_root(root, "etc/ld.so.cache", O_RDONLY | O_NONBLOCK, false);
    bool readable = fd < 0 || fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) ||
                    read_whole(fd, CACHE_LIMIT, &old);
    if (fd >= 0)
        close(fd);
    result_t result;
    if (readable && ldcache_rebuild(&old, found->items, found->count, &fresh))
        result = put_file(etc, "ld.so.cache", fresh.data, fresh.size);
    else
        result = refused("ld.so.cache"); /* too large, or no memory: the old one stays */
    free(old.data);
    free(fresh.data);
    return result;
}

result_t add_libraries(int root, const options_t *options)
{
    libraries_t found = {.items = calloc(MAX_LIBRARIES, sizeof(library_t))};
    if (found.items == NULL)
        return refused("the list of libraries");
    result_t result = DONE;
    for (size_t i = 0; i < options->folder_count; i++)
        result = worse(result, scan_folder(root, options->folders[i], options, &found));
    if (found.count == 0)
        note("no library *.so.%s was found in the container", options->version);
    int etc = open_in_root(root, "etc", O_PATH | O_DIRECTORY, true);
    if (etc < 0) {
        result = worse(result, refused("/etc"));
    } else {
        result = worse(result, write_conf(root, etc, options));
        result = worse(result, write_cache(root, etc, &found));
        close(etc);
    }
    free(found.items);
    return result;
}

static result_t add_link(int root, const link_t *link)
{
    char folder[MAX_PATH];
    const char *name = strrchr(link->path, '/') + 1;
    size_t length = (size_t)(name - link->path);
    memcpy(folder, link->path, length);
    folder[length] = '\0';
    int own = open_in_root(root, folder, O_PATH | O_DIRECTORY, true);
    if (own < 0)
        return refused(link->path);
    result_t result = put_link(own, name, link->target);
    close(own);
    return result;
}

result_t add_links(int root, const options_t *options)
{
    result_t result = DONE;
    for (size_t i = 0; i < options->link_count; i++)
        result = worse(result, add_link(root, &options->links[i]));
    return result;
}
