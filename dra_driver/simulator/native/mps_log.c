/* Logs of the MPS control daemon, in the real daemon's format. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mps_daemon.h"

int64_t mps_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static FILE *open_log(const char *name)
{
    char path[SIM_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", mps_daemon.log_folder, name);
    return fopen(path, "ae");
}

/* Without a folder that can be written the daemon works all the same, without logs. */
void mps_open_logs(void)
{
    const char *given = getenv(MPS_LOG_VARIABLE);
    sim_copy(mps_daemon.log_folder, sizeof mps_daemon.log_folder,
             given && *given ? given : MPS_DEFAULT_LOG);
    mkdir(mps_daemon.log_folder, 0755);
    mps_daemon.control_log = open_log("control.log");
    mps_daemon.server_log = open_log("server.log");
}

static void write_line(FILE *log, const char *who, pid_t pid, const char *text)
{
    struct timespec now;
    struct tm local;
    char time[32];
    if (!log)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &local);
    fprintf(log, "[%s.%03ld %s %5d] %s\n", time, now.tv_nsec / 1000000, who, (int)pid, text);
    fflush(log);
}

void mps_log(const char *format, ...)
{
    char text[MPS_TEXT + SIM_PATH];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_line(mps_daemon.control_log, "Control", getpid(), text);
}

void mps_log_server(pid_t server, const char *line)
{
    write_line(mps_daemon.server_log, "Other", server, line);
}
