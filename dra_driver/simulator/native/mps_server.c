/*
 * nvidia-cuda-mps-server of the simulated node. The control daemon starts it, as the user whose
 * programs it serves; it owns the GPUs (which EXCLUSIVE_PROCESS allows to one process), takes over
 * the programs' connections and gives each its limits. Without its daemon it serves on as long as it
 * has clients.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cuda_state.h"

#define CONTEXT_BYTES ((uint64_t)30 << 20) /* what a server itself takes of each GPU */
#define FIRST_MAJOR 7                      /* Volta */

struct client {
    int fd;
    uint32_t pid;
    uint64_t id;
    uint64_t opened; /* bit N: has a context on device N */
    int is_dead;     /* was told that its contexts have ended */
    char shared[96]; /* file of the memory shared with it; empty: removed */
};

static struct {
    sim_t *sim;
    uint64_t epoch;
    uint64_t serial; /* of the daemon */
    int daemon;      /* -1: it is gone */
    int leaving;
    int is_faulted;
    int devices;
    struct sim_device device[SIM_MAX_DEVICES];
    struct sim_context context[SIM_MPS_DEVICES];
    int clients;
    struct client client[SIM_MPS_CLIENTS];
} server = {.daemon = MPS_SERVER_SOCKET};

/* Waits for a daemon that has yet to read what came before: a client whose end it never hears of
 * would stay in its list. It hangs up when it ends, and never waits for the server. */
static void tell(const struct mps_message *message)
{
    struct pollfd room = {.fd = server.daemon, .events = POLLOUT};
    while (server.daemon >= 0 && mps_send(server.daemon, message, -1) < 0 && errno == EAGAIN)
        poll(&room, 1, -1);
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    struct mps_message message = {.type = MPS_LOG};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message.text, sizeof message.text, format, arguments);
    va_end(arguments);
    tell(&message);
}

/* ---- starting ---- */

static int fail(const char *why)
{
    say("MPS server failed to start");
    say("%s", why);
    tell(&(struct mps_message){.type = MPS_FAILED});
    return 0;
}

/* Devices before Volta are left out where there is a later one. */
static int drop_old_devices(void)
{
    int kept = 0;
    for (int i = 0; i < server.devices; i++)
        if (server.device[i].compute_major >= FIRST_MAJOR)
            server.device[kept++] = server.device[i];
    server.devices = kept;
    return kept > 0;
}

static int find_devices(void)
{
    struct sim_device all[SIM_MAX_DEVICES];
    const char *names = getenv("CUDA_VISIBLE_DEVICES");
    int all_found = 1;
    if (sim_lock(server.sim, 0) != NVML_SUCCESS)
        return fail(sim_error_text());
    server.epoch = server.sim->core->epoch;
    server.devices = sim_devices(server.sim, all);
    memcpy(server.device, all, sizeof all);
    if (names)
        server.devices = sim_devices_pick(all, server.devices, names, server.device, &all_found);
    sim_unlock(server.sim);
    if (!all_found)
        return fail("Invalid CUDA_VISIBLE_DEVICES");
    if (server.devices == 0)
        return fail("No CUDA-capable device is detected");
    if (!drop_old_devices())
        return fail("MPS is only supported with an SM 7.0 or higher GPU");
    return server.devices <= SIM_MPS_DEVICES || fail("Too many devices");
}

/* Under the locks. The message names what EXCLUSIVE_PROCESS or PROHIBITED refused. */
static int take_device(int index)
{
    const struct sim_device *device = &server.device[index];
    struct sim_context *context = &server.context[index];
    *context = (struct sim_context){.incarnation = device->incarnation,
                                    .memory = CONTEXT_BYTES,
                                    .kind = SIM_CONTEXT_MPS_SERVER,
                                    .gi = device->gi,
                                    .ci = device->ci,
                                    .mps = server.serial,
                                    .fd = -1};
    if (!sim_device_admits(server.sim, device)) {
        say("Failed to create a context on device %d: %s is in use or prohibited", index,
            device->uuid);
        return 0;
    }
    return sim_device_free(server.sim, device) >= CONTEXT_BYTES &&
           sim_context_open(server.sim, context) == NVML_SUCCESS;
}

static int take_devices(void)
{
    int taken = 1;
    if (sim_lock(server.sim, 0) != NVML_SUCCESS)
        return fail(sim_error_text());
    if (sim_contexts_lock(server.sim) != NVML_SUCCESS)
        taken = 0;
    for (int i = 0; taken && i < server.devices; i++) {
        say("Volta MPS: Creating server context on device %d", i);
        taken = take_device(i);
    }
    sim_contexts_unlock(server.sim);
    sim_unlock(server.sim);
    return taken || fail("CUDA error 46 when creating the server's contexts");
}

