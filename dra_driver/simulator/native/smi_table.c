/* nvidia-smi: the summary that is shown without arguments, and -L. */
#include "smi.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WHOLE 89 /* columns between the outer bars */
#define MAX_PROCESSES 512
#define MIB(bytes) ((unsigned long long)(bytes) >> 20)

static const int whole[] = {WHOLE, 0};
static const int gpu_columns[] = {41, 24, 22, 0};
static const int mig_columns[] = {18, 34, 11, 23, 0};

static void print_head(void)
{
    char driver[SMI_TEXT] = "N/A";
    char now[SMI_TEXT];
    int cuda = 0;
    time_t seconds = time(NULL);
    struct tm parts;
    strftime(now, sizeof(now), "%a %b %e %H:%M:%S %Y", localtime_r(&seconds, &parts));
    nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    printf("%-30s\n", now);
    smi_rule('-', '-', whole);
    smi_row(WHOLE, " NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %d.%d", driver, driver,
            cuda / 1000, cuda % 1000 / 10);
    smi_rule('+', '-', gpu_columns);
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                        |               MIG M. |");
    smi_rule('+', '=', gpu_columns);
}

static const char *compute_mode(nvmlDevice_t device)
{
    nvmlComputeMode_t mode;
    if (nvmlDeviceGetComputeMode(device, &mode) != NVML_SUCCESS) {
        return "N/A";
    }
    return mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "E. Process"
           : mode == NVML_COMPUTEMODE_PROHIBITED      ? "Prohibited"
                                                      : "Default";
}

static const char *mig_mode(nvmlDevice_t device)
{
    unsigned int current = 0;
    unsigned int pending = 0;
    if (nvmlDeviceGetMigMode(device, &current, &pending) != NVML_SUCCESS) {
        return "N/A";
    }
    if (current != pending) {
        return pending != 0 ? "Disabled*" : "Enabled*"; /* the star: another mode is pending */
    }
    return current != 0 ? "Enabled" : "Disabled";
}

static void memory_text(nvmlDevice_t device, const char *format, char *text, size_t size)
{
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    if (nvmlDeviceGetMemoryInfo_v2(device, &memory) != NVML_SUCCESS) {
        snprintf(text, size, "          Not Supported");
        return;
    }
    snprintf(text, size, format, MIB(memory.used), MIB(memory.total));
}

static void utilisation_text(nvmlDevice_t device, char *text, size_t size)
{
    nvmlUtilization_t use;
    if (smi_mig_on(device) || nvmlDeviceGetUtilizationRates(device, &use) != NVML_SUCCESS) {
        snprintf(text, size, "N/A");
        return;
    }
    snprintf(text, size, "%u%%", use.gpu);
}

static void ecc_text(nvmlDevice_t device, char *text, size_t size)
{
    unsigned long long errors;
    if (nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                    &errors) != NVML_SUCCESS) {
        snprintf(text, size, "N/A");
        return;
    }
    snprintf(text, size, "%llu", errors);
}

static void print_gpu(const smi_gpu_t *gpu)
{
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "ERR!";
    char memory[SMI_TEXT];
    char use[SMI_TEXT];
    char errors[SMI_TEXT];
    nvmlEnableState_t persistence = NVML_FEATURE_DISABLED;
    nvmlDeviceGetName(gpu->device, name, sizeof(name));
    nvmlDeviceGetPersistenceMode(gpu->device, &persistence);
    memory_text(gpu->device, "%8lluMiB / %6lluMiB", memory, sizeof(memory));
    utilisation_text(gpu->device, use, sizeof(use));
    ecc_text(gpu->device, errors, sizeof(errors));
    printf("| %3u  %-31.31s%-4s|   %16s Off | %20s |\n", gpu->index, name,
           persistence == NVML_FEATURE_ENABLED ? "On" : "Off", gpu->bus_id, errors);
    printf("| N/A   N/A    N/A             N/A /  N/A |%-24.24s|%8s%13s |\n", memory, use,
           compute_mode(gpu->device));
    printf("|%41s|%24s|%21s |\n", "", "", mig_mode(gpu->device));
    smi_rule('+', '-', gpu_columns);
}

static void print_mig_device(const smi_gpu_t *gpu, unsigned int number, nvmlDevice_t mig)
{
    nvmlDeviceAttributes_t has;
    unsigned int gi = 0;
    unsigned int ci = 0;
    char memory[SMI_TEXT];
    char errors[SMI_TEXT];
    if (nvmlDeviceGetAttributes_v2(mig, &has) != NVML_SUCCESS ||
        nvmlDeviceGetGpuInstanceId(mig, &gi) != NVML_SUCCESS ||
        nvmlDeviceGetComputeInstanceId(mig, &ci) != NVML_SUCCESS) {
        return;
    }
    memory_text(mig, "%16lluMiB / %5lluMiB    ", memory, sizeof(memory));
    ecc_text(mig, errors, sizeof(errors));
    printf("| %2u   %2u  %2u  %2u  |%-34.34s|%3u%7s |%3u%4u%5u%5u%5u |\n", gpu->index, gi, ci, number,
           memory, has.multiprocessorCount, errors, has.sharedCopyEngineCount,
           has.sharedEncoderCount, has.sharedDecoderCount, has.sharedOfaCount,
           has.sharedJpegCount);
    smi_rule('+', '-', mig_columns);
}

