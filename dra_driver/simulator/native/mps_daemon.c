/* The MPS control daemon: how it starts, its loop, how it ends. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mps_daemon.h"

#define FIRST_CUDA_WITH_60_CLIENTS 13010
#define CLIENTS_BEFORE 48

struct daemon mps_daemon = {
    .place = -1, .server = {.fd = -1}, .threads = 1000, .quit_at = NEVER};

/* ---- starting ---- */

static void path_of(const char *name, char path[SIM_PATH + 64])
{
    snprintf(path, SIM_PATH + 64, "%s/%s", mps_daemon.pipe, name);
}

/* One daemon for each folder: the lock drops with its holder. */
static int take_folder(void)
{
    char path[SIM_PATH + 64];
    mkdir(mps_daemon.pipe, 0755);
    path_of("control_lock", path);
    mps_daemon.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (mps_daemon.lock_fd < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 0;
    }
    fchmod(mps_daemon.lock_fd, 0666);
    if (sim_byte_lock(mps_daemon.lock_fd, F_WRLCK, 0, 1, 0) == 0)
        return 1;
    puts("An instance of this daemon is already running");
    return 0;
}

static void read_environment(void)
{
    const char *threads = getenv(MPS_THREADS_VARIABLE);
    const char *rest = getenv(MPS_MEMORY_VARIABLE);
    char device[SIM_NAME];
    uint64_t bytes = 0;
    if (threads)
        mps_read_percentage(threads, &mps_daemon.threads);
    while (rest && mps_next_limit(&rest, device, &bytes))
        if (device[0])
            mps_keep_limit(device, bytes);
}

int mps_keep_limit(const char *device, uint64_t bytes)
{
    int at = 0;
    while (at < mps_daemon.limits && strcmp(mps_daemon.limit[at].device, device) != 0)
        at++;
    if (at == SIM_MPS_LIMITS || strlen(device) >= sizeof mps_daemon.limit[0].device)
        return 0;
    if (at == mps_daemon.limits)
        mps_daemon.limits++;
    /* What is set last stands last. */
    memmove(&mps_daemon.limit[at], &mps_daemon.limit[at + 1],
            (size_t)(mps_daemon.limits - 1 - at) * sizeof *mps_daemon.limit);
    at = mps_daemon.limits - 1;
    sim_copy(mps_daemon.limit[at].device, sizeof mps_daemon.limit[at].device, device);
    mps_daemon.limit[at].bytes = bytes;
    return 1;
}

/* Which GPUs it is about, for faults; what a server makes of them shows when one starts. */
static void find_devices(void)
{
    struct sim_device all[SIM_MAX_DEVICES];
    const char *names = getenv("CUDA_VISIBLE_DEVICES");
    int all_found;
    int count = sim_devices(mps_daemon.sim, all);
    if (names) {
        mps_daemon.devices =
            sim_devices_pick(all, count, names, mps_daemon.device, &all_found);
        return;
    }
    memcpy(mps_daemon.device, all, (size_t)count * sizeof *all);
    mps_daemon.devices = count;
}

static int open_state(void)
{
    if (sim_open(NULL, &mps_daemon.sim) != NVML_SUCCESS ||
        sim_lock(mps_daemon.sim, 0) != NVML_SUCCESS)
        return 0;
    const struct sim_core *core = mps_daemon.sim->core;
    mps_daemon.epoch = core->epoch;
    mps_daemon.driver_branch = atoi(core->driver_version);
    mps_daemon.max_clients =
        core->cuda_version >= FIRST_CUDA_WITH_60_CLIENTS ? SIM_MPS_CLIENTS : CLIENTS_BEFORE;
    find_devices();
    sim_unlock(mps_daemon.sim);
    return 1;
}

static int write_pid_file(void)
{
    char path[SIM_PATH + 64];
    path_of("nvidia-cuda-mps-control.pid", path);
    FILE *file = fopen(path, "we");
    if (!file)
        return 0;
    fchmod(fileno(file), 0666);
    fprintf(file, "%d", getpid());
    return fclose(file) == 0;
}

static int open_sockets(void)
{
    mps_daemon.listening[0] = mps_listen(mps_daemon.pipe, "control", 0666);
    mps_daemon.listening[1] = mps_listen(mps_daemon.pipe, "control_privileged", 0755);
    return mps_daemon.listening[0] >= 0 && mps_daemon.listening[1] >= 0 && write_pid_file();
}

