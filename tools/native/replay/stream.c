// SPDX-License-Identifier: MIT
/*
 * stream.c - opens a .qrp, distrusts every number in it, and puts its threads into one order.
 *
 *   thread 0:  a0 a1 a2 a3 ...          runs: (0,2) (1,3) (0,2) ...
 *   thread 1:  b0 b1 b2 ...             walk: a0 a1 b0 b1 b2 a2 a3 ...
 *
 * Invariants, checked once when the file is opened:
 *   S1  threads' op ranges lie one after the other and cover all ops
 *   S2  slots and sites are below the counts in the header; kinds are known
 *   S3  the runs of each thread add up to its ops
 *
 * Files without runs get an order by letting each thread go on as long as the state of the slots
 * allows (an alloc needs an empty slot, a free one that is filled, by an object of the same site).
 *
 * Locks: none; read only once open.
 * Not here: the meaning of a whole program (compile.c, generations.c).
 */
#include "replay/stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Every slot needs an op that fills it; a site is a place in a program.
enum { SLOTS_MAX = 1 << 30, SITES_MAX = 1 << 24 };

/* What the slots hold while an order is guessed. */
struct guess {
    uint64_t *next;   // by thread
    uint32_t *holder; // by slot: site + 1, 0 when empty
    struct qrp_run *runs;
    size_t runs_count;
    size_t runs_room;
};

void *stream_memory(size_t count, size_t bytes) {
    size_t total_bytes;
    if (__builtin_mul_overflow(count, bytes, &total_bytes) || total_bytes > SIZE_MAX / 2)
        total_bytes = SIZE_MAX / 2;
    void *memory = mmap(NULL, total_bytes ? total_bytes : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        dprintf(2, "out of memory: %zu MB for the recorded program\n", total_bytes >> 20);
        exit(1);
    }
    return memory;
}

void stream_memory_give(void *memory, size_t count, size_t bytes) {
    size_t total_bytes = count * bytes;
    munmap(memory, total_bytes ? total_bytes : 1);
}

static const char *map_file(const char *path, const unsigned char **data, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return "cannot be opened";
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return "is not a regular file";
    }
    *bytes = (size_t)st.st_size;
    if (*bytes < sizeof(struct qrp_header)) {
        close(fd);
        return "is too short to be a replay program";
    }
    void *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return "cannot be mapped";
    *data = map;
    return NULL;
}

/* Lays the sections over the mapped file. */
static const char *lay_out(struct stream *stream, const unsigned char *data, size_t bytes) {
    const struct qrp_header *header = (const void *)data;
    if (memcmp(header->magic, QRP_MAGIC, sizeof header->magic) != 0)
        return "is not a replay program";
    if (header->version != QRP_VERSION)
        return "is of a newer version than this tool";
    uint64_t threads_bytes = (uint64_t)header->threads * sizeof(struct qrp_thread);
    uint64_t rest_bytes = bytes - sizeof *header;
    if (threads_bytes > rest_bytes ||
        header->ops > (rest_bytes - threads_bytes) / sizeof(struct qrp_op))
        return "is truncated";
    if (header->slots > header->ops || header->slots > SLOTS_MAX || header->sites > SITES_MAX)
        return "is damaged (S2: more slots or sites than can be)";
    rest_bytes -= threads_bytes + header->ops * sizeof(struct qrp_op);
    if (header->runs > rest_bytes / sizeof(struct qrp_run))
        return "is truncated";
    stream->header = header;
    stream->threads = (const void *)(data + sizeof *header);
    stream->ops = (const void *)(data + sizeof *header + threads_bytes);
    stream->runs = (const void *)(stream->ops + header->ops);
    stream->runs_count = (size_t)header->runs;
    return NULL;
}

static const char *check_threads(const struct stream *stream) {
    uint64_t covered = 0;
    for (uint32_t t = 0; t < stream->header->threads; t++) {
        const struct qrp_thread *thread = &stream->threads[t];
        if (thread->first_op != covered || thread->ops > stream->header->ops - covered)
            return "is damaged (S1: a thread's ops)";
        covered += thread->ops;
        if (thread->ops && stream->ops[covered - 1].kind == QRP_SIZE_HI)
            return "is damaged (S1: a size without an op)";
    }
    return covered == stream->header->ops ? NULL : "is damaged (S1: ops of no thread)";
}

static const char *check_ops(const struct stream *stream) {
    const struct qrp_header *header = stream->header;
    for (uint64_t i = 0; i < header->ops; i++) {
        const struct qrp_op *op = &stream->ops[i];
        if (op->kind == QRP_SIZE_HI)
            continue;
        if (op->kind < QRP_ALLOC || op->kind > QRP_SIZE_HI || op->slot >= header->slots ||
            op->site >= header->sites || op->align_log2 > 40)
            return "is damaged (S2: an op)";
    }
    return NULL;
}

