/* Pieces of JSON. */
#ifndef JSON_H
#define JSON_H

#include <stdint.h>
#include <stdio.h>

void json_text(FILE *out, const char *text);
/* "name": ..., with a comma behind. */
void json_field(FILE *out, const char *name, const char *text);
void json_bool(FILE *out, const char *name, int value);
/* SIM_NONE is null. */
void json_id(FILE *out, const char *name, uint32_t id, const char *end);

/* ---- show_mps.c ---- */
struct sim;
/* "mps": [...] */
void sim_put_mps(FILE *out, const struct sim *sim);

#endif
