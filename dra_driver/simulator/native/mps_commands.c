/* The commands of nvidia-cuda-mps-control, as NVIDIA's documentation of MPS describes them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mps_daemon.h"

#define MAX_WORDS 8

/* A command that has more to wait for sets peer->waiting; else its answer ends when it returns. */
typedef void (*handler_t)(struct peer *peer, int count, char **words);

static const char *const statuses[] = {"", "INITIALIZING", "ACTIVE", "FAULT", "ACTIVE"};

static int read_number(const char *text, unsigned long *number)
{
    char *end;
    *number = strtoul(text, &end, 10);
    return isdigit((unsigned char)text[0]) && !*end && *number <= INT32_MAX;
}

/* The server of this pid, or an answer that there is none. */
static struct server *find_server(struct peer *peer, const char *pid)
{
    struct server *server = &mps_daemon.server;
    unsigned long number;
    if (read_number(pid, &number) && server->status != MPS_NONE && server->pid == (pid_t)number)
        return server;
    mps_answer(peer, "Server %s not found", pid);
    return NULL;
}

static void answer_percentage(struct peer *peer, uint32_t tenths)
{
    mps_answer(peer, "%u.%u", tenths / 10, tenths % 10);
}

static void answer_amount(struct peer *peer, uint64_t bytes)
{
    char text[32];
    mps_print_amount(bytes, text, sizeof text);
    mps_answer(peer, "%s", text);
}

static int read_percentage(struct peer *peer, const char *text, uint32_t *tenths)
{
    if (mps_read_percentage(text, tenths))
        return 1;
    mps_answer(peer, "Invalid active thread percentage %s", text);
    return 0;
}

static int read_limit(struct peer *peer, const char *text, uint64_t *bytes)
{
    if (mps_read_amount(text, bytes))
        return 1;
    mps_answer(peer, "Invalid device pinned memory limit %s", text);
    return 0;
}

/* ---- servers ---- */

static void get_server_list(struct peer *peer, int count, char **words)
{
    (void)count;
    (void)words;
    if (mps_daemon.server.status != MPS_NONE)
        mps_answer(peer, "%d", mps_daemon.server.pid);
}

static void get_server_status(struct peer *peer, int count, char **words)
{
    (void)count;
    const struct server *server = find_server(peer, words[1]);
    if (server)
        mps_answer(peer, "%s", statuses[server->status]);
}

static void start_server(struct peer *peer, int count, char **words)
{
    unsigned long uid;
    (void)count;
    if (strcmp(words[1], "-uid") != 0 || !read_number(words[2], &uid))
        mps_answer(peer, "Usage: start_server -uid <user id>");
    else if (mps_daemon.server.status != MPS_NONE)
        mps_answer(peer, "Server %d of user %u is there already", mps_daemon.server.pid,
                   mps_daemon.server.uid);
    else if (!mps_start_server(mps_owner((uid_t)uid), (gid_t)uid))
        mps_answer(peer, "Failed to start a server for user %lu", uid);
    else
        peer->waiting = FOR_START;
}

static void shutdown_server(struct peer *peer, int count, char **words)
{
    int force = count == 3 && strcmp(words[2], "-f") == 0;
    if (count == 3 && !force)
        mps_answer(peer, "Usage: shutdown_server <PID> [-f]");
    else if (find_server(peer, words[1]))
        mps_stop_server(force);
}

static void quit(struct peer *peer, int count, char **words)
{
    unsigned long seconds = 0;
    if (count == 2 || (count == 3 && (strcmp(words[1], "-t") != 0 ||
                                      !read_number(words[2], &seconds)))) {
        mps_answer(peer, "Usage: quit [-t <timeout>]");
        return;
    }
    mps_daemon.quitting = 1;
    if (count == 3)
        mps_daemon.quit_at = mps_now() + (int64_t)seconds * 1000;
    peer->waiting = FOR_NOTHING;
    mps_stop_server(0);
    mps_serve_pending();
}

/* ---- clients ---- */

static void get_client_list(struct peer *peer, int count, char **words)
{
    (void)count;
    const struct server *server = find_server(peer, words[1]);
    for (int i = 0; server && i < server->clients; i++)
        mps_answer(peer, "%d", server->client[i].pid);
}

