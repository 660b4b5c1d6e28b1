/* NVML: finding devices, and who they are. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "call.h"

int visible_gpus(const struct call *call, int slots[SIM_MAX_GPUS])
{
    int order[SIM_MAX_GPUS], count = 0;
    int all = sim_gpu_order(call->core, order);
    for (int i = 0; i < all; i++)
        if (sim_gpu_visible(call->sim, &call->core->gpu[order[i]]))
            slots[count++] = order[i];
    return count;
}

static nvmlReturn_t count_devices(const char *function, unsigned int *count)
{
    struct call call = {0};
    int slots[SIM_MAX_GPUS];
    nvmlReturn_t result = call_begin(&call, function, READING);
    if (result != NVML_SUCCESS)
        return result;
    if (count)
        *count = (unsigned int)visible_gpus(&call, slots);
    return call_end(&call, count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return count_devices(__func__, deviceCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    return count_devices(__func__, deviceCount);
}

/* Ends a search for a handle. The GPU is opened now, as real NVML does, and its own faults count. */
static nvmlReturn_t give_handle(struct call *call, nvmlReturn_t result, void *handle,
                                nvmlDevice_t *device)
{
    struct call opened = {0};
    result = call_end(call, device ? result : NVML_ERROR_INVALID_ARGUMENT);
    if (result != NVML_SUCCESS)
        return result;
    result = call_begin_on(&opened, call->function, READING, ON_DEVICE, handle);
    if (result != NVML_SUCCESS)
        return result;
    *device = handle;
    return call_end(&opened, NVML_SUCCESS);
}

static nvmlReturn_t device_by_index(const char *function, unsigned int index, nvmlDevice_t *device)
{
    struct call call = {0};
    int slots[SIM_MAX_GPUS];
    nvmlReturn_t result = call_begin(&call, function, READING);
    if (result != NVML_SUCCESS)
        return result;
    int count = visible_gpus(&call, slots);
    if (index >= (unsigned int)count)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(&call, NVML_SUCCESS, handle_of_gpu(&call.core->gpu[slots[index]]), device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return device_by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return device_by_index(__func__, index, device);
}

static void *find_mig(const struct call *call, const struct sim_gpu *gpu, const char *uuid)
{
    for (int i = 0; i < SIM_MAX_GIS; i++)
        for (int j = 0; j < SIM_MAX_CIS; j++) {
            const struct sim_ci *ci = &gpu->gi[i].ci[j];
            if (gpu->gi[i].serial && ci->serial && strcasecmp(ci->uuid, uuid) == 0 &&
                sim_ci_visible(call->sim, gpu, gpu->gi[i].id, ci->id))
                return handle_of_mig(ci);
        }
    return NULL;
}

/* The search looks at one GPU after the other and stops at one that is lost. */
static nvmlReturn_t find_uuid(const struct call *call, const char *uuid, void **handle)
{
    int slots[SIM_MAX_GPUS];
    int count = visible_gpus(call, slots);
    for (int i = 0; i < count; i++) {
        const struct sim_gpu *gpu = &call->core->gpu[slots[i]];
        if (gpu->lost)
            return NVML_ERROR_GPU_IS_LOST;
        *handle = strcasecmp(gpu->identity.uuid, uuid) == 0 ? handle_of_gpu(gpu)
                                                            : find_mig(call, gpu, uuid);
        if (*handle)
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct call call = {0};
    void *handle = NULL;
    nvmlReturn_t result = call_begin(&call, __func__, READING);
    if (result != NVML_SUCCESS)
        return result;
    result = uuid ? find_uuid(&call, uuid, &handle) : NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(&call, result, handle, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    if (!uuid || uuid->type != NVML_UUID_TYPE_ASCII)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

static nvmlReturn_t find_pci(const struct call *call, const char *bus_id, void **handle)
{
    int slots[SIM_MAX_GPUS];
    int count = visible_gpus(call, slots);
    unsigned int domain, bus, device, function = 0;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        const struct sim_gpu *gpu = &call->core->gpu[slots[i]];
        if (gpu->identity.pci_domain != domain || gpu->identity.pci_bus != bus ||
            gpu->identity.pci_device != device || function != 0)
            continue;
        *handle = handle_of_gpu(gpu);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t device_by_pci(const char *function, const char *bus_id, nvmlDevice_t *device)
{
    struct call call = {0};
    void *handle = NULL;
    nvmlReturn_t result = call_begin(&call, function, READING);
    if (result != NVML_SUCCESS)
        return result;
    result = bus_id ? find_pci(&call, bus_id, &handle) : NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(&call, result, handle, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return device_by_pci(__func__, pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    return device_by_pci(__func__, pciBusId, device);
}

/* The position of a device among the visible ones of its kind, -1: hidden. */
static int position_of(const struct call *call)
{
    int slots[SIM_MAX_GPUS];
    const struct sim_ci *ci;
    for (unsigned int i = 0; call->ci && (ci = visible_mig(call, i)); i++)
        if (ci == call->ci)
            return (int)i;
    int count = call->ci ? 0 : visible_gpus(call, slots);
    for (int i = 0; i < count; i++)
        if (slots[i] == call->slot)
            return i;
    return -1;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    int position = position_of(&call);
    if (!index || position < 0)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *index = (unsigned int)position;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct call call = {0};
    char text[SIM_NAME * 2 + 2];
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (call.ci)
        snprintf(text, sizeof text, "%s %s", call.model->name, ci_profile_of(&call)->name);
    else
        sim_copy(text, sizeof text, call.model->name);
    return call_end(&call, give_text(text, name, length));
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    const char *text = call.ci ? call.ci->uuid : call.gpu->identity.uuid;
    return call_end(&call, give_text(text, uuid, length));
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return call_end(&call, call.gpu->identity.serial[0]
                               ? give_text(call.gpu->identity.serial, serial, length)
                               : NVML_ERROR_NOT_SUPPORTED);
}

/* The many calls that give one number of the GPU a device is or lies on. */
static nvmlReturn_t give_number(struct call *call, nvmlReturn_t supported, unsigned int from,
                                unsigned int *to)
{
    if (to && supported == NVML_SUCCESS)
        *to = from;
    return call_end(call, to ? supported : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t needs(const struct call *call, uint32_t ability)
{
    return call->model->abilities & ability ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return give_number(&call, NVML_SUCCESS, (unsigned int)call.gpu->identity.minor, minorNumber);
}

nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *moduleId)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return give_number(&call, needs(&call, SIM_MODULE_ID), call.gpu->identity.module_id, moduleId);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return give_number(&call, NVML_SUCCESS, call.model->brand, (unsigned int *)type);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return give_number(&call, NVML_SUCCESS, call.model->architecture, arch);
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                             nvmlGpuVirtualizationMode_t *pVirtualMode)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    return give_number(&call, NVML_SUCCESS, NVML_GPU_VIRTUALIZATION_MODE_NONE,
                       (unsigned int *)pVirtualMode);
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    /* The node of the GPU's own memory, which only coherent systems give it; not the PCI node. */
    return give_number(&call, NVML_ERROR_NOT_SUPPORTED, 0, node);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!major || !minor)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)call.model->compute_major;
    *minor = (int)call.model->compute_minor;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!mode)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (mode->version != nvmlDeviceAddressingMode_v1)
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return give_number(&call,
                       call.model->addressing_mode == SIM_NONE ? NVML_ERROR_NOT_SUPPORTED
                                                               : NVML_SUCCESS,
                       call.model->addressing_mode, &mode->value);
}
