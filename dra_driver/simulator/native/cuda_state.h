/*
 * libcuda of the simulated node from inside: one process, its devices, one context on each at most.
 * cuda.c holds initialisation and devices, cuda_memory.c contexts and memory, cuda_mps.c what is
 * different under MPS.
 */
#ifndef CUDA_STATE_H
#define CUDA_STATE_H

#include <pthread.h>

#include "mps.h"

typedef int CUresult; /* numbers as in cuda.h */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
    CUDA_ERROR_UNKNOWN = 999,
};

/* Who refused memory last. */
enum cuda_refusal { REFUSED_BY_NOBODY, REFUSED_BY_CGROUP, REFUSED_BY_MPS, REFUSED_BY_CLIENT,
                    REFUSED_BY_DEVICE };

struct cuda_device {
    struct sim_device is;
    struct sim_context context; /* fd -1: none */
    uint32_t number;            /* under MPS: among the server's devices */
    uint64_t mps_limit;         /* bytes, of the server; 0: none */
    uint64_t own_limit;         /* of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; 0: none */
};

struct cuda {
    pthread_mutex_t mutex;
    int ready;
    sim_t *sim;
    uint64_t epoch; /* of the driver that this process was initialised with */
    int count;
    struct cuda_device device[SIM_MAX_DEVICES];
    CUresult sticky;       /* what every call answers after a fatal error */
    enum cuda_refusal refusal;
    int mps;               /* connection to the MPS server; -1: none */
    uint32_t mps_server;   /* its pid */
    uint64_t mps_serial;   /* of its daemon */
    uint32_t threads;      /* tenths of a percent */
};

extern struct cuda cuda;

/* ---- cuda.c ---- */
/* What every call does first: is there an error that stays, has the MPS server something to say? */
CUresult cuda_check(void);
/* Close all contexts and answer `error` from now on. */
void cuda_end(CUresult error);
const char *cuda_error_name(CUresult error);

/* ---- cuda_mps.c ---- */
/* Ask the MPS daemon, if there is one, for a server; waits as long as that takes. `all` becomes what
 * the server has of it. */
CUresult cuda_mps_attach(struct cuda_device *all, int *count);
/* Set own_limit of the devices from this process's environment. */
void cuda_mps_own_limits(void);
/* Tell the server that device `index` has a context. */
CUresult cuda_mps_opened(int index);
/* Hear what the server says. */
void cuda_mps_hear(void);

/* ---- cuda_memory.c ---- */
CUresult cuda_open(int index);
void cuda_close(int index);

/* ---- the driver API, as far as it goes; not in a header since cuda.h is not needed to build ---- */
SIM_API CUresult cuInit(unsigned int flags);
SIM_API CUresult cuDriverGetVersion(int *version);
SIM_API CUresult cuDeviceGetCount(int *count);
SIM_API CUresult cuDeviceGet(int *device, int ordinal);
SIM_API CUresult cuDeviceGetName(char *name, int size, int device);
SIM_API CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], int device);
SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device);
SIM_API CUresult cuGetErrorName(CUresult error, const char **name);
SIM_API CUresult cuCtxCreate_v2(void **context, unsigned int flags, int device);
SIM_API CUresult cuCtxDestroy_v2(void *context);
SIM_API CUresult cuCtxSetCurrent(void *context);
SIM_API CUresult cuCtxSynchronize(void);
SIM_API CUresult cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
SIM_API CUresult cuMemFree_v2(unsigned long long pointer);
SIM_API CUresult cuMemGetInfo_v2(size_t *free, size_t *total);

#endif