static void get_device_client_list(struct peer *peer, int count, char **words)
{
    const struct server *server = &mps_daemon.server;
    if (count == 2 && !find_server(peer, words[1]))
        return;
    for (uint32_t device = 0; device < server->count; device++) {
        char line[MPS_TEXT];
        int length = snprintf(line, sizeof line, "%u", device);
        for (int i = 0; i < server->clients; i++)
            if (server->client[i].opened >> device & 1 && length < (int)sizeof line - 12)
                length += snprintf(line + length, sizeof line - (size_t)length, " %d",
                                   server->client[i].pid);
        mps_answer(peer, "%s", line);
    }
}

static void read_command_line(pid_t pid, char *text, size_t size)
{
    char path[64];
    size_t length = 0;
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *stream = fopen(path, "re");
    if (stream) {
        length = fread(text, 1, size - 1, stream);
        fclose(stream);
    }
    for (size_t i = 0; i + 1 < length; i++)
        if (!text[i] || text[i] == '\n')
            text[i] = ' ';
    text[length] = '\0';
}

/* GPU-cb1213a3-d6a4-be7f: the first three parts. */
static int short_uuid(const char *uuid)
{
    const char *end = uuid;
    for (int dashes = 0; *end && (dashes += *end == '-') < 4;)
        end++;
    return (int)(end - uuid);
}

static void answer_client(struct peer *peer, const struct client *client, uint32_t device)
{
    char path[64], namespace[64] = "", command[256];
    const char *uuid = mps_daemon.server.device[device].uuid;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", client->pid);
    ssize_t length = readlink(path, namespace, sizeof namespace - 1); /* pid:[4026531836] */
    namespace[length > 0 ? length - 1 : 0] = '\0';
    read_command_line(client->pid, command, sizeof command);
    mps_answer(peer, "%d %llu %d %.*s %s %s", client->pid, (unsigned long long)client->id,
               mps_daemon.server.pid, short_uuid(uuid), uuid,
               length > 5 ? namespace + strlen("pid:[") : "0", command);
}

static void ps(struct peer *peer, int count, char **words)
{
    const struct server *server = &mps_daemon.server;
    if (count == 2 || (count == 3 && strcmp(words[1], "-p") != 0)) {
        mps_answer(peer, "Usage: ps [-p <PID>]");
        return;
    }
    if (count == 3 && !find_server(peer, words[2]))
        return;
    mps_answer(peer, "PID ID SERVER DEVICE NAMESPACE COMMAND");
    for (int i = 0; i < server->clients; i++)
        for (uint32_t device = 0; device < server->count; device++)
            if (server->client[i].opened >> device & 1)
                answer_client(peer, &server->client[i], device);
}

static void terminate_client(struct peer *peer, int count, char **words)
{
    unsigned long pid;
    (void)count;
    if (!find_server(peer, words[1]))
        return;
    if (!read_number(words[2], &pid) || !mps_find_client((pid_t)pid)) {
        mps_answer(peer, "Client %s not found", words[2]);
        return;
    }
    peer->waiting = FOR_TERMINATION;
    mps_send(mps_daemon.server.fd, &(struct mps_message){.type = MPS_END, .pid = (uint32_t)pid}, -1);
}

/* ---- limits ---- */

static void get_default_threads(struct peer *peer, int count, char **words)
{
    (void)count;
    (void)words;
    answer_percentage(peer, mps_daemon.threads);
}

static void set_default_threads(struct peer *peer, int count, char **words)
{
    (void)count;
    if (read_percentage(peer, words[1], &mps_daemon.threads))
        answer_percentage(peer, mps_daemon.threads);
}

static void get_threads(struct peer *peer, int count, char **words)
{
    (void)count;
    const struct server *server = find_server(peer, words[1]);
    if (server)
        answer_percentage(peer, server->threads);
}

static void set_threads(struct peer *peer, int count, char **words)
{
    (void)count;
    struct server *server = find_server(peer, words[1]);
    if (server && read_percentage(peer, words[2], &server->threads))
        answer_percentage(peer, server->threads);
}

