/* The MPS control daemon from inside: one process, one thread, one server at a time. */
#ifndef MPS_DAEMON_H
#define MPS_DAEMON_H

#include <stdio.h>

#include "mps.h"

#define MAX_PEERS 256
#define NEVER INT64_MAX
#define SILENT_MS UINT32_MAX /* the length of a hang that never ends */

/* What a connection waits for. */
enum waiting { FOR_WORDS, FOR_SERVER, FOR_START, FOR_TERMINATION, FOR_TIME, FOR_NOTHING };

struct peer {
    int fd;
    pid_t pid;
    uid_t uid;
    gid_t gid;
    int is_ui; /* nvidia-cuda-mps-control; else a CUDA program */
    enum waiting waiting;
    int64_t due;                /* FOR_TIME: when, on the monotonic clock in milliseconds */
    struct mps_message message; /* FOR_TIME: what is answered then */
};

struct client {
    pid_t pid;
    uid_t uid;
    uint64_t id;
    uint64_t opened; /* bit N: has a context on the server's device N */
};

struct server {
    enum mps_status status;
    pid_t pid;
    int fd;
    uid_t uid;
    uint32_t threads;
    uint32_t count;
    struct mps_device device[SIM_MPS_DEVICES];
    uint64_t next_id;
    int clients;
    struct client client[SIM_MPS_CLIENTS];
};

struct daemon {
    sim_t *sim;
    uint64_t epoch;
    unsigned int wake_seen;
    int place; /* in the state; -1: it can't be written */
    int place_fd;
    uint64_t serial;
    int driver_branch;
    int max_clients;
    char pipe[SIM_PATH];
    char log_folder[SIM_PATH];
    FILE *control_log;
    FILE *server_log;
    int lock_fd;
    int listening[2];
    int multi_user;
    uint32_t threads;
    int limits;
    struct {
        char device[48];
        uint64_t bytes;
    } limit[SIM_MPS_LIMITS];
    int devices; /* that faults may be about */
    struct sim_device device[SIM_MAX_DEVICES];
    struct server server;
    int peers;
    struct peer peer[MAX_PEERS];
    int quitting;
    int64_t quit_at; /* when the server is ended by force */
};

extern struct daemon mps_daemon;

/* ---- mps_daemon.c ---- */
int mps_daemon_run(int foreground, int multi_user);
/* A default memory limit; 0 where there is no room for one more. */
int mps_keep_limit(const char *device, uint64_t bytes);
/* Show others what changed: before anybody gets an answer that follows from it. */
void mps_tell_state(void);

/* ---- mps_log.c ---- */
void mps_open_logs(void);
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of the server's, for server.log. */
void mps_log_server(pid_t server, const char *line);
int64_t mps_now(void);

/* ---- mps_peers.c ---- */
void mps_accept(int listening);
void mps_hear_peer(struct peer *peer);
/* Give programs that wait for a server another try. */
void mps_serve_pending(void);
void mps_refuse_pending(uid_t owner, int error);
/* Answer those whose time has come. */
void mps_answer_due(void);
/* Answer those UIs that wait for this. */
void mps_answer_waiting(enum waiting waiting, const char *line);
int mps_count_pending(void);
/* One line to a UI, also into control.log. */
void mps_answer(struct peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mps_answered(struct peer *peer);

/* ---- mps_children.c: the server process ---- */
/* Whose server a program of this user gets. */
uid_t mps_owner(uid_t user);
/* 0 where it can't even be tried. */
int mps_start_server(uid_t uid, gid_t gid);
void mps_stop_server(int at_once);
void mps_adopt(const struct peer *peer);
void mps_hear_server(void);
struct client *mps_find_client(pid_t pid);
/* The position of a device, given by position or UUID, among the server's; -1: it has none such. */
int mps_server_device(const char *device);

/* ---- mps_commands.c ---- */
void mps_perform(struct peer *peer, char *line);

#endif
