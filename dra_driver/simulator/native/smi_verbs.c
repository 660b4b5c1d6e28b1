/* nvidia-smi: the verbs `mig` and `compute-policy`. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char mig_help[] =
    "\n    mig -- Multi Instance GPU management.\n\n"
    "    Usage: nvidia-smi mig [options]\n\n"
    "    Options include:\n"
    "    [-h | --help]: Display help information.\n"
    "    [-i | --id]: GPUs: index, UUID or PCI bus ID, separated by commas.\n"
    "    [-gi | --gpu-instance-id]: GPU instance IDs, separated by commas.\n"
    "    [-ci | --compute-instance-id]: Compute instance IDs, separated by commas.\n"
    "    [-lgip | --list-gpu-instance-profiles]: List GPU instance profiles.\n"
    "    [-lgipp | --list-gpu-instance-possible-placements]: List possible placements.\n"
    "    [-C | --default-compute-instance]: With -cgi: make the default compute instance too.\n"
    "    [-cgi | --create-gpu-instance]: Create GPU instances of the given profiles: names or IDs,\n"
    "                                    each with :START where wished, separated by commas.\n"
    "    [-dgi | --destroy-gpu-instance]: Destroy GPU instances.\n"
    "    [-lgi | --list-gpu-instances]: List GPU instances.\n"
    "    [-lcip | --list-compute-instance-profiles]: List compute instance profiles.\n"
    "    [-cci | --create-compute-instance]: Create compute instances of the given profiles, or of\n"
    "                                        the default one.\n"
    "    [-dci | --destroy-compute-instance]: Destroy compute instances.\n"
    "    [-lci | --list-compute-instances]: List compute instances.\n\n";

typedef struct {
    const char *ids, *gi, *ci, *profiles, *compute_profiles;
    bool help, list_profiles, list_placements, with_compute, create, destroy, list;
    bool list_compute_profiles, create_compute, destroy_compute, list_compute;
} mig_options_t;

static int run_mig(const mig_options_t *wanted)
{
    smi_gpus_t gpus;
    int code = smi_init();
    code = code != 0 ? code : smi_select(wanted->ids, &gpus);
    if (code != 0) {
        return code;
    }
    if (wanted->list_profiles) {
        return smi_mig_list_profiles(&gpus);
    }
    if (wanted->list_placements) {
        return smi_mig_list_placements(&gpus);
    }
    if (wanted->create) {
        return smi_mig_create_instances(&gpus, wanted->profiles, wanted->with_compute);
    }
    if (wanted->destroy) {
        return smi_mig_destroy_instances(&gpus, wanted->gi);
    }
    if (wanted->list) {
        return smi_mig_list_instances(&gpus);
    }
    if (wanted->list_compute_profiles) {
        return smi_mig_list_compute_profiles(&gpus, wanted->gi);
    }
    if (wanted->create_compute) {
        return smi_mig_create_compute(&gpus, wanted->gi, wanted->compute_profiles);
    }
    if (wanted->destroy_compute) {
        return smi_mig_destroy_compute(&gpus, wanted->gi, wanted->ci);
    }
    return smi_mig_list_compute_instances(&gpus, wanted->gi);
}

/* -cci may stand without a value: the parser wants to know beforehand. */
static bool followed_by_value(int argc, char **argv, const char *option)
{
    for (int i = 0; i + 1 < argc; i++) {
        if (strcmp(argv[i], option) == 0) {
            return argv[i + 1][0] != '-';
        }
    }
    return false;
}

