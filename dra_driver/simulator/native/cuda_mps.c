/* CUDA under MPS: finding a server, its limits, and what it says while the program runs. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cuda_state.h"

/* The next message, while the driver stays the same; 0: there will be none. */
static int wait_for_message(struct mps_message *message)
{
    struct pollfd ready = {.fd = cuda.mps, .events = POLLIN};
    while (poll(&ready, 1, MPS_TICK_MS) <= 0)
        if (sim_epoch(cuda.sim) != cuda.epoch)
            return 0;
    return mps_receive(cuda.mps, message, NULL, 1) > 0;
}

/* From the daemon, or from the server it hands the connection to. */
static CUresult wait_for_welcome(struct mps_message *message)
{
    if (!wait_for_message(message))
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (message->type == MPS_WELCOME)
        return CUDA_SUCCESS;
    return message->type == MPS_REFUSED ? message->code : CUDA_ERROR_MPS_CONNECTION_FAILED;
}

/* Tell the server something and wait until it has noted that. */
static CUresult notify(const struct mps_message *news)
{
    struct mps_message answer;
    if (mps_send(cuda.mps, news, -1) < 0 || !wait_for_message(&answer))
        return CUDA_ERROR_MPS_RPC_FAILURE;
    if (answer.type == MPS_ENDED)
        return answer.code;
    return answer.type == MPS_NOTED ? CUDA_SUCCESS : CUDA_ERROR_MPS_RPC_FAILURE;
}

/* The server shares memory with its clients below /dev/shm: one that has another /dev/shm can't
 * work. The key in the file shows that it is the same. */
static int shares_memory(const struct mps_message *message)
{
    uint64_t key = 0;
    int fd = open(message->text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int same = read(fd, &key, sizeof key) == sizeof key && key == message->id;
    close(fd);
    return same;
}

/* The devices are the server's, in its order, as far as this process may see them. */
static int keep_server_devices(struct cuda_device *all, int count, const struct mps_message *server)
{
    struct cuda_device kept[SIM_MAX_DEVICES];
    int found = 0;
    for (uint32_t number = 0; number < server->count; number++) {
        for (int i = 0; i < count; i++) {
            if (strcasecmp(all[i].is.uuid, server->device[number].uuid) != 0)
                continue;
            kept[found] = all[i];
            kept[found].number = number;
            kept[found++].mps_limit = server->device[number].limit;
        }
    }
    memcpy(all, kept, (size_t)found * sizeof *all);
    return found;
}

/* The program's own wish only lowers what the server gives. */
static void set_threads(uint32_t server)
{
    uint32_t own;
    const char *wanted = getenv(MPS_THREADS_VARIABLE);
    cuda.threads = server;
    if (wanted && mps_read_percentage(wanted, &own) && own < server)
        cuda.threads = own;
}

static void leave(void)
{
    close(cuda.mps);
    cuda.mps = -1;
}

CUresult cuda_mps_attach(struct cuda_device *all, int *count)
{
    struct mps_message message = {.type = MPS_ATTACH};
    cuda.mps = mps_connect(mps_pipe_directory(), "control");
    if (cuda.mps < 0)
        return CUDA_SUCCESS; /* no daemon: the program runs without MPS */
    CUresult result = mps_send(cuda.mps, &message, -1) == 0 ? wait_for_welcome(&message)
                                                            : CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (result == CUDA_SUCCESS && !shares_memory(&message))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = notify(&(struct mps_message){.type = MPS_JOINED});
    if (result != CUDA_SUCCESS) {
        leave();
        return result;
    }
    cuda.mps_server = message.pid;
    cuda.mps_serial = message.serial;
    set_threads(message.threads);
    *count = keep_server_devices(all, *count, &message);
    if (!*count)
        leave();
    return *count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

void cuda_mps_own_limits(void)
{
    char name[SIM_NAME];
    uint64_t bytes = 0;
    int all_found;
    struct sim_device from[SIM_MAX_DEVICES], named[SIM_MAX_DEVICES];
    const char *rest = getenv(MPS_MEMORY_VARIABLE);
    for (int i = 0; i < cuda.count; i++)
        from[i] = cuda.device[i].is;
    while (rest && mps_next_limit(&rest, name, &bytes)) {
        if (!name[0] || sim_devices_pick(from, cuda.count, name, named, &all_found) != 1)
            continue;
        for (int i = 0; i < cuda.count; i++)
            if (strcmp(cuda.device[i].is.uuid, named[0].uuid) == 0)
                cuda.device[i].own_limit = bytes;
    }
}

CUresult cuda_mps_opened(int index)
{
    CUresult result = notify(
        &(struct mps_message){.type = MPS_OPENED, .id = cuda.device[index].number});
    if (result != CUDA_SUCCESS)
        cuda_end(result);
    return result;
}

void cuda_mps_hear(void)
{
    struct mps_message message;
    int got;
    if (cuda.mps < 0)
        return;
    while (!cuda.sticky && (got = mps_receive(cuda.mps, &message, NULL, 0)) >= 0) {
        if (got && message.type != MPS_ENDED)
            continue; /* none other comes unasked */
        cuda_end(got ? message.code : CUDA_ERROR_MPS_RPC_FAILURE);
        if (cuda.sticky == CUDA_ERROR_MPS_CLIENT_TERMINATED)
            mps_send(cuda.mps, &(struct mps_message){.type = MPS_TERMINATED}, -1);
    }
}