static int meet_fault(void)
{
    uint32_t hang_ms;
    nvmlReturn_t error =
        sim_mps_fault(server.sim, "mps.server", server.device, server.devices, &hang_ms);
    sim_rest(hang_ms);
    return error == NVML_SUCCESS || fail(nvmlErrorString(error));
}

static int start(void)
{
    struct mps_message message, ready = {.type = MPS_READY};
    if (mps_receive(server.daemon, &message, NULL, 1) != 1 || message.type != MPS_START)
        return 0;
    server.serial = message.serial;
    say("Start");
    if (sim_open(NULL, &server.sim) != NVML_SUCCESS)
        return fail(sim_error_text());
    if (!find_devices() || !meet_fault())
        return 0;
    for (int i = 0; i < server.devices; i++)
        sim_device_hold(server.sim, &server.device[i]);
    if (!take_devices())
        return 0;
    ready.count = (uint32_t)server.devices;
    for (int i = 0; i < server.devices; i++)
        sim_copy(ready.device[i].uuid, sizeof ready.device[i].uuid, server.device[i].uuid);
    say("MPS Server is started");
    tell(&ready);
    return 1;
}

/* ---- clients ---- */

static void remove_shared(struct client *client)
{
    if (client->shared[0])
        unlink(client->shared);
    client->shared[0] = '\0';
}

/* A segment below /dev/shm, where the client must see it too. The clients of a server for all users
 * are of any user. */
