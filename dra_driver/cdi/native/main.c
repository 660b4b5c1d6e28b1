/* Arguments, and the way from the OCI state to the container's root folder. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_LIMIT (4u << 20)
#define CONFIG_LIMIT (16u << 20)

static const char *const BUNDLE[] = {"bundle", NULL};
static const char *const ROOT[] = {"root", "path", NULL};

void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("gpu-dra-cdi-hook: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

static bool is_container_path(const char *path)
{
    return path[0] == '/' && strlen(path) < MAX_PATH / 2 && strchr(path, '\n') == NULL;
}

/* Split TARGET::PATH in place. */
static bool add_link(options_t *options, char *argument)
{
    char *middle = strstr(argument, "::");
    if (middle == NULL || options->link_count == MAX_LINKS)
        return false;
    *middle = '\0';
    link_t link = {.target = argument, .path = middle + 2};
    if (link.target[0] == '\0' || !is_container_path(link.path))
        return false;
    options->links[options->link_count++] = link;
    return true;
}

static bool add_folder(options_t *options, const char *argument)
{
    if (options->folder_count == MAX_FOLDERS || !is_container_path(argument))
        return false;
    options->folders[options->folder_count++] = argument;
    return true;
}

static bool is_name(const char *text)
{
    return text[0] != '\0' && strchr(text, '/') == NULL;
}

static bool add_name(options_t *options, const char *argument)
{
    if (options->name_count == MAX_NAMES || !is_name(argument))
        return false;
    options->names[options->name_count++] = argument;
    return true;
}

static bool set_version(options_t *options, const char *argument)
{
    options->version = argument;
    return is_name(argument);
}

static bool apply(options_t *options, const char *flag, char *value)
{
    if (strcmp(flag, "--driver-version") == 0)
        return set_version(options, value);
    if (strcmp(flag, "--folder") == 0)
        return add_folder(options, value);
    if (strcmp(flag, "--library") == 0)
        return add_name(options, value);
    if (strcmp(flag, "--mps") == 0) {
        options->mps = value;
        return is_container_path(value);
    }
    return strcmp(flag, "--link") == 0 && add_link(options, value);
}

static bool parse(int count, char **arguments, options_t *options)
{
    for (int i = 1; i < count; i++) {
        const char *flag = arguments[i];
        if (strcmp(flag, "--mask-params") == 0) {
            options->mask_params = true;
            continue;
        }
        char *value = i + 1 < count ? arguments[++i] : NULL;
        if (value == NULL || !apply(options, flag, value)) {
            note("%s %s is not understood; usage: [--driver-version V] [--folder DIR]... "
                 "[--library NAME]... [--link TARGET::PATH]... [--mask-params] [--mps DIR]",
                 flag, value ? value : "");
            return false;
        }
    }
    if (options->folder_count > 0 && options->version == NULL) {
        note("--folder needs --driver-version");
        return false;
    }
    return true;
}

static bool read_config(const char *bundle, bytes_t *config)
{
    char path[MAX_PATH];
    int length = snprintf(path, sizeof path, "%s/config.json", bundle);
    if (length < 0 || (size_t)length >= sizeof path) {
        note("the bundle's path is too long");
        return false;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool fine = fd >= 0 && read_whole(fd, CONFIG_LIMIT, config);
    if (!fine)
        note("cannot read %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return fine;
}

/* Path of the container's root folder; a relative one starts at the bundle (OCI config.md). */
static bool find_root(char *path, size_t room)
{
    bytes_t state = {0}, config = {0};
    char bundle[MAX_PATH], root[MAX_PATH];
    bool fine = false;

    if (!read_whole(STDIN_FILENO, STATE_LIMIT, &state))
        note("cannot read the container's state on standard input: %s", strerror(errno));
    else if (!json_string(&state, BUNDLE, bundle, sizeof bundle))
        note("the container's state on standard input names no bundle");
    else if (read_config(bundle, &config)) {
        fine = json_string(&config, ROOT, root, sizeof root);
        if (!fine)
            note("%s/config.json names no root folder", bundle);
    }
    if (fine) {
        int length = root[0] == '/' ? snprintf(path, room, "%s", root)
                                    : snprintf(path, room, "%s/%s", bundle, root);
        fine = length > 0 && (size_t)length < room;
        if (!fine)
            note("the root folder's path is too long");
    }
    free(state.data);
    free(config.data);
    return fine;
}

/* The runtime's own root folder would be the host's: nothing of a container is there to prepare. */
static bool is_ours(int root)
{
    struct stat here, there;
    return fstat(root, &there) == 0 && stat("/", &here) == 0 && here.st_dev == there.st_dev &&
           here.st_ino == there.st_ino;
}

static int open_root(void)
{
    char path[MAX_PATH];
    if (!find_root(path, sizeof path))
        return -1;
    int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        note("cannot open the container's root folder %s: %s", path, strerror(errno));
    } else if (is_ours(root)) {
        note("the container's root folder %s is the host's", path);
        close(root);
        return -1;
    }
    return root;
}

int main(int count, char **arguments)
{
    options_t options = {0};
    if (!parse(count, arguments, &options))
        return 2;
    int root = open_root();
    if (root < 0)
        return 1;
    result_t links = add_links(root, &options);
    result_t libraries = options.folder_count > 0 ? add_libraries(root, &options) : DONE;
    result_t params = options.mask_params ? mask_params(root) : DONE;
    result_t mps = options.mps != NULL ? check_mps(root, options.mps) : DONE;
    close(root);
    return links == FAILED || libraries == FAILED || params == FAILED || mps == FAILED;
}
