/* Sockets of MPS: packets in order, with the sender's user id known to the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

const char *mps_pipe_directory(void)
{
    const char *given = getenv(MPS_PIPE_VARIABLE);
    return given && *given ? given : MPS_DEFAULT_PIPE;
}

static int address_of(const char *pipe, const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", pipe, name);
    if (length > 0 && (size_t)length < sizeof address->sun_path)
        return 1;
    errno = ENAMETOOLONG;
    return 0;
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

int mps_connect(const char *pipe, const char *name)
{
    struct sockaddr_un address;
    if (!address_of(pipe, name, &address))
        return -1;
    int fd = new_socket();
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

int mps_listen(const char *pipe, const char *name, unsigned int mode)
{
    struct sockaddr_un address;
    if (!address_of(pipe, name, &address))
        return -1;
    int fd = new_socket();
    unlink(address.sun_path); /* of a daemon that was killed: the lock says that none lives */
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        chmod(address.sun_path, mode) == 0 && listen(fd, 128) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static size_t size_of(const struct mps_message *message)
{
    return offsetof(struct mps_message, device) + message->count * sizeof message->device[0];
}

int mps_send(int socket, const struct mps_message *message, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)message, size_of(message)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;
    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof control.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    do
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)part.iov_len ? 0 : -1;
}

/* The descriptor that came with a message; one that nobody asked for is closed. */
static void take_rights(struct msghdr *header, int *fd)
{
    int given = -1;
    struct cmsghdr *rights = CMSG_FIRSTHDR(header);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
        memcpy(&given, CMSG_DATA(rights), sizeof given);
    if (fd)
        *fd = given;
    else if (given >= 0)
        close(given);
}

int mps_receive(int socket, struct mps_message *message, int *fd, int wait)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    ssize_t got;
    if (fd)
        *fd = -1;
    do
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
    take_rights(&header, fd);
    /* Whoever sends something else is none of us. */
    if (got < (ssize_t)offsetof(struct mps_message, device) ||
        message->count > SIM_MPS_DEVICES || got != (ssize_t)size_of(message))
        return 0;
    message->text[sizeof message->text - 1] = '\0';
    for (uint32_t i = 0; i < message->count; i++)
        message->device[i].uuid[sizeof message->device[i].uuid - 1] = '\0';
    return 1;
}
