/* Just enough JSON to find one string: no tree is built, every step is bounded by the text. */
#include "hook.h"

#include <string.h>

#define MAX_DEPTH 128

typedef struct {
    const char *at;
    const char *end;
} cursor_t;

typedef enum { MALFORMED, FITS, TOO_LONG } string_t;

typedef struct {
    char *at;
    size_t room; /* bytes that still fit, the final NUL not counted */
    bool full;
} sink_t;

static void put(sink_t *sink, unsigned char byte)
{
    if (sink->room == 0 || byte == '\0') { /* no name or path holds a NUL */
        sink->full = true;
        return;
    }
    *sink->at++ = (char)byte;
    sink->room--;
}

static void put_rune(sink_t *sink, uint32_t rune)
{
    if (rune < 0x80) {
        put(sink, (unsigned char)rune);
        return;
    }
    int rest = rune < 0x800 ? 1 : rune < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    put(sink, (unsigned char)(lead[rest] | (rune >> (6 * rest))));
    while (rest-- > 0)
        put(sink, (unsigned char)(0x80 | ((rune >> (6 * rest)) & 0x3f)));
}

static bool hex4(cursor_t *c, uint32_t *out)
{
    if (c->end - c->at < 4)
        return false;
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char digit = *c->at++;
        uint32_t step = digit >= '0' && digit <= '9'   ? (uint32_t)(digit - '0')
                        : digit >= 'a' && digit <= 'f' ? (uint32_t)(digit - 'a' + 10)
                        : digit >= 'A' && digit <= 'F' ? (uint32_t)(digit - 'A' + 10)
                                                       : 16;
        if (step > 15)
            return false;
        value = value * 16 + step;
    }
    *out = value;
    return true;
}

static bool unicode_escape(cursor_t *c, sink_t *sink)
{
    uint32_t rune, low;
    if (!hex4(c, &rune))
        return false;
    if (rune >= 0xd800 && rune < 0xdc00) { /* the first half of a pair */
        if (c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u')
            return false;
        c->at += 2;
        if (!hex4(c, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        rune = 0x10000 + ((rune - 0xd800) << 10) + (low - 0xdc00);
    }
    put_rune(sink, rune);
    return true;
}

static bool escape(cursor_t *c, sink_t *sink)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->at == c->end)
        return false;
    char kind = *c->at++;
    if (kind == 'u')
        return unicode_escape(c, sink);
    const char *found = kind == '\0' ? NULL : strchr(from, kind);
    if (found == NULL)
        return false;
    put(sink, (unsigned char)to[found - from]);
    return true;
}

/* Read a string from its first quote on; `room` 0 skips it. */
static string_t string(cursor_t *c, char *out, size_t room)
{
    sink_t sink = {.at = out, .room = room > 0 ? room - 1 : 0};
    if (c->at == c->end || *c->at != '"')
        return MALFORMED;
    c->at++;
    while (c->at < c->end && *c->at != '"') {
        char byte = *c->at++;
        if (byte != '\\')
            put(&sink, (unsigned char)byte);
        else if (!escape(c, &sink))
            return MALFORMED;
    }
    if (c->at == c->end)
        return MALFORMED;
    c->at++;
    if (room > 0)
        *sink.at = '\0';
    return sink.full ? TOO_LONG : FITS;
}

static void blank(cursor_t *c)
{
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4) != NULL)
        c->at++;
}

static bool take(cursor_t *c, char mark)
{
    blank(c);
    if (c->at == c->end || *c->at != mark)
        return false;
    c->at++;
    return true;
}

static bool skip(cursor_t *c, int depth);

static bool skip_members(cursor_t *c, char close, int depth)
{
    if (take(c, close))
        return true;
    do {
        if (close == '}') {
            blank(c);
            if (string(c, NULL, 0) == MALFORMED || !take(c, ':'))
                return false;
        }
        if (!skip(c, depth))
            return false;
    } while (take(c, ','));
    return take(c, close);
}

/* Pass over one value of any kind. */
static bool skip(cursor_t *c, int depth)
{
    blank(c);
    if (depth == MAX_DEPTH || c->at == c->end)
        return false;
    char first = *c->at;
    if (first == '"')
        return string(c, NULL, 0) != MALFORMED;
    if (first == '{' || first == '[') {
        c->at++;
        return skip_members(c, first == '{' ? '}' : ']', depth + 1);
    }
    const char *start = c->at;
    while (c->at < c->end && memchr(",]} \t\r\n", *c->at, 7) == NULL)
        c->at++;
    return c->at > start;
}

/* Go to the value of `key` in the object that comes next. */
static bool enter(cursor_t *c, const char *key)
{
    char name[64];
    if (!take(c, '{'))
        return false;
    do {
        blank(c);
        string_t kind = string(c, name, sizeof name);
        if (kind == MALFORMED || !take(c, ':'))
            return false;
        if (kind == FITS && strcmp(name, key) == 0)
            return true;
        if (!skip(c, 0))
            return false;
    } while (take(c, ','));
    return false;
}

bool json_string(const bytes_t *text, const char *const keys[], char *out, size_t room)
{
    cursor_t c = {.at = (const char *)text->data, .end = (const char *)text->data + text->size};
    for (; *keys != NULL; keys++)
        if (!enter(&c, *keys))
            return false;
    blank(&c);
    return string(&c, out, room) == FITS && out[0] != '\0';
}
