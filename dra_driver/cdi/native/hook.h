/*
 * gpu-dra-cdi-hook: the last preparations of a container that gets GPUs.
 *
 * The container runtime runs it as an OCI "createContainer" hook: all mounts of the container are
 * in place, its root folder is not yet its root. The hook reads the OCI state on standard input,
 * finds the root folder, and there
 *
 *   - makes the links by which programs know the GPU driver's libraries (libcuda.so.1),
 *   - enters these libraries into the container's ld.so.cache, whatever its layout of folders,
 *   - covers the driver's parameters, so that its libraries make no device nodes in the container,
 *   - sees that the container has the sockets of the MPS daemon that its device needs.
 *
 * An image is not to be trusted: every path is resolved inside the container's root, no program of
 * it is run, and nothing is written into volumes. Arguments stay compatible between releases, since
 * the newest plugin installs the hook for CDI files that an older one wrote.
 *
 * Exit status: 0 done (what an image does not allow is noted on standard error), 1 the container
 * would not work, 2 usage.
 */
#ifndef HOOK_H
#define HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_FOLDERS 32
#define MAX_LINKS 32
#define MAX_NAMES 16
#define MAX_LIBRARIES 256
#define MAX_NAME 256
#define MAX_PATH 4096

typedef struct {
    unsigned char *data; /* from malloc; NULL when there is none */
    size_t size;
} bytes_t;

typedef enum {
    DONE,
    LEFT,  /* this image does not allow it: noted, and the container may work all the same */
    FAILED /* the storage is full or broken: said, and the container must not start */
} result_t;

typedef struct {
    const char *target; /* what the link says */
    const char *path;   /* where it is, absolute in the container */
} link_t;

typedef struct {
    const char *version; /* of the GPU driver: its libraries are named *.so.<version> */
    const char *names[MAX_NAMES]; /* of libraries that are named otherwise */
    size_t name_count;
    const char *folders[MAX_FOLDERS];
    size_t folder_count;
    link_t links[MAX_LINKS];
    size_t link_count;
    bool mask_params;
    const char *mps; /* folder on the host; NULL: no MPS */
} options_t;

/* A library as the loader is to know it. */
typedef struct {
    char soname[MAX_NAME];
    char path[MAX_PATH]; /* absolute in the container */
    uint32_t flags;      /* kind and machine, as in ld.so.cache */
} library_t;

/* main.c */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* json.c: the string under a path of keys, ended by NULL; false when there is none that fits. */
bool json_string(const bytes_t *text, const char *const keys[], char *out, size_t room);

/* files.c */
int open_in_root(int root, const char *path, int flags, bool own);
bool read_whole(int fd, size_t limit, bytes_t *out);
result_t put_file(int folder, const char *name, const void *data, size_t size);
result_t put_link(int folder, const char *name, const char *target);
result_t refused(const char *what); /* judges errno and tells it */

/* elf.c: soname and flags of a shared library of this kind of machine; false when it is none. */
bool elf_soname(int fd, char *soname, size_t room, uint32_t *flags);

/* ldcache.c: a cache with the libraries added to those of the old one, which may be nonsense. */
bool ldcache_rebuild(const bytes_t *old, const library_t *libraries, size_t count, bytes_t *fresh);

/* libraries.c */
result_t add_libraries(int root, const options_t *options);
result_t add_links(int root, const options_t *options);

/* params.c */
result_t mask_params(int root);

/* mps.c: whether the container has this host folder as the sockets of its MPS daemon. */
result_t check_mps(int root, const char *host_folder);

#endif
