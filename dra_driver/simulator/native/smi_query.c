/* nvidia-smi: --query-gpu and --query-compute-apps, as comma-separated values. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

#include "smi_fields.h"

#define MAX_FIELDS 64
#define MAX_PROCESSES 512
#define MIB(bytes) ((unsigned long long)(bytes) >> 20)

typedef struct {
    bool header;
    bool units;
} smi_csv_t;

static int parse_format(const char *format, smi_csv_t *csv)
{
    char copy[SMI_ARGUMENT];
    char *rest = copy;
    bool named = false;
    *csv = (smi_csv_t){.header = true, .units = true};
    snprintf(copy, sizeof(copy), "%s", format != NULL ? format : "");
    for (char *word = strsep(&rest, ","); word != NULL; word = strsep(&rest, ",")) {
        if (strcmp(word, "csv") == 0) {
            named = true;
        } else if (strcmp(word, "noheader") == 0) {
            csv->header = false;
        } else if (strcmp(word, "nounits") == 0) {
            csv->units = false;
        } else if (word[0] != '\0') {
            printf("\"%s\" is not a valid format: csv, noheader, nounits\n", word);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
    }
    if (!named) {
        printf("\"--format=\" with \"csv\" is required for a query\n");
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return 0;
}

/* Whether `name` is one of the field's names, which are separated by spaces. */
static bool has_name(const smi_field_t *field, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = field->names; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, name, length) == 0 && (at[length] == ' ' || at[length] == '\0')) {
            return length > 0;
        }
    }
    return false;
}

static int pick_fields(const char *wanted, const smi_field_t *all, size_t total,
                       const smi_field_t **picked, size_t *count)
{
    char copy[SMI_ARGUMENT];
    char *rest = copy;
    *count = 0;
    snprintf(copy, sizeof(copy), "%s", wanted != NULL ? wanted : "");
    for (char *name = strsep(&rest, ","); name != NULL; name = strsep(&rest, ",")) {
        size_t i = 0;
        name += strspn(name, " ");
        while (i < total && !has_name(&all[i], name)) {
            i++;
        }
        if (i == total || *count == MAX_FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        picked[(*count)++] = &all[i];
    }
    return 0;
}

static void print_header(const smi_field_t **fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(fields[i]->names, " ");
        printf("%s%.*s", i > 0 ? ", " : "", (int)length, fields[i]->names);
        if (fields[i]->unit != NULL) {
            printf(" [%s]", fields[i]->unit);
        }
    }
    putchar('\n');
}

static void print_value(const smi_field_t *field, nvmlReturn_t result, const char *text,
                        const smi_csv_t *csv)
{
    if (result == NVML_ERROR_GPU_IS_LOST) {
        printf("[GPU is lost]");
    } else if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND) {
        printf("[N/A]");
    } else if (result != NVML_SUCCESS) {
        printf("[%s]", nvmlErrorString(result));
    } else if (field->unit != NULL && csv->units) {
        printf("%s %s", text, field->unit);
    } else {
        printf("%s", text);
    }
}

int smi_query_gpus(const smi_gpus_t *gpus, const char *fields, const char *format)
{
    const smi_field_t *picked[MAX_FIELDS];
    size_t count;
    smi_csv_t csv;
    int code = parse_format(format, &csv);
    if (code == 0) {
        code = pick_fields(fields, smi_gpu_fields, smi_gpu_field_count, picked, &count);
    }
    if (code != 0) {
        return code;
    }
    if (gpus->count == 0) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    if (csv.header) {
        print_header(picked, count);
    }
    for (unsigned int i = 0; i < gpus->count; i++) {
        for (size_t j = 0; j < count; j++) {
            char text[SMI_TEXT] = "";
            nvmlReturn_t result = picked[j]->read(&gpus->gpu[i], picked[j]->which, text);
            printf("%s", j > 0 ? ", " : "");
            print_value(picked[j], result, text, &csv);
        }
        putchar('\n');
    }
    return 0;
}

int smi_help_query_gpus(void)
{
    puts("List of valid properties to query for the switch \"--query-gpu\":\n");
    for (size_t i = 0; i < smi_gpu_field_count; i++) {
        printf("\"");
        for (const char *at = smi_gpu_fields[i].names; *at != '\0'; at++) {
            if (*at == ' ') {
                printf("\" or \"");
            } else {
                putchar(*at);
            }
        }
        printf("\"%s%s\n", smi_gpu_fields[i].unit != NULL ? ", in " : "",
               smi_gpu_fields[i].unit != NULL ? smi_gpu_fields[i].unit : "");
    }
    return 0;
}

/* ---- processes ---- */

enum { APP_PID, APP_MEMORY, APP_NAME };

static const smi_field_t app_fields[] = {
    {"timestamp", NULL, smi_field_clock, 0},
    {"gpu_name", NULL, smi_field_name, 0},
    {"gpu_uuid", NULL, smi_field_uuid, 0},
    {"gpu_bus_id", NULL, smi_field_bus_id, 0},
    {"pid", NULL, NULL, APP_PID},
    {"process_name name", NULL, NULL, APP_NAME},
    {"used_gpu_memory used_memory", "MiB", NULL, APP_MEMORY},
};

static void process_text(const nvmlProcessInfo_t *process, int which, char *text)
{
    if (which == APP_PID) {
        snprintf(text, SMI_TEXT, "%u", process->pid);
    } else if (which == APP_MEMORY) {
        snprintf(text, SMI_TEXT, "%llu", MIB(process->usedGpuMemory));
    } else if (nvmlSystemGetProcessName(process->pid, text, SMI_TEXT) != NVML_SUCCESS) {
        snprintf(text, SMI_TEXT, "[Not Found]");
    }
}

/* Also clients of MPS. */
static unsigned int running_processes(const smi_gpu_t *gpu, nvmlProcessInfo_t *found)
{
    unsigned int own = MAX_PROCESSES, clients = 0;
    if (nvmlDeviceGetComputeRunningProcesses_v3(gpu->device, &own, found) != NVML_SUCCESS) {
        own = 0;
    }
    clients = MAX_PROCESSES - own;
    if (nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu->device, &clients, found + own) !=
        NVML_SUCCESS) {
        clients = 0;
    }
    return own + clients;
}

int smi_query_processes(const smi_gpus_t *gpus, const char *fields, const char *format)
{
    const smi_field_t *picked[MAX_FIELDS];
    size_t count;
    smi_csv_t csv;
    int code = parse_format(format, &csv);
    if (code == 0) {
        code = pick_fields(fields, app_fields, sizeof(app_fields) / sizeof(*app_fields), picked,
                           &count);
    }
    if (code != 0) {
        return code;
    }
    if (csv.header) {
        print_header(picked, count);
    }
    for (unsigned int i = 0; i < gpus->count; i++) {
        nvmlProcessInfo_t found[MAX_PROCESSES];
        unsigned int running = running_processes(&gpus->gpu[i], found);
        for (unsigned int process = 0; process < running; process++) {
            for (size_t j = 0; j < count; j++) {
                char text[SMI_TEXT] = "";
                nvmlReturn_t result = NVML_SUCCESS;
                if (picked[j]->read != NULL) {
                    result = picked[j]->read(&gpus->gpu[i], picked[j]->which, text);
                } else {
                    process_text(&found[process], picked[j]->which, text);
                }
                printf("%s", j > 0 ? ", " : "");
                print_value(picked[j], result, text, &csv);
            }
            putchar('\n');
        }
    }
    return 0;
}
