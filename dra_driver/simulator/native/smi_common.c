/* nvidia-smi: arguments, selection of GPUs, drawing. */
#include "smi.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const smi_option_t *find_option(const char *argument, const smi_option_t *options,
                                       size_t count, const char **attached)
{
    const char *equals = strchr(argument, '=');
    size_t length = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
    for (size_t i = 0; i < count; i++) {
        const smi_option_t *option = &options[i];
        *attached = NULL;
        if (option->brief != NULL && strcmp(argument, option->brief) == 0) {
            return option;
        }
        if (strlen(option->full) == length && strncmp(argument, option->full, length) == 0) {
            *attached = equals != NULL ? equals + 1 : NULL;
            return option;
        }
    }
    return NULL;
}

int smi_parse(int argc, char **argv, const smi_option_t *options, size_t count)
{
    for (int i = 0; i < argc; i++) {
        if (strlen(argv[i]) >= SMI_ARGUMENT) {
            printf("Argument %d is too long.\n", i + 1);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
    }
    for (int i = 0; i < argc; i++) {
        const char *attached = NULL;
        const smi_option_t *option = find_option(argv[i], options, count, &attached);
        if (option == NULL) {
            printf("Option \"%s\" is not recognized. Please run 'nvidia-smi -h'.\n", argv[i]);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        if (option->present != NULL) {
            *option->present = true;
        }
        if (option->value == NULL) {
            if (attached != NULL) {
                printf("Option \"%s\" takes no value.\n", option->full);
                return NVML_ERROR_INVALID_ARGUMENT;
            }
            continue;
        }
        if (attached == NULL && !option->value_optional && i + 1 < argc) {
            attached = argv[++i];
        }
        if (attached == NULL && !option->value_optional) {
            printf("Missing value for option \"%s\".\n", argv[i]);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        *option->value = attached;
    }
    return 0;
}

int smi_init(void)
{
    nvmlReturn_t result = nvmlInit_v2();
    if (result == NVML_SUCCESS) {
        return 0;
    }
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
               "sure that the latest NVIDIA driver is installed and running.\n\n");
    } else {
        printf("Failed to initialize NVML: %s\n", nvmlErrorString(result));
    }
    return (int)result;
}

static bool describe(nvmlDevice_t device, smi_gpu_t *gpu)
{
    nvmlPciInfo_t pci;
    gpu->device = device;
    snprintf(gpu->bus_id, sizeof(gpu->bus_id), "N/A");
    if (nvmlDeviceGetIndex(device, &gpu->index) != NVML_SUCCESS) {
        return false;
    }
    if (nvmlDeviceGetPciInfo_v3(device, &pci) == NVML_SUCCESS) {
        snprintf(gpu->bus_id, sizeof(gpu->bus_id), "%s", pci.busId);
    }
    return true;
}

static nvmlReturn_t find_gpu(const char *id, nvmlDevice_t *device)
{
    unsigned int index;
    if (smi_number(id, &index)) {
        return nvmlDeviceGetHandleByIndex_v2(index, device);
    }
    if (strncmp(id, "GPU-", 4) == 0) {
        return nvmlDeviceGetHandleByUUID(id, device);
    }
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

static int select_named(const char *ids, smi_gpus_t *gpus)
{
    char copy[SMI_ARGUMENT];
    char *rest = copy;
    snprintf(copy, sizeof(copy), "%s", ids);
    for (char *id = strsep(&rest, ","); id != NULL; id = strsep(&rest, ",")) {
        nvmlDevice_t device;
        nvmlReturn_t result = find_gpu(id, &device);
        if (result == NVML_ERROR_GPU_IS_LOST) {
            printf("Unable to determine the device handle for GPU %s: %s\n", id, nvmlErrorString(result));
            return (int)result;
        }
        if (result != NVML_SUCCESS || gpus->count == SIM_MAX_GPUS ||
            !describe(device, &gpus->gpu[gpus->count])) {
            printf("No devices were found\n");
            return NVML_ERROR_NOT_FOUND;
        }
        gpus->count++;
    }
    return 0;
}

int smi_select(const char *ids, smi_gpus_t *gpus)
{
    unsigned int count = 0;
    gpus->count = 0;
    if (ids != NULL) {
        return select_named(ids, gpus);
    }
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    if (result != NVML_SUCCESS) {
        printf("Failed to count the GPUs: %s\n", nvmlErrorString(result));
        return (int)result;
    }
    for (unsigned int i = 0; i < count && i < SIM_MAX_GPUS; i++) {
        nvmlDevice_t device;
        result = nvmlDeviceGetHandleByIndex_v2(i, &device);
        if (result != NVML_SUCCESS) {
            printf("Unable to determine the device handle for GPU%u: %s\n", i, nvmlErrorString(result));
        } else if (describe(device, &gpus->gpu[gpus->count])) {
            gpus->count++;
        }
    }
    return 0;
}

bool smi_number(const char *text, unsigned int *number)
{
    char *end = NULL;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    unsigned long value = strtoul(text, &end, 10);
    *number = (unsigned int)value;
    return *end == '\0' && value <= 1000000;
}

void smi_mig_name(nvmlDevice_t mig, char *name, size_t size)
{
    char full[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    const char *part = NULL;
    if (nvmlDeviceGetName(mig, full, sizeof(full)) == NVML_SUCCESS) {
        part = strstr(full, "MIG ");
    }
    snprintf(name, size, "%s", part != NULL ? part : "MIG N/A");
}

void smi_row(int width, const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    printf("|%-*.*s|\n", width, width, line);
}

void smi_rule(char corner, char fill, const int *widths)
{
    putchar(fill == '=' ? '|' : '+');
    for (; *widths != 0; widths++) {
        for (int i = 0; i < *widths; i++) {
            putchar(fill);
        }
        if (widths[1] != 0) {
            putchar(corner);
        }
    }
    puts(fill == '=' ? "|" : "+");
}
