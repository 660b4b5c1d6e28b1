/* NVML: PCI address, topology, NVLink fabric. */
#include <stdio.h>
#include <string.h>

#include "call.h"

static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_DEVICE, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!pci)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const sim_gpu_t *gpu = &call.gpu->identity;
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu->pci_domain;
    pci->bus = gpu->pci_bus;
    pci->device = gpu->pci_device;
    pci->pciDeviceId = call.model->pci_device_id;
    pci->pciSubSystemId = call.model->pci_subsystem_id;
    sim_pci_text(gpu, pci->busId, sizeof pci->busId);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
             gpu->pci_domain & 0xffff, gpu->pci_bus & 0xff, gpu->pci_device & 0xff);
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci);
}

/* GPUs of one NUMA node have different root ports; without NUMA all hang below one. */
static nvmlGpuTopologyLevel_t distance(const struct sim_gpu *a, const struct sim_gpu *b)
{
    if (a == b)
        return NVML_TOPOLOGY_INTERNAL;
    if (a->identity.numa_node < 0 || b->identity.numa_node < 0)
        return NVML_TOPOLOGY_HOSTBRIDGE;
    return a->identity.numa_node == b->identity.numa_node ? NVML_TOPOLOGY_NODE
                                                          : NVML_TOPOLOGY_SYSTEM;
}

/* The slot of a second GPU, whose handle goes through the same checks. */
static nvmlReturn_t second_gpu(const char *function, nvmlDevice_t device, int *slot)
{
    struct call call = {0};
    nvmlReturn_t result = call_begin_on(&call, function, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    *slot = call.slot;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *pathInfo)
{
    struct call call = {0};
    int other = 0;
    nvmlReturn_t result = second_gpu(__func__, device2, &other);
    if (result == NVML_SUCCESS)
        result = call_begin_on(&call, __func__, READING, ON_GPU, device1);
    if (result != NVML_SUCCESS)
        return result;
    if (pathInfo)
        *pathInfo = distance(call.gpu, &call.core->gpu[other]);
    return call_end(&call, pathInfo ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *deviceArray)
{
    struct call call = {0};
    int slots[SIM_MAX_GPUS];
    unsigned int found = 0;
    nvmlReturn_t result = call_begin_on(&call, __func__, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!count)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    int visible = visible_gpus(&call, slots);
    for (int i = 0; i < visible; i++) {
        const struct sim_gpu *gpu = &call.core->gpu[slots[i]];
        if (gpu == call.gpu || distance(call.gpu, gpu) > level)
            continue;
        if (deviceArray && found < *count)
            deviceArray[found] = handle_of_gpu(gpu);
        found++;
    }
    if (!deviceArray || found < *count)
        *count = found;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t p2pIndex,
                                    nvmlGpuP2PStatus_t *p2pStatus)
{
    struct call call = {0};
    int other = 0;
    nvmlReturn_t result = second_gpu(__func__, device2, &other);
    if (result == NVML_SUCCESS)
        result = call_begin_on(&call, __func__, READING, ON_GPU, device1);
    if (result != NVML_SUCCESS)
        return result;
    if (!p2pStatus)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const struct sim_gpu *gpu = &call.core->gpu[other];
    int linked = call.model->abilities & sim_model_of(call.sim, gpu)->abilities & SIM_MODULE_ID;
    int mig = call.gpu->mig_current || gpu->mig_current;
    *p2pStatus = mig                                              ? NVML_P2P_STATUS_NOT_SUPPORTED
                 : linked || p2pIndex != NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_OK
                                                                  : NVML_P2P_STATUS_NOT_SUPPORTED;
    return call_end(&call, NVML_SUCCESS);
}

/* What the structures of all versions hold. On a single machine the fabric has no cluster UUID. */
static nvmlReturn_t fabric_begin(struct call *call, const char *function, nvmlDevice_t device,
                                 const void *info)
{
    nvmlReturn_t result = call_begin_on(call, function, READING, ON_GPU, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!info)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    return call->model->abilities & SIM_FABRIC ? NVML_SUCCESS
                                               : call_end(call, NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo)
{
    struct call call = {0};
    nvmlReturn_t result = fabric_begin(&call, __func__, device, gpuFabricInfo);
    if (result != NVML_SUCCESS)
        return result;
    memset(gpuFabricInfo, 0, sizeof *gpuFabricInfo);
    gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    return call_end(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    struct call call = {0};
    nvmlReturn_t result = fabric_begin(&call, __func__, device, gpuFabricInfo);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int version = gpuFabricInfo->version;
    if (version != nvmlGpuFabricInfo_v2 && version != nvmlGpuFabricInfo_v3)
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    size_t size = version == nvmlGpuFabricInfo_v2 ? sizeof(nvmlGpuFabricInfo_v2_t)
                                                  : sizeof(nvmlGpuFabricInfo_v3_t);
    memset(gpuFabricInfo, 0, size);
    gpuFabricInfo->version = version;
    gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    if (version == nvmlGpuFabricInfo_v3)
        gpuFabricInfo->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
    return call_end(&call, NVML_SUCCESS);
}
