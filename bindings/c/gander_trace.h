// gander_trace.h: writes what one run of an RWKV-7 engine showed to a trace file, which gander reads. C99, or C++11.
//
//     gander_begin(&trace, &run);                                       // a gander_run: model, tokens, engine, ...
//     gander_add(&trace, "blocks.0.att.w", 3, shape, w);                // in each call: its rows are appended
//     gander_add(&trace, "blocks.0.state.wkv", 3, state_shape, state);  // a state: the last one stays
//     if (gander_write(&trace, "port.safetensors")) fprintf(stderr, "%s\n", trace.error);
//     gander_free(&trace);
//
// Names and axes of tensors: traces/taps.py of gander; the rules: traces/FORMAT.md. begin, add and write return 0, or
// -1 with the reason in trace.error. What follows a failed begin or add fails too: it is enough to look at write.
// SPDX-License-Identifier: Apache-2.0
#ifndef GANDER_TRACE_H
#define GANDER_TRACE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model;       // the checkpoint's fingerprint, which `gander inspect` prints
    const uint32_t *tokens;  // of all calls
    size_t token_count;
    const char *engine;      // its name, in UTF-8
    const char *dtype;       // what it computes in: float64, float32, bfloat16, float16
    const char *path;        // how the tokens go in: prefill, step, split:5+3
    const char *start, *attention, *quantized;  // NULL for zero, dense, none
} gander_run;

typedef struct { char *bytes; size_t size, room; } gander_buffer;

typedef struct gander_tensor {
    struct gander_tensor *next;
    char *name;
    int state;           // a later call replaces it; a tap gets the call's rows appended
    size_t rank, shape[4];
    gander_buffer data;  // as in the file
} gander_tensor;

typedef struct {
    size_t token_count;
    gander_buffer metadata;  // as in the file
    gander_tensor *first;    // in the file's order: that in which they first came
    int failed;              // -1: nothing more is done
    char error[512];         // what failed first
} gander_trace;

// What ends in _ is not for users. Macros, so that the compiler sees the formats.
#define gander_error_(trace, ...) \
    ((void)((trace)->failed || snprintf((trace)->error, sizeof (trace)->error, __VA_ARGS__)), (trace)->failed = -1)
#define gander_print_(trace, to, ...) \
    do { char s_[256]; gander_put_(trace, to, s_, (size_t)snprintf(s_, sizeof s_, __VA_ARGS__)); } while (0)

static inline void gander_put_(gander_trace *trace, gander_buffer *to, const void *from, size_t size) {
    if (trace->failed || !size) return;
    if (size > to->room - to->size) {
        size_t more = size > to->size ? size : to->size;  // twice the room at least: rows come one by one
        char *bytes = more <= SIZE_MAX - to->size ? (char *)realloc(to->bytes, to->size + more) : NULL;
        if (!bytes) { gander_error_(trace, "out of memory"); return; }
        to->bytes = bytes;
        to->room = to->size + more;
    }
    memcpy(to->bytes + to->size, from, size);
    to->size += size;
}