/* Which device is meant is not asked now: a limit for one that the server lacks has no effect. */
static void get_default_limit(struct peer *peer, int count, char **words)
{
    uint64_t bytes = 0;
    (void)count;
    for (int i = 0; i < mps_daemon.limits; i++)
        if (strcmp(mps_daemon.limit[i].device, words[1]) == 0)
            bytes = mps_daemon.limit[i].bytes;
    answer_amount(peer, bytes);
}

static void set_default_limit(struct peer *peer, int count, char **words)
{
    uint64_t bytes;
    (void)count;
    if (read_limit(peer, words[2], &bytes) && !mps_keep_limit(words[1], bytes))
        mps_answer(peer, "Too many device pinned memory limits");
}

static int find_device(struct peer *peer, const char *device)
{
    int at = mps_server_device(device);
    if (at < 0)
        mps_answer(peer, "Device %s not found", device);
    return at;
}

static void get_limit(struct peer *peer, int count, char **words)
{
    (void)count;
    const struct server *server = find_server(peer, words[1]);
    int at = server ? find_device(peer, words[2]) : -1;
    if (at >= 0)
        answer_amount(peer, server->device[at].limit);
}

static void set_limit(struct peer *peer, int count, char **words)
{
    (void)count;
    struct server *server = find_server(peer, words[1]);
    int at = server ? find_device(peer, words[2]) : -1;
    if (at >= 0)
        read_limit(peer, words[3], &server->device[at].limit);
}

static void help(struct peer *peer, int count, char **words);

static const struct command {
    const char *name;
    int least, most; /* words after the name */
    int changes;     /* only for the daemon's own user and root */
    handler_t run;
} commands[] = {
    {"get_server_list", 0, 0, 0, get_server_list},
    {"get_server_status", 1, 1, 0, get_server_status},
    {"start_server", 2, 2, 1, start_server},
    {"shutdown_server", 1, 2, 1, shutdown_server},
    {"get_client_list", 1, 1, 0, get_client_list},
    {"get_device_client_list", 0, 1, 0, get_device_client_list},
    {"terminate_client", 2, 2, 1, terminate_client},
    {"ps", 0, 2, 0, ps},
    {"get_default_active_thread_percentage", 0, 0, 0, get_default_threads},
    {"set_default_active_thread_percentage", 1, 1, 1, set_default_threads},
    {"get_active_thread_percentage", 1, 1, 0, get_threads},
    {"set_active_thread_percentage", 2, 2, 1, set_threads},
    {"get_default_device_pinned_mem_limit", 1, 1, 0, get_default_limit},
    {"set_default_device_pinned_mem_limit", 2, 2, 1, set_default_limit},
    {"get_device_pinned_mem_limit", 2, 2, 0, get_limit},
    {"set_device_pinned_mem_limit", 3, 3, 1, set_limit},
    {"quit", 0, 2, 1, quit},
    {"help", 0, 0, 0, help},
};

static void help(struct peer *peer, int count, char **words)
{
    (void)count;
    (void)words;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        mps_answer(peer, "%s", commands[i].name);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int split(char *line, char *words[MAX_WORDS])
{
    int count = 0;
    for (char *word = strtok(line, " \t\r\n"); word && count < MAX_WORDS;
         word = strtok(NULL, " \t\r\n"))
        words[count++] = word;
    return count;
}

void mps_perform(struct peer *peer, char *line)
{
    char *words[MAX_WORDS];
    int count = split(line, words);
    const struct command *command = count ? find_command(words[0]) : NULL;
    peer->waiting = FOR_WORDS;
    if (count && !command)
        mps_answer(peer, "Unknown command %s", words[0]);
    else if (command && (count - 1 < command->least || count - 1 > command->most))
        mps_answer(peer, "Invalid number of arguments for %s", words[0]);
    else if (command && command->changes && peer->uid != 0 && peer->uid != geteuid())
        mps_answer(peer, "Insufficient permission for %s", words[0]);
    else if (command)
        command->run(peer, count, words);
    if (peer->waiting == FOR_WORDS)
        mps_answered(peer);
}
