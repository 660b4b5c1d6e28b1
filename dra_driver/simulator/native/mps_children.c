/* The MPS server as its control daemon sees it: a child process that owns the GPUs. */
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_state.h"
#include "mps_daemon.h"

#define SERVER_PROGRAM "nvidia-cuda-mps-server"
#define FIRST_BRANCH_WITH_UUIDS 555 /* before, memory limits were by position only */

uid_t mps_owner(uid_t user)
{
    return mps_daemon.multi_user ? geteuid() : user;
}

/* ---- starting ---- */

/* Beside the daemon's own program. */
static int server_path(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - sizeof SERVER_PROGRAM);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, SERVER_PROGRAM);
    return 1;
}

/* In the child: become the user, keep only the socket, become the server. */
static void become_server(int socket, const char *path, uid_t uid, gid_t gid)
{
    char *arguments[] = {SERVER_PROGRAM, NULL};
    if (uid != geteuid() && (setgroups(0, NULL) < 0 || setgid(gid) < 0 || setuid(uid) < 0))
        _exit(1);
    if (dup2(socket, MPS_SERVER_SOCKET) < 0 || fcntl(MPS_SERVER_SOCKET, F_SETFD, 0) < 0)
        _exit(1);
    execv(path, arguments);
    _exit(1);
}

int mps_start_server(uid_t uid, gid_t gid)
{
    struct server *server = &mps_daemon.server;
    struct mps_message start = {.type = MPS_START, .serial = mps_daemon.serial};
    char path[PATH_MAX];
    int pair[2];
    if (uid != geteuid() && geteuid() != 0) {
        mps_log("Only root can start a server for user %u", uid);
        return 0;
    }
    if (!server_path(path) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    pid_t pid = fork();
    if (pid == 0)
        become_server(pair[1], path, uid, gid);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return 0;
    }
    memset(server, 0, sizeof *server);
    server->status = MPS_INITIALIZING;
    server->pid = pid;
    server->fd = pair[0];
    server->uid = uid;
    server->threads = mps_daemon.threads;
    mps_log("Starting new server %d for user %u", pid, uid);
    mps_send(server->fd, &start, -1);
    return 1;
}

void mps_stop_server(int at_once)
{
    struct server *server = &mps_daemon.server;
    if (server->status == MPS_NONE)
        return;
    if (server->status != MPS_LEAVING)
        mps_log("Server %d is asked to leave, %d clients", server->pid, server->clients);
    server->status = MPS_LEAVING;
    mps_send(server->fd, &(struct mps_message){.type = MPS_SHUTDOWN, .code = at_once}, -1);
}

/* ---- its devices and clients ---- */

static int is_device(uint32_t index, const char *device)
{
    char *end;
    unsigned long number = strtoul(device, &end, 10);
    if (*device && !*end)
        return number == index;
    return mps_daemon.driver_branch >= FIRST_BRANCH_WITH_UUIDS && strlen(device) > 4 &&
           strncasecmp(mps_daemon.server.device[index].uuid, device, strlen(device)) == 0;
}

int mps_server_device(const char *device)
{
    for (uint32_t i = 0; i < mps_daemon.server.count; i++)
        if (is_device(i, device))
            return (int)i;
    return -1;
}

/* Of all defaults that name a device, by position or UUID, the one set last holds. */
static void take_default_limits(void)
{
    for (int i = 0; i < mps_daemon.limits; i++) {
        int at = mps_server_device(mps_daemon.limit[i].device);
        if (at >= 0)
            mps_daemon.server.device[at].limit = mps_daemon.limit[i].bytes;
    }
}

struct client *mps_find_client(pid_t pid)
{
    struct server *server = &mps_daemon.server;
    for (int i = 0; i < server->clients; i++)
        if (server->client[i].pid == pid)
            return &server->client[i];
    return NULL;
}

void mps_adopt(const struct peer *peer)
{
    struct server *server = &mps_daemon.server;
    struct mps_message adopt = {
        .type = MPS_ADOPT,
        .pid = (uint32_t)peer->pid,
        .uid = peer->uid,
        .id = server->next_id++,
        .serial = mps_daemon.serial,
        .threads = server->threads,
        .count = server->count,
    };
    memcpy(adopt.device, server->device, server->count * sizeof *server->device);
    server->client[server->clients++] =
        (struct client){.pid = peer->pid, .uid = peer->uid, .id = adopt.id};
    mps_tell_state();
    if (mps_send(server->fd, &adopt, peer->fd) < 0)
        server->clients--;
}

static void forget_client(uint64_t id)
{
    struct server *server = &mps_daemon.server;
    for (int i = 0; i < server->clients; i++) {
        if (server->client[i].id != id)
            continue;
        server->client[i] = server->client[--server->clients];
        return;
    }
}

static void note_context(const struct mps_message *message)
{
    for (int i = 0; i < mps_daemon.server.clients; i++)
        if (mps_daemon.server.client[i].id == message->serial && message->id < SIM_MPS_DEVICES)
            mps_daemon.server.client[i].opened |= (uint64_t)1 << message->id;
}

/* ---- what it says ---- */

static void become_ready(const struct mps_message *message)
{
    struct server *server = &mps_daemon.server;
    server->count = message->count;
    memcpy(server->device, message->device, message->count * sizeof *server->device);
    take_default_limits();
    if (server->status == MPS_INITIALIZING)
        server->status = MPS_ACTIVE;
    mps_log("NEW SERVER %d: Ready", server->pid);
    mps_answer_waiting(FOR_START, NULL);
    mps_serve_pending();
}

/* It exited or was killed. Programs that waited for this very server have waited in vain. */
static void bury(void)
{
    struct server gone = mps_daemon.server;
    int status = 0;
    char line[128];
    close(gone.fd);
    mps_daemon.server = (struct server){.fd = -1};
    waitpid(gone.pid, &status, 0);
    int code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    mps_log("Server %d exited with status %d", gone.pid, code);
    if (gone.status == MPS_INITIALIZING) {
        snprintf(line, sizeof line, "Failed to start a server for user %u, see server.log", gone.uid);
        mps_answer_waiting(FOR_START, line);
        mps_refuse_pending(gone.uid, CUDA_ERROR_MPS_CONNECTION_FAILED);
    }
    snprintf(line, sizeof line, "%d", CUDA_ERROR_UNKNOWN);
    mps_answer_waiting(FOR_TERMINATION, line);
    mps_serve_pending();
}

static void take_message(const struct mps_message *message)
{
    struct server *server = &mps_daemon.server;
    char line[32];
    switch (message->type) {
    case MPS_READY:
        become_ready(message);
        break;
    case MPS_STATUS:
        if (server->status != MPS_LEAVING)
            server->status = message->code;
        break;
    case MPS_CONTEXT:
        note_context(message);
        break;
    case MPS_GONE:
        forget_client(message->id);
        break;
    case MPS_DONE:
        snprintf(line, sizeof line, "%d", message->code);
        mps_answer_waiting(FOR_TERMINATION, line);
        break;
    case MPS_LOG:
        mps_log_server(server->pid, message->text);
        break;
    default:
        break;
    }
}

/* All that it has said by now: what people ask next is answered from that. */
void mps_hear_server(void)
{
    struct mps_message message;
    pid_t pid = mps_daemon.server.pid;
    int got;
    while (mps_daemon.server.pid == pid &&
           (got = mps_receive(mps_daemon.server.fd, &message, NULL, 0)) >= 0) {
        if (!got)
            bury();
        else
            take_message(&message);
    }
}
