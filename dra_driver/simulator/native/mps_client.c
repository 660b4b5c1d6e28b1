/*
 * sim-mps-client: a CUDA program for tests. It initialises CUDA as any program does (so it becomes a
 * client of MPS where a daemon answers in CUDA_MPS_PIPE_DIRECTORY), then does what its arguments say,
 * one after the other; each event is one line of JSON.
 *
 *   device N      use the program's N-th device from now on; 0 at first
 *   alloc AMOUNT  take memory: bytes, or with Ki, Mi, Gi
 *   free          give all memory of the device back
 *   memory        tell what CUDA says of free and total memory
 *   fault         make a fatal GPU fault, as a program that reads where it must not
 *   sleep SECONDS
 *   hold          until SIGTERM or SIGINT, or until the MPS server is gone
 *   -             read further words from standard input, until its end
 *
 * Exit codes: 0 fine, 1 something was refused, 2 wrong usage, 3 CUDA could not be initialised, 4 the
 * context was lost.
 */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_state.h"

enum { FINE, REFUSED, USAGE, NO_CUDA, LOST };

static const char usage[] = "usage: sim-mps-client [device N | alloc AMOUNT | free | memory | fault | "
                            "sleep SECONDS | hold | -]...\n";
static const char *const refusers[] = {"nobody", "cgroup", "mps", "client", "device"};

static volatile sig_atomic_t signalled;
static void *context;
static int device;
static int worst = FINE;

static void note_signal(int number)
{
    signalled = number;
}

static void remember(int code)
{
    if (code > worst)
        worst = code;
}

static void say(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const char *event, const char *format, ...)
{
    va_list arguments;
    printf("{\"event\": \"%s\"", event);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("}");
    fflush(stdout);
}

static void say_error(const char *event, CUresult error)
{
    const char *name = cuda_error_name(error);
    say(event, ", \"error\": \"%s\", \"code\": %d", name ? name : "?", error);
}

static void say_attached(void)
{
    char devices[SIM_MAX_DEVICES * 256] = "";
    for (int i = 0; i < cuda.count; i++) {
        const struct cuda_device *found = &cuda.device[i];
        size_t used = strlen(devices);
        snprintf(devices + used, sizeof devices - used,
                 "%s{\"uuid\": \"%s\", \"name\": \"%s\", \"memoryBytes\": %llu, "
                 "\"mpsLimitBytes\": %llu, \"ownLimitBytes\": %llu}",
                 i ? ", " : "", found->is.uuid, found->is.name,
                 (unsigned long long)found->is.memory, (unsigned long long)found->mps_limit,
                 (unsigned long long)found->own_limit);
    }
    if (cuda.mps >= 0)
        say("attached",
            ", \"pid\": %d, \"uid\": %u, \"mps\": true, \"server\": %u, "
            "\"activeThreadPercentage\": %.1f, \"devices\": [%s]",
            getpid(), geteuid(), cuda.mps_server, cuda.threads / 10.0, devices);
    else
        say("attached", ", \"pid\": %d, \"uid\": %u, \"mps\": false, \"devices\": [%s]", getpid(),
            geteuid(), devices);
}

/* Say so once when a call answers that the context is lost. */
static int lost(CUresult result)
{
    if (result == CUDA_SUCCESS || result != cuda.sticky)
        return 0;
    say_error("lost", result);
    remember(LOST);
    return 1;
}

static int open_context(void)
{
    CUresult result = cuCtxCreate_v2(&context, 0, device);
    if (result == CUDA_SUCCESS)
        return 1;
    if (!lost(result)) {
        say_error("unavailable", result);
        remember(REFUSED);
    }
    return 0;
}

static int read_amount(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0}, {"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
    char *end;
    *bytes = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) == 0 && end != text) {
            *bytes <<= units[i].shift;
            return *bytes != 0;
        }
    }
    return 0;
}

static int allocate(const char *amount)
{
    uint64_t bytes;
    unsigned long long pointer;
    if (!amount || !read_amount(amount, &bytes))
        return USAGE;
    if (!open_context())
        return FINE;
    CUresult result = cuMemAlloc_v2(&pointer, bytes);
    if (result == CUDA_SUCCESS) {
        say("allocated", ", \"device\": %d, \"bytes\": %llu, \"totalBytes\": %llu", device,
            (unsigned long long)bytes, (unsigned long long)cuda.device[device].context.memory);
    } else if (!lost(result)) {
        say("refused", ", \"device\": %d, \"bytes\": %llu, \"by\": \"%s\", \"error\": \"%s\", "
            "\"code\": %d", device, (unsigned long long)bytes, refusers[cuda.refusal],
            cuda_error_name(result), result);
        remember(REFUSED);
    }
    return FINE;
}

