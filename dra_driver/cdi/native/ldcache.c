/*
 * ld.so.cache, by which glibc's loader finds libraries by their sonames (format: glibc,
 * sysdeps/generic/dl-cache.h). A fresh cache holds the old one's entries, ours before all others of
 * the same name, in the order that the loader's binary search expects.
 *
 *   header     48 bytes: magic, number of entries, size of the strings, byte order, where the
 *              extension is
 *   entries    24 bytes each: flags, key (soname), value (path), unused, hwcap
 *   strings    ended by NUL; key and value are offsets from the start of the header
 *   extension  who made the file; names of the glibc-hwcaps folders, which hwcap numbers
 *
 * The old file may come from a glibc before 2.32, which puts another, older table in front of all
 * this, and from a hostile image: nothing in it is believed without a look at its size.
 */
#include "hook.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "glibc-ld.so.cache1.1"
#define OLD_MAGIC "ld.so-1.7.0"
#define GENERATOR "gpu-dra-driver"
#define HEADER 48
#define ENTRY 24
#define OLD_HEADER 16
#define OLD_ENTRY 12
#define LITTLE_ENDIAN_BYTES 2
#define EXTENSION_MAGIC 0xeaa42174u
#define EXTENSION_HEADER 8
#define SECTION 16
#define TAG_GENERATOR 0
#define TAG_HWCAPS 1
#define HWCAP_NAMED (UINT64_C(1) << 62) /* the low 32 bits are the number of a name */
#define MAX_HWCAPS 1024
#define MAX_SIZE (64u << 20)

typedef struct {
    int32_t flags;
    uint32_t unused;
    uint64_t hwcap;
    const char *key;
    const char *value;
} entry_t;

typedef struct {
    entry_t *entries;
    size_t count;
    const char *hwcaps[MAX_HWCAPS];
    size_t hwcap_count;
} cache_t;

static uint32_t get32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t get64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Where the table that we know starts; false when the file holds none. */
static bool find_header(const bytes_t *file, size_t *start)
{
    size_t at = 0;
    if (file->size >= OLD_HEADER && memcmp(file->data, OLD_MAGIC, strlen(OLD_MAGIC)) == 0) {
        at = OLD_HEADER + (size_t)get32(file->data + OLD_HEADER - 4) * OLD_ENTRY;
        at = (at + 7) & ~(size_t)7;
    }
    *start = at;
    return file->size >= HEADER && at <= file->size - HEADER &&
           memcmp(file->data + at, MAGIC, strlen(MAGIC)) == 0;
}

/* The string at an offset from the header, NULL when it does not end within the file. */
static const char *string_at(const unsigned char *header, size_t size, uint32_t offset)
{
    if (offset >= size || memchr(header + offset, '\0', size - offset) == NULL)
        return NULL;
    return (const char *)header + offset;
}

/* Names of the glibc-hwcaps folders; none when the extension makes no sense. */
static void read_hwcaps(const unsigned char *file, size_t size, cache_t *cache)
{
    size_t at = get32(file + 32);
    if (at == 0 || at % 4 != 0 || at > size || size - at < EXTENSION_HEADER ||
        get32(file + at) != EXTENSION_MAGIC)
        return;
    size_t sections = get32(file + at + 4);
    if (sections > (size - at - EXTENSION_HEADER) / SECTION)
        return;
    for (size_t i = 0; i < sections; i++) {
        const unsigned char *section = file + at + EXTENSION_HEADER + i * SECTION;
        size_t offset = get32(section + 8), length = get32(section + 12);
        if (get32(section) != TAG_HWCAPS || offset > size || length > size - offset ||
            length / 4 > MAX_HWCAPS)
            continue;
        for (size_t name = 0; name < length / 4; name++) {
            const char *text = string_at(file, size, get32(file + offset + 4 * name));
            if (text == NULL)
                return; /* the numbers after it would shift */
            cache->hwcaps[cache->hwcap_count++] = text;
        }
        return;
    }
}

