/* nvidia-smi: readers of the fields that --query-gpu knows. */
#include "smi_fields.h"

#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#define MIB(bytes) ((unsigned long long)(bytes) >> 20)

nvmlReturn_t smi_field_clock(const smi_gpu_t *gpu, int which, char *text)
{
    struct timeval now;
    struct tm parts;
    char seconds[SMI_TEXT / 2];
    (void)gpu;
    (void)which;
    gettimeofday(&now, NULL);
    strftime(seconds, sizeof(seconds), "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &parts));
    snprintf(text, SMI_TEXT, "%s.%03ld", seconds, (long)now.tv_usec / 1000);
    return NVML_SUCCESS;
}

nvmlReturn_t smi_field_name(const smi_gpu_t *gpu, int which, char *text)
{
    (void)which;
    return nvmlDeviceGetName(gpu->device, text, SMI_TEXT);
}

nvmlReturn_t smi_field_uuid(const smi_gpu_t *gpu, int which, char *text)
{
    (void)which;
    return nvmlDeviceGetUUID(gpu->device, text, SMI_TEXT);
}

nvmlReturn_t smi_field_bus_id(const smi_gpu_t *gpu, int which, char *text)
{
    (void)which;
    snprintf(text, SMI_TEXT, "%s", gpu->bus_id);
    return NVML_SUCCESS;
}

enum { SYSTEM_DRIVER, SYSTEM_COUNT };

static nvmlReturn_t read_system(const smi_gpu_t *gpu, int which, char *text)
{
    unsigned int count = 0;
    (void)gpu;
    if (which == SYSTEM_DRIVER) {
        return nvmlSystemGetDriverVersion(text, SMI_TEXT);
    }
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    snprintf(text, SMI_TEXT, "%u", count);
    return result;
}

enum { TEXT_SERIAL, TEXT_VBIOS };

static nvmlReturn_t read_text(const smi_gpu_t *gpu, int which, char *text)
{
    if (which == TEXT_SERIAL) {
        return nvmlDeviceGetSerial(gpu->device, text, SMI_TEXT);
    }
    return nvmlDeviceGetVbiosVersion(gpu->device, text, SMI_TEXT);
}

enum { NUMBER_INDEX, NUMBER_MODULE };

static nvmlReturn_t read_number(const smi_gpu_t *gpu, int which, char *text)
{
    unsigned int value = gpu->index;
    nvmlReturn_t result = NVML_SUCCESS;
    if (which == NUMBER_MODULE) {
        result = nvmlDeviceGetModuleId(gpu->device, &value);
    }
    snprintf(text, SMI_TEXT, "%u", value);
    return result;
}

enum { PCI_DOMAIN, PCI_BUS, PCI_DEVICE, PCI_DEVICE_ID, PCI_SUB_ID };

static nvmlReturn_t read_pci(const smi_gpu_t *gpu, int which, char *text)
{
    nvmlPciInfo_t pci;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(gpu->device, &pci);
    if (result != NVML_SUCCESS) {
        return result;
    }
    switch (which) {
        case PCI_DOMAIN:
            snprintf(text, SMI_TEXT, "0x%04X", pci.domain);
            break;
        case PCI_BUS:
            snprintf(text, SMI_TEXT, "0x%02X", pci.bus);
            break;
        case PCI_DEVICE:
            snprintf(text, SMI_TEXT, "0x%02X", pci.device);
            break;
        case PCI_DEVICE_ID:
            snprintf(text, SMI_TEXT, "0x%08X", pci.pciDeviceId);
            break;
        default:
            snprintf(text, SMI_TEXT, "0x%08X", pci.pciSubSystemId);
    }
    return NVML_SUCCESS;
}

enum { MEMORY_TOTAL, MEMORY_RESERVED, MEMORY_USED, MEMORY_FREE };

static nvmlReturn_t read_memory(const smi_gpu_t *gpu, int which, char *text)
{
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(gpu->device, &memory);
    unsigned long long bytes = which == MEMORY_TOTAL      ? memory.total
                               : which == MEMORY_RESERVED ? memory.reserved
                               : which == MEMORY_USED     ? memory.used
                                                          : memory.free;
    snprintf(text, SMI_TEXT, "%llu", MIB(bytes));
    return result;
}

enum { USE_GPU, USE_MEMORY };

static nvmlReturn_t read_use(const smi_gpu_t *gpu, int which, char *text)
{
    nvmlUtilization_t use = {0};
    nvmlReturn_t result = nvmlDeviceGetUtilizationRates(gpu->device, &use);
    snprintf(text, SMI_TEXT, "%u", which == USE_GPU ? use.gpu : use.memory);
    return result;
}

static nvmlReturn_t read_persistence(const smi_gpu_t *gpu, int which, char *text)
{
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    nvmlReturn_t result = nvmlDeviceGetPersistenceMode(gpu->device, &state);
    (void)which;
    snprintf(text, SMI_TEXT, "%s", state == NVML_FEATURE_ENABLED ? "Enabled" : "Disabled");
    return result;
}

static nvmlReturn_t read_compute_mode(const smi_gpu_t *gpu, int which, char *text)
{
    static const char *const words[] = {"Default", "Exclusive_Thread", "Prohibited",
                                        "Exclusive_Process"};
    nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
    nvmlReturn_t result = nvmlDeviceGetComputeMode(gpu->device, &mode);
    (void)which;
    snprintf(text, SMI_TEXT, "%s", (int)mode < 4 ? words[mode] : "Unknown");
    return result;
}

static nvmlReturn_t read_compute_capability(const smi_gpu_t *gpu, int which, char *text)
{
    int major = 0;
    int minor = 0;
    nvmlReturn_t result = nvmlDeviceGetCudaComputeCapability(gpu->device, &major, &minor);
    (void)which;
    snprintf(text, SMI_TEXT, "%d.%d", major, minor);
    return result;
}

enum { NOW, PENDING };

static nvmlReturn_t read_mig(const smi_gpu_t *gpu, int which, char *text)
{
    unsigned int mode[2] = {0, 0};
    nvmlReturn_t result = nvmlDeviceGetMigMode(gpu->device, &mode[NOW], &mode[PENDING]);
    snprintf(text, SMI_TEXT, "%s", mode[which] != 0 ? "Enabled" : "Disabled");
    return result;
}

static nvmlReturn_t read_ecc_mode(const smi_gpu_t *gpu, int which, char *text)
{
    nvmlEnableState_t mode[2] = {NVML_FEATURE_DISABLED, NVML_FEATURE_DISABLED};
    nvmlReturn_t result = nvmlDeviceGetEccMode(gpu->device, &mode[NOW], &mode[PENDING]);
    snprintf(text, SMI_TEXT, "%s", mode[which] != 0 ? "Enabled" : "Disabled");
    return result;
}

static nvmlReturn_t read_ecc_errors(const smi_gpu_t *gpu, int which, char *text)
{
    unsigned long long errors = 0;
    nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(
        gpu->device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, (nvmlEccCounterType_t)which, &errors);
    snprintf(text, SMI_TEXT, "%llu", errors);
    return result;
}

static nvmlReturn_t read_nothing(const smi_gpu_t *gpu, int which, char *text)
{
    (void)gpu;
    (void)which;
    (void)text;
    return NVML_ERROR_NOT_SUPPORTED; /* sensors that a simulated GPU lacks */
}

const smi_field_t smi_gpu_fields[] = {
    {"timestamp", NULL, smi_field_clock, 0},
    {"driver_version", NULL, read_system, SYSTEM_DRIVER},
    {"count", NULL, read_system, SYSTEM_COUNT},
    {"name gpu_name", NULL, smi_field_name, 0},
    {"serial gpu_serial", NULL, read_text, TEXT_SERIAL},
    {"uuid gpu_uuid", NULL, smi_field_uuid, 0},
    {"vbios_version", NULL, read_text, TEXT_VBIOS},
    {"pci.bus_id gpu_bus_id", NULL, smi_field_bus_id, 0},
    {"pci.domain", NULL, read_pci, PCI_DOMAIN},
    {"pci.bus", NULL, read_pci, PCI_BUS},
    {"pci.device", NULL, read_pci, PCI_DEVICE},
    {"pci.device_id", NULL, read_pci, PCI_DEVICE_ID},
    {"pci.sub_device_id", NULL, read_pci, PCI_SUB_ID},
    {"index", NULL, read_number, NUMBER_INDEX},
    {"module_id", NULL, read_number, NUMBER_MODULE},
    {"persistence_mode", NULL, read_persistence, 0},
    {"compute_mode", NULL, read_compute_mode, 0},
    {"compute_cap", NULL, read_compute_capability, 0},
    {"mig.mode.current", NULL, read_mig, NOW},
    {"mig.mode.pending", NULL, read_mig, PENDING},
    {"ecc.mode.current", NULL, read_ecc_mode, NOW},
    {"ecc.mode.pending", NULL, read_ecc_mode, PENDING},
    {"ecc.errors.uncorrected.volatile.total", NULL, read_ecc_errors, NVML_VOLATILE_ECC},
    {"ecc.errors.uncorrected.aggregate.total", NULL, read_ecc_errors, NVML_AGGREGATE_ECC},
    {"memory.total", "MiB", read_memory, MEMORY_TOTAL},
    {"memory.reserved", "MiB", read_memory, MEMORY_RESERVED},
    {"memory.used", "MiB", read_memory, MEMORY_USED},
    {"memory.free", "MiB", read_memory, MEMORY_FREE},
    {"utilization.gpu", "%", read_use, USE_GPU},
    {"utilization.memory", "%", read_use, USE_MEMORY},
    {"temperature.gpu", NULL, read_nothing, 0},
    {"power.draw", "W", read_nothing, 0},
    {"power.limit", "W", read_nothing, 0},
    {"fan.speed", "%", read_nothing, 0},
    {"pstate", NULL, read_nothing, 0},
    {"clocks.sm clocks.current.sm", "MHz", read_nothing, 0},
    {"clocks.mem clocks.current.memory", "MHz", read_nothing, 0},
};
const size_t smi_gpu_field_count = sizeof(smi_gpu_fields) / sizeof(smi_gpu_fields[0]);
