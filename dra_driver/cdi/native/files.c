/* Reading and writing below the container's root folder, which may try to lead us out of it. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_DEPTH 64
#define MAX_SYMLINKS 40
#define MAX_TRIES 16
#define UNFINISHED ".gpu-dra-cdi-hook"

/* Whether this kernel has openat2 (Linux 5.6) and lets us use it; the build can leave it out. */
static bool lacks_openat2(int error)
{
    return error == ENOSYS || error == EPERM;
}

static int kernel_open(int root, const char *path, int flags, bool own)
{
#ifdef WITHOUT_OPENAT2
    (void)root, (void)path, (void)flags, (void)own;
    errno = ENOSYS;
    return -1;
#else
    struct open_how how = {
        .flags = (unsigned)flags,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (own ? RESOLVE_NO_XDEV : 0),
    };
    for (int tries = 0;; tries++) {
        int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0 || errno != EAGAIN || tries == MAX_TRIES) /* EAGAIN: something was renamed */
            return fd;
    }
#endif
}

typedef struct {
    int folders[MAX_DEPTH]; /* the way from the root down; the last is where we are */
    int depth;
    int symlinks;
    char rest[2 * MAX_PATH]; /* what is still to be walked */
    dev_t device;
} walk_t;

static void go_up(walk_t *walk, int depth)
{
    while (walk->depth > depth)
        close(walk->folders[walk->depth--]);
}

/* Put a link's target in place of the name that was just taken. */
static bool follow(walk_t *walk, int link)
{
    char target[2 * MAX_PATH];
    ssize_t length = readlinkat(link, "", target, MAX_PATH);
    size_t rest = strlen(walk->rest);
    if (length < 0 || length == MAX_PATH || ++walk->symlinks > MAX_SYMLINKS ||
        (size_t)length + rest + 2 > sizeof target) {
        errno = ELOOP;
        return false;
    }
    target[length] = '/';
    memcpy(target + length + 1, walk->rest, rest + 1);
    memcpy(walk->rest, target, (size_t)length + rest + 2);
    if (target[0] == '/')
        go_up(walk, 0);
    return true;
}

static bool step(walk_t *walk, const char *name, bool own)
{
    if (strcmp(name, ".") == 0)
        return true;
    if (strcmp(name, "..") == 0) {
        go_up(walk, walk->depth > 0 ? walk->depth - 1 : 0);
        return true;
    }
    struct stat status;
    int fd = openat(walk->folders[walk->depth], name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &status) == 0 && S_ISLNK(status.st_mode)) {
        bool fine = follow(walk, fd);
        close(fd);
        return fine;
    }
    if (walk->depth + 1 == MAX_DEPTH || (own && status.st_dev != walk->device)) {
        errno = walk->depth + 1 == MAX_DEPTH ? ELOOP : EXDEV;
        close(fd);
        return false;
    }
    walk->folders[++walk->depth] = fd;
    return true;
}

/* As kernel_open, name by name, for kernels without openat2; `own` goes by the device. */
static int careful_open(int root, const char *path, int flags, bool own)
{
    walk_t walk = {.folders = {root}};
    struct stat status;
    if (strlen(path) >= MAX_PATH || fstat(root, &status) < 0)
        return -1;
    walk.device = status.st_dev;
    strcpy(walk.rest, path);
    bool fine = true;
    while (fine && walk.rest[0] != '\0') {
        char name[MAX_NAME] = "";
        size_t length = strcspn(walk.rest, "/");
        fine = length < sizeof name;
        if (fine)
            memcpy(name, walk.rest, length);
        size_t used = length + (walk.rest[length] == '/');
        memmove(walk.rest, walk.rest + used, strlen(walk.rest + used) + 1);
        if (fine && length > 0)
            fine = step(&walk, name, own);
    }
    char here[64];
    snprintf(here, sizeof here, "/proc/self/fd/%d", walk.folders[walk.depth]);
    int fd = fine ? open(here, flags) : -1;
    int error = errno;
    go_up(&walk, 0);
    errno = error;
    return fd;
}

/*
 * Open a path as a process would whose root folder is `root`: links can't lead out of it. With
 * `own` it must lie on the root file system itself: EXDEV for volumes, which are not ours to write.
 */
int open_in_root(int root, const char *path, int flags, bool own)
{
    int fd = kernel_open(root, path, flags | O_CLOEXEC, own);
    if (fd < 0 && lacks_openat2(errno))
        fd = careful_open(root, path, flags | O_CLOEXEC, own);
    return fd;
}

/* Give back what was not needed, so that no look beyond the end goes unnoticed. */
static void fit(bytes_t *bytes)
{
    unsigned char *smaller = bytes->size > 0 ? realloc(bytes->data, bytes->size) : NULL;
    if (smaller != NULL)
        bytes->data = smaller;
}

/* Read to the end; false with errno when that fails or is more than `limit` bytes. */
bool read_whole(int fd, size_t limit, bytes_t *out)
{
    size_t room = 0;
    *out = (bytes_t){0};
    for (;;) {
        if (out->size == room) {
            room = room ? 2 * room : 16384;
            unsigned char *larger = realloc(out->data, room);
            if (larger == NULL)
                break;
            out->data = larger;
        }
        ssize_t length = read(fd, out->data + out->size, room - out->size);
        if (length == 0) {
            fit(out);
            return true;
        }
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            break;
        out->size += (size_t)length;
        if (out->size > limit) {
            errno = EFBIG;
            break;
        }
    }
    int error = errno;
    free(out->data);
    *out = (bytes_t){0};
    errno = error;
    return false;
}

/* Say why something was not written; a full or broken storage is no property of the image. */
result_t refused(const char *what)
{
    int error = errno;
    bool broken = error == ENOSPC || error == EDQUOT || error == EIO || error == ENOMEM;
    note("cannot write %s: %s%s", what, strerror(error), broken ? "" : "; going on without it");
    return broken ? FAILED : LEFT;
}

static bool write_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t length = write(fd, at, size);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            return false;
        at += length;
        size -= (size_t)length;
    }
    return true;
}

/* Give the unfinished file or link its name; the old one is there until the new one is. */
static result_t finish(int folder, const char *name, bool made)
{
    if (made && renameat(folder, UNFINISHED, folder, name) == 0)
        return DONE;
    int error = errno;
    unlinkat(folder, UNFINISHED, 0);
    errno = error;
    return refused(name);
}

/* Write a file of mode 0644. */
result_t put_file(int folder, const char *name, const void *data, size_t size)
{
    unlinkat(folder, UNFINISHED, 0); /* of a hook that was killed */
    int fd = openat(folder, UNFINISHED, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return refused(name);
    bool made = write_all(fd, data, size) && fchmod(fd, 0644) == 0;
    int error = errno;
    close(fd);
    errno = error;
    return finish(folder, name, made);
}

/* Make a link, also in place of another link; a file of that name is the image's and stays. */
result_t put_link(int folder, const char *name, const char *target)
{
    char present[MAX_PATH];
    ssize_t length = readlinkat(folder, name, present, sizeof present);
    if (length == (ssize_t)strlen(target) && memcmp(present, target, (size_t)length) == 0)
        return DONE;
    if (length < 0 && errno == EINVAL) {
        note("%s is a file of the image and stays", name);
        return LEFT;
    }
    unlinkat(folder, UNFINISHED, 0);
    return finish(folder, name, symlinkat(target, folder, UNFINISHED) == 0);
}