/* Let go of who started the daemon. */
static void release_parent(int *ready)
{
    if (*ready < 0)
        return;
    (void)!write(*ready, "", 1);
    close(*ready);
    *ready = -1;
}

/* A fault may make the start slow, or end it: nobody waits for that. */
static int meet_start_fault(int *ready)
{
    uint32_t hang_ms;
    nvmlReturn_t error = sim_mps_fault(mps_daemon.sim, "mps.start", mps_daemon.device,
                                       mps_daemon.devices, &hang_ms);
    if (hang_ms || error != NVML_SUCCESS)
        release_parent(ready);
    sim_rest(hang_ms);
    if (error != NVML_SUCCESS)
        mps_log("Failed to start: %s", nvmlErrorString(error));
    return error == NVML_SUCCESS;
}

/* ---- what others see of it ---- */

static void describe(struct sim_mps *entry)
{
    const struct server *server = &mps_daemon.server;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    memset(entry, 0, sizeof *entry);
    entry->serial = mps_daemon.serial;
    entry->pid = (uint32_t)getpid();
    entry->pid_namespace = sim_pid_namespace();
    entry->multi_user = (uint32_t)mps_daemon.multi_user;
    entry->pending = (uint32_t)mps_count_pending();
    entry->threads = mps_daemon.threads;
    entry->limit_count = (uint32_t)mps_daemon.limits;
    for (int i = 0; i < mps_daemon.limits; i++) {
        memcpy(entry->limit[i].device, mps_daemon.limit[i].device, sizeof entry->limit[i].device);
        entry->limit[i].bytes = mps_daemon.limit[i].bytes;
    }
    if (server->status != MPS_NONE) {
        entry->server_pid = (uint32_t)server->pid;
        entry->server_uid = server->uid;
        entry->server_status = server->status;
        entry->server_threads = server->threads;
    }
    entry->device_count = server->count;
    for (uint32_t i = 0; i < server->count; i++) {
        memcpy(entry->device[i].uuid, server->device[i].uuid, sizeof entry->device[i].uuid);
        entry->device[i].limit = server->device[i].limit;
    }
    entry->client_count = (uint32_t)server->clients;
    for (int i = 0; i < server->clients; i++) {
        entry->client_pid[i] = (uint32_t)server->client[i].pid;
        entry->client_uid[i] = server->client[i].uid;
    }
    sim_copy(entry->visible, sizeof entry->visible, visible ? visible : "");
    sim_copy(entry->pipe, sizeof entry->pipe, mps_daemon.pipe);
    sim_copy(entry->log, sizeof entry->log, mps_daemon.log_folder);
}

static void enter_state(void)
{
    struct sim_mps entry;
    describe(&entry);
    if (sim_mps_enter(mps_daemon.sim, &entry, &mps_daemon.place, &mps_daemon.place_fd) ==
        NVML_SUCCESS)
        mps_daemon.serial = entry.serial;
    else
        mps_daemon.place = -1;
}

void mps_tell_state(void)
{
    static struct sim_mps told;
    struct sim_mps now;
    if (mps_daemon.place < 0)
        return;
    describe(&now);
    if (memcmp(&told, &now, sizeof now) == 0)
        return;
    told = now;
    sim_mps_update(mps_daemon.sim, mps_daemon.place, &now);
}

/* ---- its loop ---- */

/* A reboot or a driver reload ends every process that used the GPUs. */
static void watch_driver(void)
{
    if (sim_epoch(mps_daemon.sim) == mps_daemon.epoch)
        return;
    if (mps_daemon.server.status != MPS_NONE)
        kill(mps_daemon.server.pid, SIGKILL);
    _exit(1);
}

static void meet_crash(void)
{
    uint32_t hang_ms;
    unsigned int wake = atomic_load(&mps_daemon.sim->file->wake);
    if (wake == mps_daemon.wake_seen)
        return;
    mps_daemon.wake_seen = wake;
    if (sim_mps_fault(mps_daemon.sim, "mps.crash", mps_daemon.device, mps_daemon.devices,
                      &hang_ms) != NVML_SUCCESS)
        raise(SIGKILL);
    if (mps_daemon.server.status != MPS_NONE &&
        sim_mps_fault(mps_daemon.sim, "mps.server.crash", mps_daemon.device, mps_daemon.devices,
                      &hang_ms) != NVML_SUCCESS)
        kill(mps_daemon.server.pid, SIGKILL);
}

static void drop_gone_peers(void)
{
    int kept = 0;
    for (int i = 0; i < mps_daemon.peers; i++)
        if (mps_daemon.peer[i].fd >= 0)
            mps_daemon.peer[kept++] = mps_daemon.peer[i];
    mps_daemon.peers = kept;
}