// UTF-8 as a JSON string, as Python's json writes it: ASCII, and \u with the digits of UTF-16 for the rest.
static inline void gander_put_quoted_(gander_trace *trace, gander_buffer *to, const char *text) {
    static const char special[] = "\b\f\n\r\t\"\\";
    static const long least[] = {0x110000, 0, 0x80, 0x800, 0x10000};  // of so many bytes; less has a shorter form
    gander_print_(trace, to, "\"");
    for (const unsigned char *s = (const unsigned char *)text; *s && !trace->failed;) {
        int bytes = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
        long code = *s++ & (bytes > 1 ? 0x7f >> bytes : 0x7f);
        for (int i = 1; i < bytes; i++)
            if (*s >> 6 == 2) code = code << 6 | (*s++ & 0x3f);
            else bytes = 0;
        const char *at = code < 0x80 ? strchr(special, (int)code) : NULL;
        if (code < least[bytes] || code > 0x10ffff || code >> 11 == 0x1b) gander_error_(trace, "not UTF-8: %s", text);
        else if (at) gander_print_(trace, to, "\\%c", "bfnrt\"\\"[at - special]);
        else if (0x20 <= code && code < 0x7f) gander_print_(trace, to, "%c", (int)code);
        else if (code < 0x10000) gander_print_(trace, to, "\\u%04lx", code);
        else gander_print_(trace, to, "\\u%04lx\\u%04lx", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    }
    gander_print_(trace, to, "\"");
}

static inline void gander_put_key_(gander_trace *trace, const char *key, const char *value) {
    if (!value || !*value) { gander_error_(trace, "the run has no %s", key); return; }
    gander_print_(trace, &trace->metadata, ", \"gander.%s\": ", key);
    gander_put_quoted_(trace, &trace->metadata, value);
}

static inline int gander_begin(gander_trace *trace, const gander_run *run) {
    gander_buffer *to = &trace->metadata;
    memset(trace, 0, sizeof *trace);
    trace->token_count = run->token_count;
    if (!run->token_count) return gander_error_(trace, "the run has no tokens");
    gander_print_(trace, to, "{\"gander.schema\": \"1\"");
    gander_put_key_(trace, "model", run->model);
    for (size_t i = 0; i < run->token_count; i++)
        gander_print_(trace, to, i ? ", %lu" : ", \"gander.tokens\": \"[%lu", (unsigned long)run->tokens[i]);
    gander_print_(trace, to, "]\"");
    gander_put_key_(trace, "engine", run->engine);
    gander_put_key_(trace, "dtype", run->dtype);
    gander_put_key_(trace, "path", run->path);
    gander_put_key_(trace, "start", run->start ? run->start : "zero");
    if (run->attention && strcmp(run->attention, "dense")) gander_put_key_(trace, "attention", run->attention);
    if (run->quantized && strcmp(run->quantized, "none")) gander_put_key_(trace, "quantized", run->quantized);
    gander_print_(trace, to, "}");
    return trace->failed;
}

static inline const char *gander_shape_(char text[100], size_t rank, const size_t *shape) {
    for (size_t i = 0, at = 0; i < rank; i++)
        at += (size_t)snprintf(text + at, 98 - at, i ? ", %zu" : "[%zu", shape[i]);
    return strcat(text, "]");
}

static inline int gander_add(gander_trace *trace, const char *name, size_t rank, const size_t *shape, const float *x) {
    if (trace->failed) return -1;
    if (rank < 1 || rank > 4) return gander_error_(trace, "%s has %zu axes, expected 1 to 4", name, rank);
    size_t bytes = sizeof *x, tail = (rank - 1) * sizeof *shape;
    for (size_t i = 0; i < rank; bytes *= shape[i++])
        if (shape[i] && bytes > SIZE_MAX / shape[i]) return gander_error_(trace, "%s is too large", name);
    gander_tensor **at = &trace->first;
    while (*at && strcmp((*at)->name, name)) at = &(*at)->next;
    gander_tensor *t = *at;
    if (!t) {
        t = *at = (gander_tensor *)calloc(1, sizeof *t + strlen(name) + 1);
        if (!t) return gander_error_(trace, "out of memory");
        t->name = strcpy((char *)(t + 1), name);
        t->state = strstr(name, ".state.") != NULL;
    } else if (t->state) {
        t->data.size = t->shape[0] = 0;
    } else if (rank != t->rank || memcmp(shape + 1, t->shape + 1, tail)) {
        char now[100], before[100];
        return gander_error_(trace, "%s has shape %s, but had %s before: only the number of rows may change", name,
                             gander_shape_(now, rank, shape), gander_shape_(before, t->rank, t->shape));
    }
    t->rank = rank;
    t->shape[0] += shape[0];
    memcpy(t->shape + 1, shape + 1, tail);
    gander_put_(trace, &t->data, x, bytes);
    const uint16_t one = 1;
    int big_endian = !*(const unsigned char *)&one;  // each number is turned round: the file is little-endian
    for (size_t i = 0; big_endian && !trace->failed && i < bytes; i++)
        t->data.bytes[t->data.size - bytes + i] = ((const char *)x)[i ^ 3];
    return trace->failed;
}

static inline int gander_write(gander_trace *trace, const char *path) {
    if (trace->failed) return -1;
    if (!trace->first) gander_error_(trace, "no tensor was added");
    gander_buffer header = {NULL, 0, 0}, partial = {NULL, 0, 0};
    size_t end = 0;
    gander_print_(trace, &header, "%8s{\"__metadata__\": ", "");  // eight bytes for the header's length
    gander_put_(trace, &header, trace->metadata.bytes, trace->metadata.size);
    for (gander_tensor *t = trace->first; t; end += t->data.size, t = t->next) {
        char shape[100];
        if (!t->state && t->shape[0] != trace->token_count)
            gander_error_(trace, "%s has %zu rows for %zu tokens", t->name, t->shape[0], trace->token_count);
        gander_print_(trace, &header, ", ");
        gander_put_quoted_(trace, &header, t->name);
        gander_print_(trace, &header, ": {\"dtype\": \"F32\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}",
                      gander_shape_(shape, t->rank, t->shape), end, end + t->data.size);
    }
    gander_print_(trace, &header, "}%*s", (int)(7 - header.size % 8), "");  // numbers from a multiple of eight on
    for (int i = 0; !trace->failed && i < 8; i++) header.bytes[i] = (char)((uint64_t)(header.size - 8) >> 8 * i);
    gander_put_(trace, &partial, path, strlen(path));
    gander_put_(trace, &partial, ".partial", sizeof ".partial");  // C99 has no process id: one writer a path at a time

    FILE *file = trace->failed ? NULL : fopen(partial.bytes, "wb");
    int ok = file && fwrite(header.bytes, 1, header.size, file) == header.size;
    for (gander_tensor *t = trace->first; ok && t; t = t->next)
        ok = fwrite(t->data.bytes, 1, t->data.size, file) == t->data.size;
    if (file) ok = !fclose(file) && ok;
#ifdef _WIN32
    if (ok) remove(path);  // rename replaces nothing there
#endif
    ok = ok && !rename(partial.bytes, path);
    if (!ok) gander_error_(trace, "cannot write %s: %s", path, strerror(errno));
    if (!ok && file) remove(partial.bytes);
    free(header.bytes);
    free(partial.bytes);
    trace->failed = 0;  // what is missing may be added, another path tried
    return ok ? 0 : -1;
}

static inline void gander_free(gander_trace *trace) {
    for (gander_tensor *t; (t = trace->first);) {
        trace->first = t->next;
        free(t->data.bytes);
        free(t);
    }
    free(trace->metadata.bytes);
}
#endif