static unsigned int mig_devices(nvmlDevice_t device, nvmlDevice_t *found, unsigned int room)
{
    unsigned int slots = 0;
    unsigned int total = 0;
    if (nvmlDeviceGetMaxMigDeviceCount(device, &slots) != NVML_SUCCESS) {
        return 0;
    }
    for (unsigned int i = 0; i < slots && total < room; i++) {
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, i, &found[total]) == NVML_SUCCESS) {
            total++;
        }
    }
    return total;
}

static void print_mig_devices(const smi_gpus_t *gpus)
{
    bool any = false;
    bool on = false;
    for (unsigned int i = 0; i < gpus->count; i++) {
        on = on || smi_mig_on(gpus->gpu[i].device);
    }
    if (!on) {
        return;
    }
    putchar('\n');
    smi_rule('-', '-', whole);
    smi_row(WHOLE, " MIG devices:");
    smi_rule('+', '-', mig_columns);
    puts("| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |");
    puts("|      ID  ID  Dev |                                  | SM     Unc| CE ENC  DEC  OFA  JPG |");
    puts("|                  |                                  |        ECC|                       |");
    smi_rule('+', '=', mig_columns);
    for (unsigned int i = 0; i < gpus->count; i++) {
        nvmlDevice_t mig[SMI_MAX_GI];
        unsigned int count = mig_devices(gpus->gpu[i].device, mig, SMI_MAX_GI);
        for (unsigned int j = 0; j < count; j++) {
            print_mig_device(&gpus->gpu[i], j, mig[j]);
            any = true;
        }
    }
    if (!any) {
        smi_row(WHOLE, "  No MIG devices found");
        smi_rule('-', '-', whole);
    }
}

static void instance_text(unsigned int id, char *text, size_t size)
{
    if (id == UINT_MAX) {
        snprintf(text, size, "N/A");
    } else {
        snprintf(text, size, "%u", id);
    }
}

typedef nvmlReturn_t list_t(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *found);

static unsigned int print_processes(const smi_gpu_t *gpu, list_t *list, const char *type)
{
    nvmlProcessInfo_t found[MAX_PROCESSES];
    unsigned int count = MAX_PROCESSES;
    if (list(gpu->device, &count, found) != NVML_SUCCESS) {
        return 0;
    }
    for (unsigned int i = 0; i < count; i++) {
        char name[SMI_TEXT] = "[Not Found]";
        char gi[16];
        char ci[16];
        nvmlSystemGetProcessName(found[i].pid, name, sizeof(name));
        instance_text(found[i].gpuInstanceId, gi, sizeof(gi));
        instance_text(found[i].computeInstanceId, ci, sizeof(ci));
        smi_row(WHOLE, "%5u%6s%5s%16u%7s   %-35.35s%8lluMiB", gpu->index, gi, ci, found[i].pid, type,
                name, MIB(found[i].usedGpuMemory));
    }
    return count;
}

static unsigned int print_processes_of(const smi_gpu_t *gpu)
{
    return print_processes(gpu, nvmlDeviceGetComputeRunningProcesses_v3, "C") +
           print_processes(gpu, nvmlDeviceGetMPSComputeRunningProcesses_v3, "M+C");
}

int smi_table(const smi_gpus_t *gpus)
{
    unsigned int processes = 0;
    if (gpus->count == 0) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    print_head();
    for (unsigned int i = 0; i < gpus->count; i++) {
        print_gpu(&gpus->gpu[i]);
    }
    print_mig_devices(gpus);
    putchar('\n');
    smi_rule('-', '-', whole);
    smi_row(WHOLE, " Processes:");
    smi_row(WHOLE, "  GPU   GI   CI              PID   Type   Process name                        GPU Memory");
    smi_row(WHOLE, "        ID   ID                                                               Usage");
    smi_rule('=', '=', whole);
    for (unsigned int i = 0; i < gpus->count; i++) {
        processes += print_processes_of(&gpus->gpu[i]);
    }
    if (processes == 0) {
        smi_row(WHOLE, "  No running processes found");
    }
    smi_rule('-', '-', whole);
    return 0;
}

int smi_list(const smi_gpus_t *gpus)
{
    if (gpus->count == 0) {
        printf("No devices found.\n");
        return NVML_ERROR_NOT_FOUND;
    }
    for (unsigned int i = 0; i < gpus->count; i++) {
        nvmlDevice_t mig[SMI_MAX_GI];
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "ERR!";
        char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "ERR!";
        nvmlDeviceGetName(gpus->gpu[i].device, name, sizeof(name));
        nvmlDeviceGetUUID(gpus->gpu[i].device, uuid, sizeof(uuid));
        printf("GPU %u: %s (UUID: %s)\n", gpus->gpu[i].index, name, uuid);
        unsigned int count = mig_devices(gpus->gpu[i].device, mig, SMI_MAX_GI);
        for (unsigned int j = 0; j < count; j++) {
            smi_mig_name(mig[j], name, sizeof(name));
            nvmlDeviceGetUUID(mig[j], uuid, sizeof(uuid));
            printf("  %-15s Device %2u: (UUID: %s)\n", name, j, uuid);
        }
    }
    return 0;
}