static int share_memory(struct client *client, uint64_t *key)
{
    const char *folder = getenv("SIM_MPS_SHM");
    snprintf(client->shared, sizeof client->shared, "%s/cuda.shm.%x.%x.%llx",
             folder ? folder : "/dev/shm", geteuid(), getpid(), (unsigned long long)client->id);
    if (getrandom(key, sizeof *key, 0) != sizeof *key)
        return 0;
    int fd = open(client->shared, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return 0;
    int written = write(fd, key, sizeof *key) == sizeof *key;
    close(fd);
    return written;
}

static void drop_client(struct client *client)
{
    close(client->fd);
    client->fd = -1;
    remove_shared(client);
    say("Client {PID: %u, Context ID: %llu} exit", client->pid, (unsigned long long)client->id);
    tell(&(struct mps_message){.type = MPS_GONE, .id = client->id});
}

static void adopt(struct mps_message *message, int fd)
{
    struct client *client = &server.client[server.clients];
    if (server.clients == SIM_MPS_CLIENTS) {
        close(fd);
        return;
    }
    *client = (struct client){.fd = fd, .pid = message->pid, .id = message->id};
    say("Volta MPS Server: Received new client request");
    message->type = MPS_WELCOME;
    message->pid = (uint32_t)getpid();
    if (!share_memory(client, &message->id)) {
        say("MPS Server failed to create/open SHM segment.");
        message->type = MPS_REFUSED;
        message->code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_copy(message->text, sizeof message->text, client->shared);
    mps_send(fd, message, -1);
    server.clients++;
    if (message->type == MPS_REFUSED)
        drop_client(client);
}

static void end_client(struct client *client, CUresult error)
{
    client->is_dead = 1;
    say("Volta MPS: status of client {%u, %llu} is INACTIVE", client->pid,
        (unsigned long long)client->id);
    mps_send(client->fd, &(struct mps_message){.type = MPS_ENDED, .code = error}, -1);
}

/* A fatal fault ends all clients that have a context on one of the same GPUs. */
static void contain_fault(const struct client *faulty)
{
    uint64_t devices = faulty->opened;
    say("Volta MPS: Server is handling a fatal GPU error.");
    for (int i = 0; i < server.clients; i++)
        if (server.client[i].opened & devices)
            end_client(&server.client[i], CUDA_ERROR_LAUNCH_FAILED);
    server.is_faulted = 1;
    tell(&(struct mps_message){.type = MPS_STATUS, .code = MPS_FAULT});
}

/* Once all that the fault ended are gone, new clients are welcome again. */
static void recover(void)
{
    for (int i = 0; i < server.clients; i++)
        if (server.client[i].is_dead)
            return;
    if (!server.is_faulted)
        return;
    server.is_faulted = 0;
    tell(&(struct mps_message){.type = MPS_STATUS, .code = MPS_ACTIVE});
}

static void note_context(struct client *client, uint64_t device)
{
    if (device >= (uint64_t)server.devices)
        return;
    client->opened |= (uint64_t)1 << device;
    say("Volta MPS: Device %s (uuid %s) is associated", server.device[device].name,
        server.device[device].uuid);
    say("Volta MPS: status of client {%u, %llu} is ACTIVE", client->pid,
        (unsigned long long)client->id);
    tell(&(struct mps_message){.type = MPS_CONTEXT, .serial = client->id, .id = device});
}

static void hear_client(struct client *client)
{
    static const struct mps_message noted = {.type = MPS_NOTED};
    struct mps_message message;
    int got = mps_receive(client->fd, &message, NULL, 0);
    if (got < 0)
        return;
    if (!got) {
        drop_client(client);
        return;
    }
    switch (message.type) {
    case MPS_JOINED:
        remove_shared(client);
        say("Client {PID: %u, Context ID: %llu} connected", client->pid,
            (unsigned long long)client->id);
        mps_send(client->fd, &noted, -1);
        break;
    case MPS_OPENED:
        note_context(client, message.id);
        mps_send(client->fd, &noted, -1);
        break;
    case MPS_FAULTED:
        contain_fault(client);
        break;
    case MPS_TERMINATED:
        tell(&(struct mps_message){.type = MPS_DONE});
        break;
    default:
        break;
    }
}

/* ---- the daemon ---- */

static void terminate(uint32_t pid)
{
    for (int i = 0; i < server.clients; i++) {
        if (server.client[i].pid != pid)
            continue;
        end_client(&server.client[i], CUDA_ERROR_MPS_CLIENT_TERMINATED);
        server.client[i].is_dead = 0; /* it alone has ended; others come and go as before */
        return;
    }
    tell(&(struct mps_message){.type = MPS_DONE, .code = CUDA_ERROR_INVALID_VALUE});
}

static void hear_daemon(void)
{
    struct mps_message message;
    int fd, got = mps_receive(server.daemon, &message, &fd, 0);
    if (got < 0)
        return;
    if (!got) {
        close(server.daemon);
        server.daemon = -1;
        server.leaving = 1;
        return;
    }
    if (message.type == MPS_ADOPT && fd >= 0) {
        adopt(&message, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (message.type == MPS_END)
        terminate(message.pid);
    if (message.type == MPS_SHUTDOWN) {
        say("Server has been notified to shutdown");
        server.leaving = 1;
        for (int i = 0; message.code && i < server.clients; i++)
            drop_client(&server.client[i]);
    }
}

/* A reboot, a driver reload or a reset takes the GPUs from under the server. */
static int driver_is_gone(void)
{
    int gone = 0;
    if (sim_epoch(server.sim) != server.epoch || sim_lock(server.sim, 0) != NVML_SUCCESS)
        return 1;
    for (int i = 0; i < server.devices; i++)
        gone |= !sim_device_gpu(server.sim, &server.device[i]);
    sim_unlock(server.sim);
    return gone;
}

static void forget_gone(void)
{
    int kept = 0;
    for (int i = 0; i < server.clients; i++)
        if (server.client[i].fd >= 0)
            server.client[kept++] = server.client[i];
    server.clients = kept;
}

static void run_round(void)
{
    struct pollfd ready[SIM_MPS_CLIENTS + 1];
    int clients = server.clients;
    ready[0] = (struct pollfd){.fd = server.daemon, .events = POLLIN};
    for (int i = 0; i < clients; i++)
        ready[i + 1] = (struct pollfd){.fd = server.client[i].fd, .events = POLLIN};
    if (poll(ready, (nfds_t)clients + 1, MPS_TICK_MS) < 0)
        return;
    for (int i = 0; i < clients; i++)
        if (ready[i + 1].revents)
            hear_client(&server.client[i]);
    if (ready[0].revents)
        hear_daemon();
    forget_gone();
    recover();
}

int main(void)
{
    if (fcntl(MPS_SERVER_SOCKET, F_GETFD) < 0) {
        fputs("nvidia-cuda-mps-server is started by nvidia-cuda-mps-control only\n", stderr);
        return 1;
    }
    fcntl(MPS_SERVER_SOCKET, F_SETFD, FD_CLOEXEC);
    if (!start())
        return 1;
    while (!(server.leaving && server.clients == 0) && !driver_is_gone())
        run_round();
    int code = server.clients > 0;
    while (server.clients)
        remove_shared(&server.client[--server.clients]);
    say("Exiting");
    return code;
}
