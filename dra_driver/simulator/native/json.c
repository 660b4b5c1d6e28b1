/* Pieces of JSON, as show.c and show_mps.c put them together. */
#include "json.h"

#include "state.h"

void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

void json_field(FILE *out, const char *name, const char *text)
{
    fprintf(out, "\"%s\": ", name);
    json_text(out, text);
    fputs(", ", out);
}

void json_bool(FILE *out, const char *name, int value)
{
    fprintf(out, "\"%s\": %s, ", name, value ? "true" : "false");
}

void json_id(FILE *out, const char *name, uint32_t id, const char *end)
{
    if (id == SIM_NONE)
        fprintf(out, "\"%s\": null%s", name, end);
    else
        fprintf(out, "\"%s\": %u%s", name, id, end);
}
