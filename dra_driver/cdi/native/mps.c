/*
 * Programs reach the control daemon of MPS by one folder, so a container can have devices of one
 * daemon only. With devices of two, of two claims say, the runtime mounts the later one's folder
 * over the earlier one's, and programs would silently miss a GPU.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "tmp/nvidia-mps"

/* A mounted folder is the host's own: device and inode say so. */
result_t check_mps(int root, const char *host_folder)
{
    struct stat wanted, found;
    int folder = open_in_root(root, FOLDER, O_PATH | O_DIRECTORY, false);
    bool known = folder >= 0 && fstat(folder, &found) == 0 && stat(host_folder, &wanted) == 0;
    if (!known)
        note("the sockets of MPS in /%s, from %s: %s", FOLDER, host_folder, strerror(errno));
    if (folder >= 0)
        close(folder);
    if (!known)
        return FAILED;
    if (wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino)
        return DONE;
    note("this container has devices of two control daemons of MPS and can reach one only: give "
         "them all one config in one claim, or each container its own claim");
    return FAILED;
}
