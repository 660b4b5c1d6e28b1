/*
 * The GPU driver's parameters as the container sees them. With ModifyDeviceFiles 1, as on the host,
 * the driver's libraries make device nodes for every GPU of the machine in the container. Runtimes
 * refuse a mount over this file, so the hook makes it.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define PARAMS "proc/driver/nvidia/params"
#define LIMIT (64u << 10)
#define SWITCH "ModifyDeviceFiles: "
#define COPY ".gpu-dra-driver-params"

static void path_of(int fd, char out[32])
{
    snprintf(out, 32, "/proc/self/fd/%d", fd);
}

/* Put the switch off in place; false when it is off, or not there. */
static bool switch_off(bytes_t *text)
{
    size_t length = strlen(SWITCH);
    for (size_t at = 0; at + length < text->size; at++) {
        bool starts_line = at == 0 || text->data[at - 1] == '\n';
        if (starts_line && memcmp(text->data + at, SWITCH, length) == 0) {
            bool on = text->data[at + length] != '0';
            text->data[at + length] = '0';
            return on;
        }
    }
    return false;
}

static result_t bind_over(int root, int copy)
{
    char from[32], to[32];
    int target = open_in_root(root, PARAMS, O_PATH, false);
    if (target < 0)
        return refused(PARAMS);
    path_of(copy, from);
    path_of(target, to);
    int done = mount(from, to, NULL, MS_BIND, NULL);
    close(target);
    if (done < 0)
        return refused(PARAMS);
    int top = open_in_root(root, PARAMS, O_PATH, false); /* now the copy */
    if (top < 0)
        return refused(PARAMS);
    path_of(top, to);
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (mount(NULL, to, NULL, flags, NULL) < 0)
        note("the copy of %s stays writable: %s", PARAMS, strerror(errno));
    close(top);
    return DONE;
}

/* The copy is a file without a name: of the container's /dev, which is in memory and its own. */
static result_t cover(int root, const bytes_t *text)
{
    int dev = open_in_root(root, "dev", O_PATH | O_DIRECTORY, false);
    if (dev < 0)
        return refused(PARAMS);
    unlinkat(dev, COPY, 0);
    result_t result;
    int copy = openat(dev, COPY, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (copy < 0 || write(copy, text->data, text->size) != (ssize_t)text->size)
        result = refused(PARAMS);
    else
        result = bind_over(root, copy);
    if (copy >= 0)
        close(copy);
    unlinkat(dev, COPY, 0);
    close(dev);
    return result;
}

result_t mask_params(int root)
{
    bytes_t text = {0};
    int fd = open_in_root(root, PARAMS, O_RDONLY | O_NONBLOCK, false);
    if (fd < 0)
        return DONE; /* no GPU driver in this kernel, or no /proc in this container */
    bool readable = read_whole(fd, LIMIT, &text);
    close(fd);
    result_t result = DONE;
    if (readable && switch_off(&text))
        result = cover(root, &text);
    free(text.data);
    return result;
}
