/* Who is connected to the MPS control daemon: CUDA programs that want a server, and people. */
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cuda_state.h"
#include "mps_daemon.h"

static void drop(struct peer *peer)
{
    if (peer->is_ui)
        mps_log("UI closed");
    close(peer->fd);
    peer->fd = -1;
}

void mps_accept(int listening)
{
    struct ucred who;
    socklen_t size = sizeof who;
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    mps_log("Accepting connection...");
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 ||
        mps_daemon.peers == MAX_PEERS) {
        close(fd);
        return;
    }
    mps_daemon.peer[mps_daemon.peers++] =
        (struct peer){.fd = fd, .pid = who.pid, .uid = who.uid, .gid = who.gid};
}

/* ---- people ---- */

void mps_answer(struct peer *peer, const char *format, ...)
{
    struct mps_message message = {.type = MPS_ANSWER};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message.text, sizeof message.text, format, arguments);
    va_end(arguments);
    mps_log("%s", message.text);
    mps_send(peer->fd, &message, -1);
}

void mps_answered(struct peer *peer)
{
    peer->waiting = FOR_WORDS;
    mps_tell_state();
    mps_send(peer->fd, &(struct mps_message){.type = MPS_ANSWERED}, -1);
}

void mps_answer_waiting(enum waiting waiting, const char *line)
{
    for (int i = 0; i < mps_daemon.peers; i++) {
        struct peer *peer = &mps_daemon.peer[i];
        if (peer->fd < 0 || peer->waiting != waiting)
            continue;
        if (line)
            mps_answer(peer, "%s", line);
        mps_answered(peer);
    }
}

/* ---- CUDA programs ---- */

static void refuse(struct peer *peer, int error)
{
    mps_send(peer->fd, &(struct mps_message){.type = MPS_REFUSED, .code = error}, -1);
    drop(peer);
}

static void wait_for_server(struct peer *peer)
{
    if (peer->waiting != FOR_SERVER)
        mps_log("NEW CLIENT %d from user %u: Server is not ready, push client to pending list",
                peer->pid, peer->uid);
    peer->waiting = FOR_SERVER;
}

static void attach(struct peer *peer)
{
    struct server *server = &mps_daemon.server;
    uid_t owner = mps_owner(peer->uid);
    if (mps_daemon.quitting) {
        refuse(peer, CUDA_ERROR_MPS_CONNECTION_FAILED);
    } else if (server->status == MPS_NONE) {
        wait_for_server(peer);
        if (!mps_start_server(owner, peer->gid))
            refuse(peer, CUDA_ERROR_MPS_CONNECTION_FAILED);
    } else if (server->status == MPS_INITIALIZING || server->status == MPS_LEAVING) {
        wait_for_server(peer);
    } else if (server->uid != owner) {
        wait_for_server(peer);
        mps_stop_server(0);
    } else if (server->status == MPS_FAULT) {
        refuse(peer, CUDA_ERROR_MPS_SERVER_NOT_READY);
    } else if (server->clients >= mps_daemon.max_clients) {
        mps_log("NEW CLIENT %d from user %u: too many clients", peer->pid, peer->uid);
        refuse(peer, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    } else {
        if (peer->waiting != FOR_SERVER)
            mps_log("NEW CLIENT %d from user %u: Server already exists", peer->pid, peer->uid);
        mps_adopt(peer);
        close(peer->fd); /* the server has it now */
        peer->fd = -1;
    }
}

/* An injected fault may refuse the program or keep it waiting. Gives whether it did. */
static int meet_fault(struct peer *peer)
{
    uint32_t hang_ms;
    nvmlReturn_t error = sim_mps_fault(mps_daemon.sim, "mps.attach", mps_daemon.device,
                                       mps_daemon.devices, &hang_ms);
    if (!hang_ms && error != NVML_SUCCESS)
        refuse(peer, CUDA_ERROR_MPS_SERVER_NOT_READY);
    if (!hang_ms)
        return error != NVML_SUCCESS;
    peer->waiting = FOR_TIME;
    peer->due = hang_ms == SILENT_MS ? NEVER : mps_now() + hang_ms;
    peer->message = (struct mps_message){
        .type = error == NVML_SUCCESS ? MPS_ATTACH : MPS_REFUSED,
        .code = CUDA_ERROR_MPS_SERVER_NOT_READY};
    return 1;
}

void mps_serve_pending(void)
{
    for (int i = 0; i < mps_daemon.peers; i++)
        if (mps_daemon.peer[i].fd >= 0 && mps_daemon.peer[i].waiting == FOR_SERVER)
            attach(&mps_daemon.peer[i]);
}

void mps_refuse_pending(uid_t owner, int error)
{
    for (int i = 0; i < mps_daemon.peers; i++) {
        struct peer *peer = &mps_daemon.peer[i];
        if (peer->fd >= 0 && peer->waiting == FOR_SERVER && mps_owner(peer->uid) == owner)
            refuse(peer, error);
    }
}

int mps_count_pending(void)
{
    int count = 0;
    for (int i = 0; i < mps_daemon.peers; i++)
        count += mps_daemon.peer[i].fd >= 0 && mps_daemon.peer[i].waiting == FOR_SERVER;
    return count;
}

/* ---- both ---- */

static void take_command(struct peer *peer, struct mps_message *message)
{
    uint32_t hang_ms;
    char action[SIM_NAME], line[MPS_TEXT];
    if (!peer->is_ui)
        mps_log("NEW UI");
    peer->is_ui = 1;
    sim_copy(line, sizeof line, message->text);
    mps_log("Cmd:%s", line);
    snprintf(action, sizeof action, "mps.command.%.*s", (int)strcspn(line, " \t"), line);
    nvmlReturn_t error = sim_mps_fault(mps_daemon.sim, action, mps_daemon.device,
                                       mps_daemon.devices, &hang_ms);
    if (error != NVML_SUCCESS)
        snprintf(message->text, sizeof message->text, "%s failed: %s", action + 12,
                 nvmlErrorString(error));
    if (hang_ms) {
        peer->waiting = FOR_TIME;
        peer->due = hang_ms == SILENT_MS ? NEVER : mps_now() + hang_ms;
        peer->message = *message;
        peer->message.type = error == NVML_SUCCESS ? MPS_COMMAND : MPS_ANSWER;
    } else if (error != NVML_SUCCESS) {
        mps_answer(peer, "%s", message->text);
        mps_answered(peer);
    } else {
        mps_perform(peer, line);
    }
}

void mps_hear_peer(struct peer *peer)
{
    struct mps_message message;
    int got = mps_receive(peer->fd, &message, NULL, 0);
    if (got < 0)
        return;
    if (!got)
        drop(peer);
    else if (message.type == MPS_COMMAND)
        take_command(peer, &message);
    else if (message.type == MPS_ATTACH && !meet_fault(peer))
        attach(peer);
    else if (message.type != MPS_ATTACH)
        mps_log("Unable to read new connection type information");
}

void mps_answer_due(void)
{
    for (int i = 0; i < mps_daemon.peers; i++) {
        struct peer *peer = &mps_daemon.peer[i];
        if (peer->fd < 0 || peer->waiting != FOR_TIME || peer->due > mps_now())
            continue;
        peer->waiting = FOR_WORDS;
        if (peer->message.type == MPS_COMMAND) {
            mps_perform(peer, peer->message.text);
        } else if (peer->message.type == MPS_ATTACH) {
            attach(peer);
        } else if (peer->message.type == MPS_REFUSED) {
            refuse(peer, peer->message.code);
        } else {
            mps_answer(peer, "%s", peer->message.text);
            mps_answered(peer);
        }
    }
}