static int next_timeout(void)
{
    int64_t next = mps_now() + MPS_TICK_MS;
    if (mps_daemon.quit_at < next)
        next = mps_daemon.quit_at;
    for (int i = 0; i < mps_daemon.peers; i++)
        if (mps_daemon.peer[i].waiting == FOR_TIME && mps_daemon.peer[i].due < next)
            next = mps_daemon.peer[i].due;
    return next > mps_now() ? (int)(next - mps_now()) : 0;
}

/* Peers that come in one round are heard in the next. */
static void run_round(void)
{
    struct pollfd ready[MAX_PEERS + 3];
    int peers = mps_daemon.peers;
    ready[0] = (struct pollfd){.fd = mps_daemon.listening[0], .events = POLLIN};
    ready[1] = (struct pollfd){.fd = mps_daemon.listening[1], .events = POLLIN};
    ready[2] = (struct pollfd){.fd = mps_daemon.server.fd, .events = POLLIN};
    for (int i = 0; i < peers; i++)
        ready[i + 3] = (struct pollfd){.fd = mps_daemon.peer[i].fd, .events = POLLIN};
    if (poll(ready, (nfds_t)peers + 3, next_timeout()) < 0)
        return;
    if (ready[2].revents)
        mps_hear_server();
    for (int i = 0; i < peers; i++)
        if (ready[i + 3].revents && ready[i + 3].fd == mps_daemon.peer[i].fd)
            mps_hear_peer(&mps_daemon.peer[i]);
    for (int i = 0; i < 2; i++)
        if (ready[i].revents & POLLIN)
            mps_accept(ready[i].fd);
}

static int loop(void)
{
    for (;;) {
        mps_tell_state();
        if (mps_daemon.quitting && mps_daemon.server.status == MPS_NONE)
            return 0;
        run_round();
        watch_driver();
        meet_crash();
        mps_answer_due();
        if (mps_now() >= mps_daemon.quit_at) {
            mps_daemon.quit_at = NEVER;
            mps_stop_server(1);
        }
        drop_gone_peers();
    }
}

/* The lock file stays: who removes it may take the lock from under a daemon that just starts. */
static void leave_folder(void)
{
    static const char *const names[] = {"control", "control_privileged",
                                        "nvidia-cuda-mps-control.pid"};
    char path[SIM_PATH + 64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_of(names[i], path);
        unlink(path);
    }
    mps_log("Exit with status 0");
    /* Before those who wait for the end can know of it. */
    if (mps_daemon.place >= 0)
        close(mps_daemon.place_fd);
    close(mps_daemon.lock_fd);
}

/* ---- becoming one ---- */

static int serve(int ready)
{
    mps_open_logs();
    if (!open_state()) {
        mps_log("Failed to start: %s", sim_error_text());
        return 1;
    }
    mps_daemon.wake_seen = atomic_load(&mps_daemon.sim->file->wake);
    if (!meet_start_fault(&ready))
        return 1;
    read_environment();
    enter_state();
    if (!open_sockets()) {
        mps_log("Failed to start: %s: %s", mps_daemon.pipe, strerror(errno));
        return 1;
    }
    mps_log("Starting control daemon using socket %s/control", mps_daemon.pipe);
    mps_log("To connect CUDA applications to this daemon, set env %s=%s", MPS_PIPE_VARIABLE,
            mps_daemon.pipe);
    release_parent(&ready);
    int code = loop();
    leave_folder();
    return code;
}

/* The parent waits until the daemon answers, unless it is slow to. */
static int wait_for_child(int ready)
{
    char byte;
    if (read(ready, &byte, 1) == 1)
        return 0;
    fputs("Cannot find MPS control daemon process\n", stderr);
    return 1;
}

int mps_daemon_run(int foreground, int multi_user)
{
    int ready[2] = {-1, -1};
    sim_copy(mps_daemon.pipe, sizeof mps_daemon.pipe, mps_pipe_directory());
    mps_daemon.multi_user = multi_user;
    if (!take_folder())
        return 1;
    if (foreground)
        return serve(-1);
    if (pipe2(ready, O_CLOEXEC) < 0)
        return 1;
    pid_t pid = fork();
    if (pid != 0) {
        close(ready[1]);
        return pid > 0 ? wait_for_child(ready[0]) : 1;
    }
    close(ready[0]);
    setsid();
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        dup2(nothing, fd);
    _exit(serve(ready[1]));
}