static bool is_replaced(const entry_t *entry, const library_t *libraries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (entry->flags == (int32_t)libraries[i].flags &&
            strcmp(entry->key, libraries[i].soname) == 0)
            return true;
    return false;
}

/* Take over the old entries, without those that ours replace and those that make no sense. */
static void read_entries(const unsigned char *header, size_t size, const library_t *libraries,
                         size_t count, cache_t *cache)
{
    size_t total = get32(header + 20);
    for (size_t i = 0; i < total; i++) {
        const unsigned char *at = header + HEADER + i * ENTRY;
        entry_t entry = {
            .flags = (int32_t)get32(at),
            .unused = get32(at + 12),
            .hwcap = get64(at + 16),
            .key = string_at(header, size, get32(at + 4)),
            .value = string_at(header, size, get32(at + 8)),
        };
        bool named = (entry.hwcap & HWCAP_NAMED) != 0;
        if (entry.key == NULL || entry.value == NULL || is_replaced(&entry, libraries, count) ||
            (named && (uint32_t)entry.hwcap >= cache->hwcap_count))
            continue;
        cache->entries[cache->count++] = entry;
    }
}

/* Number of the digits at `*at`, which goes behind them. The loader's int wraps as this does. */
static int32_t number(const char **at)
{
    uint32_t value = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++)
        value = value * 10 + (uint32_t)(**at - '0');
    return (int32_t)value;
}

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

/* Order of two sonames, as strcmp: but digits count as numbers and come after all else. */
static int compare_names(const char *one, const char *other)
{
    while (*one != '\0') {
        if (is_digit(*one) != is_digit(*other))
            return is_digit(*one) ? 1 : -1;
        if (is_digit(*one)) {
            int32_t left = number(&one), right = number(&other);
            if (left != right)
                return left < right ? -1 : 1;
        } else if (*one != *other) {
            return *one - *other;
        } else {
            one++;
            other++;
        }
    }
    return *one - *other;
}

/* Order in the file: names fall, then flags fall. */
static int compare_entries(const void *one, const void *other)
{
    const entry_t *left = one, *right = other;
    int order = compare_names(right->key, left->key);
    if (order != 0)
        return order;
    return left->flags == right->flags ? 0 : left->flags > right->flags ? -1 : 1;
}

