/* nvidia-smi: the fields that --query-gpu knows. */
#ifndef SMI_FIELDS_H
#define SMI_FIELDS_H

#include "smi.h"

/* Writes the value of one GPU into `text` (SMI_TEXT bytes), without its unit. */
typedef nvmlReturn_t (*smi_reader_t)(const smi_gpu_t *gpu, int which, char *text);

typedef struct {
    const char *names; /* the first is the header; others follow after spaces */
    const char *unit;  /* NULL: none */
    smi_reader_t read;
    int which; /* tells the fields of one reader apart */
} smi_field_t;

extern const smi_field_t smi_gpu_fields[];
extern const size_t smi_gpu_field_count;

nvmlReturn_t smi_field_clock(const smi_gpu_t *gpu, int which, char *text);
nvmlReturn_t smi_field_name(const smi_gpu_t *gpu, int which, char *text);
nvmlReturn_t smi_field_uuid(const smi_gpu_t *gpu, int which, char *text);
nvmlReturn_t smi_field_bus_id(const smi_gpu_t *gpu, int which, char *text);

#endif