int smi_mig(int argc, char **argv)
{
    mig_options_t w = {0};
    bool cci_value = followed_by_value(argc, argv, "-cci") ||
                     followed_by_value(argc, argv, "--create-compute-instance");
    const smi_option_t options[] = {
        {"-h", "--help", NULL, &w.help, false},
        {"-i", "--id", &w.ids, NULL, false},
        {"-gi", "--gpu-instance-id", &w.gi, NULL, false},
        {"-ci", "--compute-instance-id", &w.ci, NULL, false},
        {"-C", "--default-compute-instance", NULL, &w.with_compute, false},
        {"-lgip", "--list-gpu-instance-profiles", NULL, &w.list_profiles, false},
        {"-lgipp", "--list-gpu-instance-possible-placements", NULL, &w.list_placements, false},
        {"-cgi", "--create-gpu-instance", &w.profiles, &w.create, false},
        {"-dgi", "--destroy-gpu-instance", NULL, &w.destroy, false},
        {"-lgi", "--list-gpu-instances", NULL, &w.list, false},
        {"-lcip", "--list-compute-instance-profiles", NULL, &w.list_compute_profiles, false},
        {"-cci", "--create-compute-instance", &w.compute_profiles, &w.create_compute, !cci_value},
        {"-dci", "--destroy-compute-instance", NULL, &w.destroy_compute, false},
        {"-lci", "--list-compute-instances", NULL, &w.list_compute, false},
    };
    int code = smi_parse(argc, argv, options, sizeof(options) / sizeof(*options));
    int verbs = w.list_profiles + w.list_placements + w.create + w.destroy + w.list +
                w.list_compute_profiles + w.create_compute + w.destroy_compute + w.list_compute;
    if (code != 0) {
        return code;
    }
    if (w.help || argc == 0) {
        fputs(mig_help, stdout);
        return 0;
    }
    if (verbs != 1) {
        printf("Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help.\n");
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return run_mig(&w);
}

/* ---- compute-policy ---- */

static const char *const interval_words[] = {"Default", "Short", "Medium", "Long"};

static const char policy_help[] =
    "\n    Compute Policy -- Control and list compute policies.\n\n"
    "    Usage: nvidia-smi compute-policy [options]\n\n"
    "    Options include:\n"
    "    [-i | --id]: GPU device ID's. Provide comma separated values for more than one device\n"
    "    [-l | --list]: List all compute policies\n"
    "    [ | --set-timeslice]: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n"
    "    [-h | --help]: Display help information\n\n";

static int list_policies(const smi_gpus_t *gpus)
{
    static const int widths[] = {37, 0};
    smi_rule('-', '-', widths);
    smi_row(37, " GPU compute policies:");
    smi_row(37, " GPU     Name           Value");
    smi_rule('=', '=', widths);
    for (unsigned int i = 0; i < gpus->count; i++) {
        unsigned int value = 0;
        nvmlReturn_t result = sim_get_timeslice(gpus->gpu[i].device, &value);
        smi_row(37, "%4u     %-14s %s", gpus->gpu[i].index, "Timeslice",
                result == NVML_SUCCESS ? interval_words[value & 3] : nvmlErrorString(result));
    }
    smi_rule('-', '-', widths);
    return 0;
}

static int set_timeslice(const smi_gpus_t *gpus, unsigned int value)
{
    for (unsigned int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = sim_set_timeslice(gpus->gpu[i].device, value);
        if (result != NVML_SUCCESS) {
            printf("Failed to set timeslice policy with value %s for GPU %s: %s\n",
                   interval_words[value], gpus->gpu[i].bus_id, nvmlErrorString(result));
            return (int)result;
        }
        printf("Successfully set timeslice policy with value %s for GPU %s.\n",
               interval_words[value], gpus->gpu[i].bus_id);
    }
    return 0;
}

int smi_policy(int argc, char **argv)
{
    const char *ids = NULL;
    const char *timeslice = NULL;
    bool help = false;
    bool list = false;
    unsigned int value = 0;
    smi_gpus_t gpus;
    const smi_option_t options[] = {
        {"-h", "--help", NULL, &help, false},
        {"-i", "--id", &ids, NULL, false},
        {"-l", "--list", NULL, &list, false},
        {NULL, "--set-timeslice", &timeslice, NULL, false},
    };
    int code = smi_parse(argc, argv, options, sizeof(options) / sizeof(*options));
    if (code != 0) {
        return code;
    }
    if (help || (!list && timeslice == NULL)) {
        fputs(policy_help, stdout);
        return 0;
    }
    if (timeslice != NULL && (!smi_number(timeslice, &value) || value > 3)) {
        printf("\"%s\" is not a time-slice: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n", timeslice);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    code = smi_init();
    code = code != 0 ? code : smi_select(ids, &gpus);
    if (code == 0 && gpus.count == 0) {
        printf("No devices were found\n");
        code = NVML_ERROR_NOT_FOUND;
    }
    if (code != 0) {
        return code;
    }
    return timeslice != NULL ? set_timeslice(&gpus, value) : list_policies(&gpus);
}
