/* Values of MPS as people write them and as the daemon prints them. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mps.h"

int mps_read_amount(const char *text, uint64_t *bytes)
{
    char *unit;
    if (!isdigit((unsigned char)text[0]))
        return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &unit, 10);
    int shift = strcmp(unit, "G") == 0 || strcmp(unit, "GB") == 0   ? 30
                : strcmp(unit, "M") == 0 || strcmp(unit, "MB") == 0 ? 20
                                                                    : 0;
    if (errno || !shift || number > UINT64_MAX >> shift)
        return 0;
    *bytes = (uint64_t)number << shift;
    return 1;
}

int mps_read_percentage(const char *text, uint32_t *tenths)
{
    char *end;
    double value = strtod(text, &end);
    if (!isdigit((unsigned char)text[0]) || *end || !(value > 0 && value <= 100))
        return 0;
    *tenths = (uint32_t)(value * 10 + 0.5);
    return 1;
}

int mps_next_limit(const char **rest, char device[SIM_NAME], uint64_t *bytes)
{
    char entry[SIM_NAME * 2];
    size_t length = strcspn(*rest, ",");
    if (!**rest)
        return 0;
    sim_copy(entry, length < sizeof entry ? length + 1 : sizeof entry, *rest);
    *rest += length + ((*rest)[length] == ',');
    char *equals = strchr(entry, '=');
    device[0] = '\0';
    if (!equals)
        return 1;
    *equals = '\0';
    if (mps_read_amount(equals + 1, bytes))
        sim_copy(device, SIM_NAME, entry);
    return 1;
}

void mps_print_amount(uint64_t bytes, char *text, size_t size)
{
    if (bytes >> 30)
        snprintf(text, size, "%lluG", (unsigned long long)(bytes >> 30));
    else
        snprintf(text, size, "%lluM", (unsigned long long)(bytes >> 20));
}
