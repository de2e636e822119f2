// SPDX-License-Identifier: MIT
/*
 * stream.h - a recorded program (.qrp), and a walk over it in the order it happened.
 *
 *   file:   header | threads | ops of thread 0 | ops of thread 1 | ... | runs: (thread, ops) ...
 *   walk:   takes the next op of the thread whose run it is; reads a piece of each thread at a time
 *
 * The header and the threads are in memory, ops and runs are read as they are needed: a walk takes
 * the same few megabytes whatever the length of the file.
 * Not here: what an op does (compile.c), where the file comes from (the analyser).
 */
#pragma once

#include "trace/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream {
    const struct qrp_header *header;
    const struct qrp_thread *threads;
    const struct qrp_run *runs; // guessed; NULL: those of the file
    size_t runs_count;
    uint64_t ops_at; // in the file, bytes
    uint64_t runs_at;
    int fd;
    bool order_guessed; // the file has no runs: any order that the slots allow
};

/*
 * One op with its 64-bit size put together; `op` is the op itself, never a size prefix, and stays
 * until the walk's next step.
 */
struct stream_op {
    const struct qrp_op *op;
    uint64_t size_bytes;
    uint64_t position; // in the global order
    uint32_t thread;
};

/* A piece of one thread's ops. */
struct stream_piece {
    uint64_t first; // index of the first op in the buffer
    uint32_t count; // in the buffer
};

/* Ops by thread and index, for readers that go forward in each thread. */
struct stream_ops {
    const struct stream *stream;
    struct stream_piece *pieces; // by thread
    struct qrp_op *buffer;       // `room` ops for each thread
    uint32_t room;
};

struct stream_walk {
    const struct stream *stream;
    struct stream_ops ops;
    uint64_t *next; // by thread: index of its next op
    struct qrp_run *runs_buffer;
    size_t runs_first; // index of the first run in the buffer
    size_t runs_held;
    size_t run_idx;
    uint32_t run_thread;
    uint32_t run_left;
    uint64_t position;
};

/* Opens and checks the file.  NULL when sound, else why it cannot be used (static text). */
const char *stream_open(struct stream *stream, const char *path);

void stream_walk_begin(struct stream_walk *walk, const struct stream *stream);
bool stream_walk_next(struct stream_walk *walk, struct stream_op *out);
void stream_walk_end(struct stream_walk *walk);

/* Zeroed memory, not from the malloc under test; ends the process when there is none. */
void *stream_memory(size_t count, size_t bytes);
void stream_memory_give(void *memory, size_t count, size_t bytes);
