/*
 * nvidia-cuda-mps-control of the simulated node: the daemon (-d, -f), and the program by which
 * people and drivers tell it what to do: commands on standard input, one a line.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mps_daemon.h"

static const char usage[] =
    "Usage: nvidia-cuda-mps-control [-d | -f] [-M | -multiuser-server]\n"
    "    -d  Start the daemon in the background.\n"
    "    -f  Start the daemon in the foreground.\n"
    "    -M, -multiuser-server, --multiuser-server\n"
    "        With -d or -f, as root: one server for the programs of all users.\n"
    "    -v  Print the version.\n"
    "Without options commands are read from standard input; the command help lists them.\n"
    "CUDA_MPS_PIPE_DIRECTORY says which daemon is meant.\n";

/* Gives what the connection is worth after it: 0 once the daemon is gone. */
static int ask(int daemon, const char *line)
{
    struct mps_message message = {.type = MPS_COMMAND};
    sim_copy(message.text, sizeof message.text, line);
    if (mps_send(daemon, &message, -1) < 0)
        return 0;
    while (mps_receive(daemon, &message, NULL, 1) == 1) {
        if (message.type == MPS_ANSWERED)
            return 1;
        puts(message.text);
        fflush(stdout);
    }
    return 0;
}

static int is_quit(const char *line)
{
    return strncmp(line, "quit", 4) == 0 && (!line[4] || line[4] == ' ');
}

static int talk(void)
{
    char line[MPS_TEXT];
    int daemon = mps_connect(mps_pipe_directory(), "control_privileged");
    if (daemon < 0)
        daemon = mps_connect(mps_pipe_directory(), "control");
    while (daemon >= 0 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (ask(daemon, line))
            continue;
        close(daemon);
        daemon = -1;
        if (is_quit(line))
            return 0;
    }
    if (daemon >= 0)
        return 0;
    fputs("Cannot find MPS control daemon process\n", stderr);
    return 1;
}

static int print_version(void)
{
    sim_t *sim;
    char version[SIM_NAME];
    if (sim_open(NULL, &sim) != NVML_SUCCESS ||
        sim_get_driver_version(sim, version, sizeof version) != NVML_SUCCESS)
        return 1;
    printf("%s\n", version);
    return 0;
}

static int is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const multi_user_words[] = {"-M", "-multiuser-server", "--multiuser-server",
                                                   NULL};
    int background = 0, foreground = 0, multi_user = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            return print_version();
        if (strcmp(argv[i], "-d") == 0)
            background = 1;
        else if (strcmp(argv[i], "-f") == 0)
            foreground = 1;
        else if (is_one_of(argv[i], multi_user_words))
            multi_user = 1;
        else {
            fprintf(stderr, "Unknown option %s\n%s", argv[i], usage);
            return 1;
        }
    }
    if (multi_user && (geteuid() != 0 || background == foreground)) {
        fputs("-multiuser-server goes with -d or -f, and needs root\n", stderr);
        return 1;
    }
    if (background == foreground && background) {
        fputs(usage, stderr);
        return 1;
    }
    return background || foreground ? mps_daemon_run(foreground, multi_user) : talk();
}