static int release(void)
{
    if (open_context() && cuCtxDestroy_v2(context) == CUDA_SUCCESS)
        say("freed", ", \"device\": %d", device);
    return FINE;
}

static int tell_memory(void)
{
    size_t free_bytes, total;
    if (open_context() && !lost(cuMemGetInfo_v2(&free_bytes, &total)))
        say("memory", ", \"device\": %d, \"freeBytes\": %zu, \"totalBytes\": %zu", device, free_bytes,
            total);
    return FINE;
}

/* With MPS the server tells all its clients on the GPU, this one too. */
static int make_fault(void)
{
    if (!open_context())
        return FINE;
    if (cuda.mps < 0)
        cuda_end(CUDA_ERROR_LAUNCH_FAILED);
    else
        mps_send(cuda.mps, &(struct mps_message){.type = MPS_FAULTED}, -1);
    say("faulted", ", \"device\": %d", device);
    return FINE;
}

/* Until a signal, the end of the context, or `milliseconds`; -1: no limit. Gives whether it was lost. */
static int wait_for(int milliseconds)
{
    while (!signalled && milliseconds != 0) {
        struct pollfd server = {.fd = cuda.mps, .events = POLLIN};
        int step = milliseconds < 0 || milliseconds > MPS_TICK_MS ? MPS_TICK_MS : milliseconds;
        if (lost(cuCtxSynchronize()))
            return 1;
        if (poll(&server, 1, step) == 0 && milliseconds > 0)
            milliseconds -= step;
    }
    return 0;
}

static int hold(void)
{
    say("holding", ", \"pid\": %d", getpid());
    wait_for(-1);
    return FINE;
}

static int rest(const char *seconds)
{
    char *end;
    double wanted = seconds ? strtod(seconds, &end) : -1;
    if (wanted < 0 || *end)
        return USAGE;
    wait_for((int)(wanted * 1000));
    return FINE;
}

static int use_device(const char *number)
{
    char *end;
    long wanted = number ? strtol(number, &end, 10) : -1;
    if (wanted < 0 || *end || wanted >= cuda.count)
        return USAGE;
    device = (int)wanted;
    return FINE;
}

/* One word and, where it takes one, its argument; *used says how many were taken. */
static int perform(const char *word, const char *argument, int *used)
{
    *used = 2;
    if (strcmp(word, "device") == 0)
        return use_device(argument);
    if (strcmp(word, "alloc") == 0)
        return allocate(argument);
    if (strcmp(word, "sleep") == 0)
        return rest(argument);
    *used = 1;
    if (strcmp(word, "free") == 0)
        return release();
    if (strcmp(word, "memory") == 0)
        return tell_memory();
    if (strcmp(word, "fault") == 0)
        return make_fault();
    if (strcmp(word, "hold") == 0)
        return hold();
    return USAGE;
}

/* Wait for a line while the server may speak. 0: no more lines. */
static int next_line(char *line, size_t size)
{
    size_t length = 0;
    while (length + 1 < size && !signalled) {
        struct pollfd input[] = {{.fd = 0, .events = POLLIN}, {.fd = cuda.mps, .events = POLLIN}};
        if (worst != LOST && lost(cuCtxSynchronize()))
            continue;
        if (poll(input, worst == LOST ? 1 : 2, MPS_TICK_MS) < 0 || !input[0].revents)
            continue;
        if (read(0, line + length, 1) != 1)
            return 0;
        if (line[length] == '\n')
            break;
        length++;
    }
    line[length] = '\0';
    return !signalled;
}

static int read_words(void)
{
    char line[256];
    while (next_line(line, sizeof line)) {
        char *word = strtok(line, " "), *argument = strtok(NULL, " ");
        int used, code = word ? perform(word, argument, &used) : FINE;
        if (code == USAGE)
            say("misunderstood", ", \"word\": \"%s\"", word);
    }
    return FINE;
}

static int run(int count, char **words)
{
    int used;
    for (int i = 0; i < count && !signalled; i += used) {
        used = 1;
        const char *argument = i + 1 < count ? words[i + 1] : NULL;
        int code = strcmp(words[i], "-") == 0 ? read_words() : perform(words[i], argument, &used);
        if (code == USAGE) {
            fputs(usage, stderr);
            return USAGE;
        }
    }
    return worst;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = note_signal};
    CUresult result = cuInit(0); /* may wait for a server: signals end it as they end any program */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (result != CUDA_SUCCESS) {
        say_error("failed", result);
        return NO_CUDA;
    }
    say_attached();
    int code = run(argc - 1, argv + 1);
    say("end", ", \"signal\": %d", (int)signalled);
    return code;
}
