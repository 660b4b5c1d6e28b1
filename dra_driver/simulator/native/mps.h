/*
 * What the MPS control daemon, its server and CUDA programs say to each other. Each message is one
 * packet on a local socket:
 *
 *   PIPE/control, open to all: a CUDA program asks for a server, and the daemon hands its connection
 *   over to one. PIPE/control_privileged, for the daemon's own user: nvidia-cuda-mps-control sends
 *   commands. Both take both; what a peer may do follows from its user id.
 *   A pair of sockets joins the daemon with its server, which has it as descriptor 3.
 *
 * The names of the files in PIPE are those of the real daemon.
 */
#ifndef MPS_H
#define MPS_H

#include <stdint.h>

#include "state.h"

#define MPS_PIPE_VARIABLE "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_LOG_VARIABLE "CUDA_MPS_LOG_DIRECTORY"
#define MPS_THREADS_VARIABLE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define MPS_MEMORY_VARIABLE "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define MPS_DEFAULT_PIPE "/tmp/nvidia-mps"
#define MPS_DEFAULT_LOG "/var/log/nvidia-mps"
#define MPS_SERVER_SOCKET 3
#define MPS_TICK_MS 500    /* how often each looks whether the GPU driver is still the same */

enum mps_type {
    /* CUDA program -> daemon, server */
    MPS_ATTACH = 1, /* pid and uid come from the kernel */
    MPS_JOINED,     /* has found the shared memory; answered by MPS_NOTED */
    MPS_OPENED,     /* id: which of the server's devices got a context; answered by MPS_NOTED */
    MPS_FAULTED,    /* the program made a fatal GPU fault */
    MPS_TERMINATED, /* has closed its contexts, as asked to */
    /* daemon, server -> CUDA program */
    MPS_WELCOME, /* devices with limits, threads, pid of the server, text: shared memory, id: its key */
    MPS_REFUSED, /* code: a CUresult */
    MPS_NOTED,
    MPS_ENDED,   /* code: the CUresult that every call answers from now on */
    /* daemon -> server */
    MPS_START,    /* the first one; serial */
    MPS_ADOPT,    /* as MPS_WELCOME; pid, uid of the client; its connection comes with it */
    MPS_END,      /* pid: end this client's contexts */
    MPS_SHUTDOWN, /* exit once there are no clients; code 1: at once */
    /* server -> daemon */
    MPS_READY,  /* its devices */
    MPS_FAILED, /* text: why it does not start */
    MPS_STATUS, /* code: MPS_ACTIVE or MPS_FAULT */
    MPS_CONTEXT, /* pid: this client opened a context on device number id */
    MPS_GONE,   /* pid: this client is gone */
    MPS_LOG,    /* text: a line for server.log */
    MPS_DONE,   /* MPS_END is done; code: a CUresult */
    /* nvidia-cuda-mps-control <-> daemon */
    MPS_COMMAND, /* text */
    MPS_ANSWER,  /* text: one line of the answer */
    MPS_ANSWERED,
};

/* The states of a server, as the state of the node keeps them too. */
enum mps_status { MPS_NONE, MPS_INITIALIZING, MPS_ACTIVE, MPS_FAULT, MPS_LEAVING };

#define MPS_TEXT 512

struct mps_device {
    char uuid[48];
    uint64_t limit; /* bytes a client may have; 0: no limit */
};

/* Sent without the devices beyond `count`. */
struct mps_message {
    uint32_t type;
    int32_t code;
    uint32_t pid;
    uint32_t uid;
    uint64_t id;
    uint64_t serial;  /* of the daemon in the state */
    uint32_t threads; /* tenths of a percent */
    uint32_t count;   /* of devices */
    char text[MPS_TEXT];
    struct mps_device device[SIM_MPS_DEVICES];
};

/* ---- mps_socket.c ---- */
/* A socket's address of at most 107 bytes; 0 where the path is longer. */
int mps_connect(const char *pipe, const char *name);
int mps_listen(const char *pipe, const char *name, unsigned int mode);
/* fd -1: none to hand over. Gives 0, or -1, also where the other end does not read. */
int mps_send(int socket, const struct mps_message *message, int fd);
/* 1: a message, 0: the other end is gone, -1: nothing now. *fd, where asked for: -1 or handed over. */
int mps_receive(int socket, struct mps_message *message, int *fd, int wait);
const char *mps_pipe_directory(void);

/* ---- mps_settings.c ---- */
/* "10G", "512M", also GB and MB; 0 where it is none. */
int mps_read_amount(const char *text, uint64_t *bytes);
/* A percentage above 0 up to 100, as tenths. */
int mps_read_percentage(const char *text, uint32_t *tenths);
/* The next DEVICE=AMOUNT of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; `rest` moves on. 0: no more. */
int mps_next_limit(const char **rest, char device[SIM_NAME], uint64_t *bytes);
/* As the daemon prints it: whole gibibytes from one on, cut off; else mebibytes. */
void mps_print_amount(uint64_t bytes, char *text, size_t size);

#endif
