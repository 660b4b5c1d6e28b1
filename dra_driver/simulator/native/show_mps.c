/*
 * MPS daemons as JSON, part of what show.c prints:
 *
 *   [{pid, pipeDirectory, logDirectory, multiUser, visibleDevices, activeThreadPercentage,
 *     pinnedMemoryLimits: {DEVICE: bytes}, pending, server}]
 *   server: null, or {pid, uid, status, activeThreadPercentage,
 *                     devices: [{uuid, pinnedMemoryLimit}], clients: [{pid, uid}]}
 *
 * Limits are in bytes, 0 is none; visibleDevices is CUDA_VISIBLE_DEVICES. Pids are those of the
 * reader's PID namespace, 0 where it can't see the process.
 */
#include <inttypes.h>

#include "json.h"
#include "state.h"

static const char *status_name(uint32_t status)
{
    static const char *const names[] = {"NONE", "INITIALIZING", "ACTIVE", "FAULT", "LEAVING"};
    return status < sizeof names / sizeof *names ? names[status] : "UNKNOWN";
}

static void put_percentage(FILE *out, uint32_t tenths)
{
    fprintf(out, "\"activeThreadPercentage\": %u.%u, ", tenths / 10, tenths % 10);
}

static void put_server(FILE *out, const struct sim_mps *mps)
{
    if (!mps->server_pid) {
        fputs("\"server\": null", out);
        return;
    }
    fprintf(out, "\"server\": {\"pid\": %u, \"uid\": %u, ",
            sim_pid_here(mps->server_pid, mps->pid_namespace), mps->server_uid);
    json_field(out, "status", status_name(mps->server_status));
    put_percentage(out, mps->server_threads);
    fputs("\"devices\": [", out);
    for (uint32_t i = 0; i < mps->device_count; i++) {
        fputs(i ? ", {" : "{", out);
        json_field(out, "uuid", mps->device[i].uuid);
        fprintf(out, "\"pinnedMemoryLimit\": %" PRIu64 "}", mps->device[i].limit);
    }
    fputs("], \"clients\": [", out);
    for (uint32_t i = 0; i < mps->client_count; i++)
        fprintf(out, "%s{\"pid\": %u, \"uid\": %u}", i ? ", " : "",
                sim_pid_here(mps->client_pid[i], mps->pid_namespace), mps->client_uid[i]);
    fputs("]}", out);
}

static void put_daemon(FILE *out, const struct sim_mps *mps)
{
    fprintf(out, "{\"pid\": %u, ", sim_pid_here(mps->pid, mps->pid_namespace));
    json_field(out, "pipeDirectory", mps->pipe);
    json_field(out, "logDirectory", mps->log);
    json_bool(out, "multiUser", (int)mps->multi_user);
    json_field(out, "visibleDevices", mps->visible);
    put_percentage(out, mps->threads);
    fputs("\"pinnedMemoryLimits\": {", out);
    for (uint32_t i = 0; i < mps->limit_count; i++) {
        fputs(i ? ", " : "", out);
        json_text(out, mps->limit[i].device);
        fprintf(out, ": %" PRIu64, mps->limit[i].bytes);
    }
    fprintf(out, "}, \"pending\": %u, ", mps->pending);
    put_server(out, mps);
    fputs("}", out);
}

void sim_put_mps(FILE *out, const sim_t *sim)
{
    const char *comma = "";
    fputs("\"mps\": [", out);
    for (int place = 0; place < SIM_MAX_MPS; place++) {
        const struct sim_mps *mps = sim_mps_at(sim, place);
        if (!mps)
            continue;
        fputs(comma, out);
        put_daemon(out, mps);
        comma = ", ";
    }
    fputs("]", out);
}
