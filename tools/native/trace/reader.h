// SPDX-License-Identifier: MIT
/*
 * reader.h - reading a trace: open and check it, then its definitions, then its events in the order they happened.
 *
 *   qtr_open -> qtr_meta_each (stacks, modules, threads) -> qtr_merge_begin -> qtr_merge_next ... -> qtr_close
 *
 * Any file may be given: nothing in it is believed before it is checked, and what is readable of a damaged or cut
 * trace is returned, with a note that says what is missing.  Memory: the map of the file, 40 bytes a block, and 64 KiB
 * for each thread that is alive at the current point of the merge.
 *
 * Errors: 0 or -errno, with one line for the user in `error`.
 * Not thread-safe: a reader belongs to one thread.
 */
#ifndef QUIRE_TRACE_READER_H
#define QUIRE_TRACE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QTR_ERROR_BYTES 512

struct qtr_reader;
struct qtr_merge;

struct qtr_event {
    uint64_t tick;
    uint64_t address;
    uint64_t size;
    uint32_t kind;  // enum qtr_kind
    uint32_t thread;
    uint32_t stack;
    uint32_t align_log2;
};

struct qtr_meta_visitor {  // members may be NULL
    void (*stack)(void *arg, uint32_t id, const uint64_t *ips, unsigned count);
    void (*module)(void *arg, const struct qtr_meta_module *module, const char *path);
    void (*thread)(void *arg, const struct qtr_meta_thread *thread);
    void *arg;
    void (*slots)(void *arg, const struct qtr_meta_slots *slots);
    void (*pool)(void *arg, uint32_t stack, const char *name);
};

int qtr_open(struct qtr_reader **reader, const char *path, char error[QTR_ERROR_BYTES]);
void qtr_close(struct qtr_reader *reader);

const struct qtr_header *qtr_reader_header(const struct qtr_reader *reader);
double qtr_tick_ns(const struct qtr_reader *reader);  // length of a tick

/* What is missing from the trace, in one line; "" when nothing is.  Complete only after the last event. */
const char *qtr_note(const struct qtr_reader *reader);
bool qtr_complete(const struct qtr_reader *reader);

int qtr_meta_each(struct qtr_reader *reader, const struct qtr_meta_visitor *visitor);

int qtr_merge_begin(struct qtr_reader *reader, struct qtr_merge **merge);
bool qtr_merge_next(struct qtr_merge *merge, struct qtr_event *event);  // false: no more
void qtr_merge_end(struct qtr_merge *merge);

#ifdef __cplusplus
}
#endif

#endif