/* Put the libraries, sorted, between the sorted old entries. */
static bool merge(cache_t *cache, const library_t *libraries, size_t count)
{
    entry_t *ours = calloc(count + 1, sizeof *ours);
    entry_t *all = calloc(cache->count + count + 1, sizeof *all);
    if (ours == NULL || all == NULL) {
        free(ours);
        free(all);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        ours[i] = (entry_t){.flags = (int32_t)libraries[i].flags,
                            .key = libraries[i].soname,
                            .value = libraries[i].path};
    qsort(ours, count, sizeof *ours, compare_entries);
    size_t mine = 0, theirs = 0, total = 0;
    while (mine < count || theirs < cache->count) {
        bool last = theirs == cache->count;
        if (mine < count &&
            (last || compare_entries(&ours[mine], &cache->entries[theirs]) <= 0))
            all[total++] = ours[mine++];
        else
            all[total++] = cache->entries[theirs++];
    }
    free(ours);
    free(cache->entries);
    cache->entries = all;
    cache->count = total;
    return true;
}

/* Writes one after the other into memory that is large enough. */
typedef struct {
    unsigned char *data;
    size_t size;
} writer_t;

static void put(writer_t *writer, const void *data, size_t size)
{
    memcpy(writer->data + writer->size, data, size);
    writer->size += size;
}

static void put32(writer_t *writer, uint32_t value)
{
    put(writer, &value, sizeof value);
}

static uint32_t put_string(writer_t *writer, const char *text)
{
    uint32_t offset = (uint32_t)writer->size;
    put(writer, text, strlen(text) + 1);
    return offset;
}

static size_t needed(const cache_t *cache)
{
    size_t size = HEADER + 4 + EXTENSION_HEADER + 2 * SECTION + sizeof GENERATOR;
    for (size_t i = 0; i < cache->count; i++)
        size += ENTRY + strlen(cache->entries[i].key) + strlen(cache->entries[i].value) + 2;
    for (size_t i = 0; i < cache->hwcap_count; i++)
        size += 4 + strlen(cache->hwcaps[i]) + 1;
    return size;
}

static void write_entries(const cache_t *cache, writer_t *table, writer_t *strings)
{
    for (size_t i = 0; i < cache->count; i++) {
        const entry_t *entry = &cache->entries[i];
        size_t key = strlen(entry->key), value = strlen(entry->value);
        uint32_t path = put_string(strings, entry->value);
        bool is_tail = value >= key && strcmp(entry->value + value - key, entry->key) == 0;
        put32(table, (uint32_t)entry->flags);
        put32(table, is_tail ? path + (uint32_t)(value - key) : put_string(strings, entry->key));
        put32(table, path);
        put32(table, entry->unused);
        put(table, &entry->hwcap, sizeof entry->hwcap);
    }
}

static void write_section(writer_t *writer, uint32_t tag, size_t offset, size_t size)
{
    put32(writer, tag);
    put32(writer, 0);
    put32(writer, (uint32_t)offset);
    put32(writer, (uint32_t)size);
}

static void write_extension(writer_t *writer, const uint32_t *names, size_t count)
{
    size_t start = writer->size + EXTENSION_HEADER + 2 * SECTION;
    put32(writer, EXTENSION_MAGIC);
    put32(writer, 2);
    write_section(writer, TAG_GENERATOR, start + 4 * count, strlen(GENERATOR));
    write_section(writer, TAG_HWCAPS, start, 4 * count);
    put(writer, names, 4 * count);
    put(writer, GENERATOR, strlen(GENERATOR));
}

static bool write_cache(const cache_t *cache, bytes_t *fresh)
{
    size_t room = needed(cache);
    unsigned char *data = room <= MAX_SIZE ? calloc(1, room) : NULL;
    if (data == NULL)
        return false;
    size_t strings_start = HEADER + ENTRY * cache->count;
    writer_t table = {data, HEADER}, rest = {data, strings_start}, head = {data, 0};
    static uint32_t names[MAX_HWCAPS];
    write_entries(cache, &table, &rest);
    for (size_t i = 0; i < cache->hwcap_count; i++)
        names[i] = put_string(&rest, cache->hwcaps[i]);
    size_t strings_end = rest.size;
    rest.size = (rest.size + 3) & ~(size_t)3;
    put(&head, MAGIC, strlen(MAGIC));
    put32(&head, (uint32_t)cache->count);
    put32(&head, (uint32_t)(strings_end - strings_start));
    put32(&head, LITTLE_ENDIAN_BYTES);
    put32(&head, (uint32_t)rest.size);
    write_extension(&rest, names, cache->hwcap_count);
    *fresh = (bytes_t){.data = data, .size = rest.size};
    return true;
}

bool ldcache_rebuild(const bytes_t *old, const library_t *libraries, size_t count, bytes_t *fresh)
{
    static cache_t cache;
    size_t start, size = 0, total = 0;
    if (find_header(old, &start)) {
        size = old->size - start;
        total = get32(old->data + start + 20);
    }
    if (size == 0 || total > (size - HEADER) / ENTRY) {
        total = 0;
        if (old->size > 0)
            note("the image's ld.so.cache makes no sense and is replaced");
    }
    cache = (cache_t){.entries = calloc(total + 1, sizeof(entry_t))};
    if (total > 0 && cache.entries != NULL) {
        if (start == 0) /* the older double format has no extension */
            read_hwcaps(old->data, size, &cache);
        read_entries(old->data + start, size, libraries, count, &cache);
    }
    bool fine = cache.entries != NULL && merge(&cache, libraries, count) &&
                write_cache(&cache, fresh);
    free(cache.entries);
    if (!fine)
        errno = ENOMEM;
    return fine;
}