static const char *check_runs(const struct stream *stream) {
    uint32_t threads = stream->header->threads;
    uint64_t *sums = stream_memory(threads, sizeof *sums);
    const char *wrong = NULL;
    for (size_t i = 0; i < stream->runs_count && !wrong; i++) {
        if (stream->runs[i].thread >= threads)
            wrong = "is damaged (S3: a run of no thread)";
        else
            sums[stream->runs[i].thread] += stream->runs[i].ops;
    }
    for (uint32_t t = 0; t < threads && !wrong; t++)
        if (sums[t] != stream->threads[t].ops)
            wrong = "is damaged (S3: runs and ops differ)";
    stream_memory_give(sums, threads, sizeof *sums);
    return wrong;
}

static void guess_add_run(struct guess *guess, uint32_t thread, uint32_t ops) {
    if (guess->runs_count == guess->runs_room) {
        size_t room = guess->runs_room ? guess->runs_room * 2 : 1024;
        struct qrp_run *runs = stream_memory(room, sizeof *runs);
        if (guess->runs) {
            memcpy(runs, guess->runs, guess->runs_count * sizeof *runs);
            stream_memory_give(guess->runs, guess->runs_room, sizeof *runs);
        }
        guess->runs = runs;
        guess->runs_room = room;
    }
    guess->runs[guess->runs_count++] = (struct qrp_run){thread, ops};
}

/* Lets one thread go on; `force` takes its first op whatever the slots say.  Ops taken. */
static uint32_t guess_advance(struct guess *guess, const struct stream *stream, uint32_t thread,
                              bool force) {
    const struct qrp_thread *range = &stream->threads[thread];
    uint32_t taken = 0;
    while (guess->next[thread] < range->ops && taken < UINT32_MAX) {
        const struct qrp_op *op = &stream->ops[range->first_op + guess->next[thread]];
        uint32_t step = 1;
        if (op->kind == QRP_SIZE_HI) {
            op++;
            step = 2;
        }
        uint32_t *holder = &guess->holder[op->slot];
        bool births = op->kind != QRP_FREE && op->kind != QRP_REALLOC;
        bool allowed = births ? *holder == 0 : *holder == op->site + 1;
        if (!allowed && !(force && taken == 0))
            break;
        *holder = op->kind == QRP_FREE ? 0 : op->site + 1;
        guess->next[thread] += step;
        taken += step;
    }
    return taken;
}

static void guess_order(struct stream *stream) {
    uint32_t threads = stream->header->threads;
    size_t slots = (size_t)stream->header->slots;
    struct guess guess = {.next = stream_memory(threads, sizeof(uint64_t)),
                          .holder = stream_memory(slots, sizeof(uint32_t))};
    uint64_t left = stream->header->ops;
    bool force = false;
    while (left > 0) {
        uint64_t before = left;
        for (uint32_t t = 0; t < threads && left > 0; t++) {
            uint32_t taken = guess_advance(&guess, stream, t, force);
            if (taken == 0)
                continue;
            guess_add_run(&guess, t, taken);
            left -= taken;
            force = false;
        }
        force = left == before;
    }
    stream_memory_give(guess.next, threads, sizeof(uint64_t));
    stream_memory_give(guess.holder, slots, sizeof(uint32_t));
    stream->runs = guess.runs;
    stream->runs_count = guess.runs_count;
    stream->order_guessed = threads > 1;
}

const char *stream_open(struct stream *stream, const char *path) {
    const unsigned char *data = NULL;
    size_t bytes = 0;
    *stream = (struct stream){0};
    const char *wrong = map_file(path, &data, &bytes);
    if (!wrong)
        wrong = lay_out(stream, data, bytes);
    if (!wrong)
        wrong = check_threads(stream);
    if (!wrong)
        wrong = check_ops(stream);
    if (wrong)
        return wrong;
    if (stream->runs_count == 0)
        guess_order(stream);
    return check_runs(stream);
}

void stream_walk_begin(struct stream_walk *walk, const struct stream *stream) {
    *walk = (struct stream_walk){.stream = stream};
    walk->next = stream_memory(stream->header->threads, sizeof *walk->next);
}

bool stream_walk_next(struct stream_walk *walk, struct stream_op *out) {
    const struct stream *stream = walk->stream;
    uint64_t size_high = 0;
    for (;;) {
        while (walk->run_left == 0) {
            if (walk->run_idx == stream->runs_count)
                return false;
            walk->run_left = stream->runs[walk->run_idx++].ops;
        }
        uint32_t thread = stream->runs[walk->run_idx - 1].thread;
        const struct qrp_op *op =
            &stream->ops[stream->threads[thread].first_op + walk->next[thread]];
        walk->next[thread]++;
        walk->run_left--;
        walk->position++;
        if (op->kind == QRP_SIZE_HI) {
            size_high = (uint64_t)op->size << 32;
            continue;
        }
        *out = (struct stream_op){op, size_high | op->size, walk->position, thread};
        return true;
    }
}

void stream_walk_end(struct stream_walk *walk) {
    stream_memory_give(walk->next, walk->stream->header->threads, sizeof *walk->next);
}
