/* nvidia-smi of the simulated node: the verbs without a word of their own. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "NVIDIA System Management Interface (of a simulated GPU node)\n\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
    "    -h,   --help                Print usage information and exit.\n"
    "          --version             Print version information and exit.\n"
    "    -L,   --list-gpus           Display a list of GPUs and MIG devices.\n"
    "    -i,   --id=                 Target specific GPUs: index, UUID or PCI bus ID.\n"
    "          --query-gpu=          Values about GPUs; see --help-query-gpu.\n"
    "          --query-compute-apps= Values about processes: pid, process_name, used_memory,\n"
    "                                gpu_uuid, gpu_name, gpu_bus_id, timestamp.\n"
    "          --format=             For queries: csv, with noheader and nounits where wished.\n"
    "    -pm,  --persistence-mode=   Set persistence mode: 0/DISABLED, 1/ENABLED\n"
    "    -c,   --compute-mode=       Set compute mode: 0/DEFAULT, 2/PROHIBITED, 3/EXCLUSIVE_PROCESS\n"
    "    -mig, --multi-instance-gpu= Set MIG mode: 0/DISABLED, 1/ENABLED\n"
    "    -r,   --gpu-reset           Reset the GPUs given by -i, or all.\n\n"
    "    mig                         Multi Instance GPU management. \"nvidia-smi mig -h\"\n"
    "    compute-policy              Compute policies. \"nvidia-smi compute-policy -h\"\n";

typedef struct {
    const char *ids, *query, *apps, *format, *persistence, *compute, *mig;
    bool help, version, list, help_query, reset;
} options_t;

typedef struct {
    const char *word;
    unsigned int value;
} word_t;

static const word_t switch_words[] = {{"0", 0}, {"DISABLED", 0}, {"1", 1}, {"ENABLED", 1}, {NULL, 0}};
static const word_t compute_words[] = {
    {"0", NVML_COMPUTEMODE_DEFAULT},
    {"DEFAULT", NVML_COMPUTEMODE_DEFAULT},
    {"2", NVML_COMPUTEMODE_PROHIBITED},
    {"PROHIBITED", NVML_COMPUTEMODE_PROHIBITED},
    {"3", NVML_COMPUTEMODE_EXCLUSIVE_PROCESS},
    {"EXCLUSIVE_PROCESS", NVML_COMPUTEMODE_EXCLUSIVE_PROCESS},
    {NULL, 0},
};

static int read_word(const word_t *words, const char *text, unsigned int *value)
{
    for (; words->word != NULL; words++) {
        if (strcmp(words->word, text) == 0) {
            *value = words->value;
            return 0;
        }
    }
    printf("\"%s\" is not a valid argument. Please run 'nvidia-smi -h'.\n", text);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static int set_persistence(const smi_gpu_t *gpu, unsigned int on)
{
    nvmlReturn_t result = nvmlDeviceSetPersistenceMode(gpu->device, (nvmlEnableState_t)on);
    if (result != NVML_SUCCESS) {
        printf("Unable to set persistence mode for GPU %s: %s\n", gpu->bus_id, nvmlErrorString(result));
        return (int)result;
    }
    printf("%s persistence mode for GPU %s.\n", on ? "Enabled" : "Disabled", gpu->bus_id);
    return 0;
}

static int set_compute_mode(const smi_gpu_t *gpu, unsigned int mode)
{
    nvmlReturn_t result = nvmlDeviceSetComputeMode(gpu->device, (nvmlComputeMode_t)mode);
    if (result != NVML_SUCCESS) {
        printf("Unable to set compute mode for GPU %s: %s\n", gpu->bus_id, nvmlErrorString(result));
        return (int)result;
    }
    printf("Set compute mode to %s for GPU %s.\n",
           mode == NVML_COMPUTEMODE_DEFAULT      ? "DEFAULT"
           : mode == NVML_COMPUTEMODE_PROHIBITED ? "PROHIBITED"
                                                 : "EXCLUSIVE_PROCESS",
           gpu->bus_id);
    return 0;
}

static int set_mig_mode(const smi_gpu_t *gpu, unsigned int on)
{
    nvmlReturn_t activation = NVML_SUCCESS;
    nvmlReturn_t result = nvmlDeviceSetMigMode(gpu->device, on, &activation);
    if (result != NVML_SUCCESS) {
        printf("Unable to %s MIG Mode for GPU %s: %s\n", on ? "enable" : "disable", gpu->bus_id,
               nvmlErrorString(result));
        return (int)result;
    }
    if (activation != NVML_SUCCESS) {
        printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n",
               on ? "enable" : "disable", gpu->bus_id, nvmlErrorString(activation));
        return 0;
    }
    printf("%s MIG Mode for GPU %s\n", on ? "Enabled" : "Disabled", gpu->bus_id);
    return 0;
}

static int reset_gpu(const smi_gpu_t *gpu, unsigned int unused)
{
    nvmlReturn_t result = sim_device_reset(gpu->device);
    (void)unused;
    if (result == NVML_ERROR_IN_USE) {
        printf("The following GPUs could not be reset:\n  GPU %s: In use by another client\n\n"
               "1 device is currently being used by one or more other processes. Please first kill "
               "all processes using this device.\n",
               gpu->bus_id);
        return (int)result;
    }
    if (result != NVML_SUCCESS) {
        printf("Unable to reset GPU %s: %s\n", gpu->bus_id, nvmlErrorString(result));
        return (int)result;
    }
    printf("GPU %s was successfully reset.\n", gpu->bus_id);
    return 0;
}

static int on_each(const smi_gpus_t *gpus, int (*act)(const smi_gpu_t *, unsigned int),
                   unsigned int value)
{
    int code = 0;
    if (gpus->count == 0) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    for (unsigned int i = 0; i < gpus->count; i++) {
        int one = act(&gpus->gpu[i], value);
        code = code != 0 ? code : one;
    }
    if (code == 0) {
        printf("All done.\n");
    }
    return code;
}

static int set(const smi_gpus_t *gpus, const options_t *wanted)
{
    unsigned int value = 0;
    int code = 0;
    if (wanted->persistence != NULL) {
        code = read_word(switch_words, wanted->persistence, &value);
        return code != 0 ? code : on_each(gpus, set_persistence, value);
    }
    if (wanted->compute != NULL) {
        code = read_word(compute_words, wanted->compute, &value);
        return code != 0 ? code : on_each(gpus, set_compute_mode, value);
    }
    code = read_word(switch_words, wanted->mig, &value);
    return code != 0 ? code : on_each(gpus, set_mig_mode, value);
}

static int print_version(void)
{
    char driver[SMI_TEXT] = "N/A";
    char library[SMI_TEXT] = "N/A";
    int cuda = 0;
    int code = smi_init();
    if (code != 0) {
        return code;
    }
    nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvmlSystemGetNVMLVersion(library, sizeof(library));
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\n"
           "CUDA Version        : %d.%d\n",
           driver, library, driver, cuda / 1000, cuda % 1000 / 10);
    return 0;
}

static int run(const options_t *wanted)
{
    smi_gpus_t gpus;
    int code = smi_init();
    code = code != 0 ? code : smi_select(wanted->ids, &gpus);
    if (code != 0) {
        return code;
    }
    if (wanted->list) {
        return smi_list(&gpus);
    }
    if (wanted->query != NULL) {
        return smi_query_gpus(&gpus, wanted->query, wanted->format);
    }
    if (wanted->apps != NULL) {
        return smi_query_processes(&gpus, wanted->apps, wanted->format);
    }
    if (wanted->reset) {
        return on_each(&gpus, reset_gpu, 0);
    }
    if (wanted->persistence != NULL || wanted->compute != NULL || wanted->mig != NULL) {
        return set(&gpus, wanted);
    }
    return smi_table(&gpus);
}

int main(int argc, char **argv)
{
    options_t w = {0};
    const smi_option_t options[] = {
        {"-h", "--help", NULL, &w.help, false},
        {NULL, "--version", NULL, &w.version, false},
        {"-L", "--list-gpus", NULL, &w.list, false},
        {"-i", "--id", &w.ids, NULL, false},
        {NULL, "--query-gpu", &w.query, NULL, false},
        {NULL, "--help-query-gpu", NULL, &w.help_query, false},
        {NULL, "--query-compute-apps", &w.apps, NULL, false},
        {NULL, "--format", &w.format, NULL, false},
        {"-pm", "--persistence-mode", &w.persistence, NULL, false},
        {"-c", "--compute-mode", &w.compute, NULL, false},
        {"-mig", "--multi-instance-gpu", &w.mig, NULL, false},
        {"-r", "--gpu-reset", NULL, &w.reset, false},
    };
    if (argc > 1 && strcmp(argv[1], "mig") == 0) {
        return smi_mig(argc - 2, argv + 2);
    }
    if (argc > 1 && strcmp(argv[1], "compute-policy") == 0) {
        return smi_policy(argc - 2, argv + 2);
    }
    int code = smi_parse(argc - 1, argv + 1, options, sizeof(options) / sizeof(*options));
    if (code != 0) {
        return code;
    }
    if (w.help) {
        fputs(help, stdout);
        return 0;
    }
    if (w.help_query) {
        return smi_help_query_gpus();
    }
    return w.version ? print_version() : run(&w);
}
