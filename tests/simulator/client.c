/*
 * An NVML client in C against the official header: walks the GPUs, makes a partition, reads all
 * versions of the profile structures, waits for an event, removes the partition. Prints what it
 * found; fails with the line of the call that failed.
 */
#include <nvml.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                               \
    do {                                                                                          \
        nvmlReturn_t result = (call);                                                             \
        if (result != NVML_SUCCESS) {                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, nvmlErrorString(result));                  \
            return 1;                                                                             \
        }                                                                                         \
    } while (0)

static int profiles(nvmlDevice_t gpu, nvmlGpuInstance_t instance)
{
    nvmlGpuInstanceProfileInfo_t v1;
    nvmlGpuInstanceProfileInfo_v2_t v2 = {.version = nvmlGpuInstanceProfileInfo_v2};
    nvmlGpuInstanceProfileInfo_v3_t v3 = {.version = nvmlGpuInstanceProfileInfo_v3};
    nvmlComputeInstanceProfileInfo_t c1;
    nvmlComputeInstanceProfileInfo_v2_t c2 = {.version = nvmlComputeInstanceProfileInfo_v2};
    nvmlComputeInstanceProfileInfo_v3_t c3 = {.version = nvmlComputeInstanceProfileInfo_v3};
    CHECK(nvmlDeviceGetGpuInstanceProfileInfo(gpu, NVML_GPU_INSTANCE_PROFILE_3_SLICE, &v1));
    CHECK(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, NVML_GPU_INSTANCE_PROFILE_3_SLICE, &v2));
    CHECK(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, NVML_GPU_INSTANCE_PROFILE_3_SLICE,
                                               (nvmlGpuInstanceProfileInfo_v2_t *)(void *)&v3));
    CHECK(nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0, &c1));
    CHECK(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 0, 0, &c2));
    CHECK(nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance, 0, 0, (nvmlComputeInstanceProfileInfo_v2_t *)(void *)&c3));
    printf("gi %u %u %u %llu %llu %llu %s %s %u\n", v1.id, v2.id, v3.id, v1.memorySizeMB,
           v2.memorySizeMB, v3.memorySizeMB, v2.name, v3.name, v3.capabilities);
    printf("ci %u %u %u %u %u %u %s %s\n", c1.id, c2.id, c3.id, c1.multiprocessorCount,
           c2.multiprocessorCount, c3.multiprocessorCount, c2.name, c3.name);
    v2.version = 7;
    printf("bad version %s\n", nvmlErrorString(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0, &v2)));
    return 0;
}

static int partition(nvmlDevice_t gpu)
{
    nvmlReturn_t activation;
    nvmlGpuInstance_t instance;
    nvmlComputeInstance_t compute;
    nvmlDevice_t mig;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    CHECK(nvmlDeviceSetMigMode(gpu, NVML_DEVICE_MIG_ENABLE, &activation));
    CHECK(activation);
    CHECK(nvmlDeviceCreateGpuInstance(gpu, 19, &instance));
    CHECK(nvmlGpuInstanceCreateComputeInstance(instance, 0, &compute));
    CHECK(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mig));
    CHECK(nvmlDeviceGetUUID(mig, uuid, sizeof uuid));
    printf("mig %s\n", uuid);
    if (profiles(gpu, instance))
        return 1;
    printf("in use %s\n", nvmlErrorString(nvmlGpuInstanceDestroy(instance)));
    CHECK(nvmlComputeInstanceDestroy(compute));
    CHECK(nvmlGpuInstanceDestroy(instance));
    return 0;
}

static int events(nvmlDevice_t gpu)
{
    nvmlEventSet_t set;
    nvmlEventData_t data;
    unsigned long long types;
    CHECK(nvmlEventSetCreate(&set));
    CHECK(nvmlDeviceGetSupportedEventTypes(gpu, &types));
    CHECK(nvmlDeviceRegisterEvents(gpu, types, set));
    printf("waiting\n");
    fflush(stdout);
    CHECK(nvmlEventSetWait(set, &data, 60000));
    printf("xid %llu %s\n", data.eventData, data.device == gpu ? "same handle" : "other handle");
    CHECK(nvmlEventSetFree(set));
    return 0;
}

int main(void)
{
    unsigned int count;
    nvmlDevice_t gpu;
    nvmlPciInfo_t pci;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    CHECK(nvmlInit());
    CHECK(nvmlDeviceGetCount(&count));
    for (unsigned int i = 0; i < count; i++) {
        CHECK(nvmlDeviceGetHandleByIndex(i, &gpu));
        CHECK(nvmlDeviceGetUUID(gpu, uuid, sizeof uuid));
        CHECK(nvmlDeviceGetPciInfo(gpu, &pci));
        printf("gpu %u %s %s\n", i, uuid, pci.busId);
    }
    CHECK(nvmlDeviceGetHandleByIndex(0, &gpu));
    if (partition(gpu) || events(gpu))
        return 1;
    CHECK(nvmlShutdown());
    return 0;
}
