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
 * Memory: PIECES_BYTES for a walk and a few bytes a thread, and 4 bytes a slot while an order is
 * guessed.  All of a walk's memory is resident from its beginning, so that a replay's growth is
 * the allocator's alone; nothing of the file is mapped for the same reason.
 *
 * Locks: none; read only once open.
 * Not here: the meaning of a whole program (compile.c, generations.c).
 */
#include "replay/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Every slot needs an op that fills it; a site is a place in a program.
enum { SLOTS_MAX = 1 << 30, SITES_MAX = 1 << 24 };
// What is read at a time.
enum { READ_OPS = 1 << 16, READ_RUNS = 1 << 14, PIECES_BYTES = 4 << 20, PIECE_OPS_MIN = 16 };

/* What the slots hold while an order is guessed. */
struct guess {
    struct stream_ops ops;
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

/* Reads it all; a file that shrinks under our hands ends the process. */
static void read_at(int fd, void *to, size_t bytes, uint64_t at) {
    unsigned char *next = to;
    while (bytes > 0) {
        ssize_t got = pread(fd, next, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            dprintf(2, "the recorded program cannot be read any more: %s\n",
                    got < 0 ? strerror(errno) : "it became shorter");
            exit(1);
        }
        next += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
}

static const char *open_file(const char *path, struct stream *stream, uint64_t *bytes) {
    stream->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (stream->fd < 0)
        return "cannot be opened";
    struct stat st;
    if (fstat(stream->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return "is not a regular file";
    *bytes = (uint64_t)st.st_size;
    if (*bytes < sizeof(struct qrp_header))
        return "is too short to be a replay program";
    return NULL;
}

/* Where the sections lie; header and threads into memory. */
static const char *lay_out(struct stream *stream, uint64_t bytes) {
    struct qrp_header *header = stream_memory(1, sizeof *header);
    read_at(stream->fd, header, sizeof *header, 0);
    if (memcmp(header->magic, QRP_MAGIC, sizeof header->magic) != 0)
        return "is not a replay program";
    if (header->version != QRP_VERSION)
        return "is of a newer version than this tool";
    uint64_t threads_bytes = (uint64_t)header->threads * sizeof(struct qrp_thread);
    uint64_t rest_bytes = bytes - sizeof *header;
    if (threads_bytes > rest_bytes ||
        header->ops > (rest_bytes - threads_bytes) / sizeof(struct qrp_op))
        return "is truncated";
    uint64_t slots_most = header->ops + (uint64_t)header->threads * QRP_SLOTS_SIDE_BY_SIDE;
    if (header->slots > slots_most || header->slots > SLOTS_MAX || header->sites > SITES_MAX)
        return "is damaged (S2: more slots or sites than can be)";
    rest_bytes -= threads_bytes + header->ops * sizeof(struct qrp_op);
    if (header->runs > rest_bytes / sizeof(struct qrp_run))
        return "is truncated";
    struct qrp_thread *threads = stream_memory(header->threads, sizeof *threads);
    read_at(stream->fd, threads, (size_t)threads_bytes, sizeof *header);
    stream->header = header;
    stream->threads = threads;
    stream->ops_at = sizeof *header + threads_bytes;
    stream->runs_at = stream->ops_at + header->ops * sizeof(struct qrp_op);
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
        if (thread->ops == 0)
            continue;
        struct qrp_op last;
        read_at(stream->fd, &last, sizeof last,
                stream->ops_at + (covered - 1) * sizeof(struct qrp_op));
        if (last.kind == QRP_SIZE_HI)
            return "is damaged (S1: a size without an op)";
    }
    return covered == stream->header->ops ? NULL : "is damaged (S1: ops of no thread)";
}

static bool op_sound(const struct qrp_op *op, const struct qrp_header *header) {
    return op->kind >= QRP_ALLOC && op->kind <= QRP_SIZE_HI && op->slot < header->slots &&
           op->site < header->sites && op->align_log2 <= 40;
}

static const char *check_ops(const struct stream *stream) {
    const struct qrp_header *header = stream->header;
    struct qrp_op *buffer = stream_memory(READ_OPS, sizeof *buffer);
    const char *wrong = NULL;
    for (uint64_t i = 0; i < header->ops && !wrong; i += READ_OPS) {
        size_t count = header->ops - i < READ_OPS ? (size_t)(header->ops - i) : READ_OPS;
        read_at(stream->fd, buffer, count * sizeof *buffer, stream->ops_at + i * sizeof *buffer);
        for (size_t k = 0; k < count && !wrong; k++)
            if (!op_sound(&buffer[k], header))
                wrong = "is damaged (S2: an op)";
    }
    stream_memory_give(buffer, READ_OPS, sizeof *buffer);
    return wrong;
}

/* The run at this place; the walk's buffer moves on when it has to. */
static const struct qrp_run *run_at(struct stream_walk *walk, size_t idx) {
    const struct stream *stream = walk->stream;
    if (stream->runs)
        return &stream->runs[idx];
    if (idx - walk->runs_first >= walk->runs_held) {
        size_t left = stream->runs_count - idx;
        walk->runs_first = idx;
        walk->runs_held = left < READ_RUNS ? left : READ_RUNS;
        read_at(stream->fd, walk->runs_buffer, walk->runs_held * sizeof(struct qrp_run),
                stream->runs_at + idx * sizeof(struct qrp_run));
    }
    return &walk->runs_buffer[idx - walk->runs_first];
}

static const char *check_runs(const struct stream *stream) {
    uint32_t threads = stream->header->threads;
    uint64_t *sums = stream_memory(threads, sizeof *sums);
    struct stream_walk walk;
    const char *wrong = NULL;
    stream_walk_begin(&walk, stream);
    for (size_t i = 0; i < stream->runs_count && !wrong; i++) {
        const struct qrp_run *run = run_at(&walk, i);
        if (run->thread >= threads)
            wrong = "is damaged (S3: a run of no thread)";
        else
            sums[run->thread] += run->ops;
    }
    stream_walk_end(&walk);
    for (uint32_t t = 0; t < threads && !wrong; t++)
        if (sums[t] != stream->threads[t].ops)
            wrong = "is damaged (S3: runs and ops differ)";
    stream_memory_give(sums, threads, sizeof *sums);
    return wrong;
}

/* Ops that fit into each thread's buffer. */
static uint32_t piece_ops(const struct stream *stream) {
    uint64_t longest = 1, each;
    for (uint32_t t = 0; t < stream->header->threads; t++)
        if (stream->threads[t].ops > longest)
            longest = stream->threads[t].ops;
    each = PIECES_BYTES / sizeof(struct qrp_op) / (stream->header->threads + 1ull);
    if (each < PIECE_OPS_MIN)
        each = PIECE_OPS_MIN;
    return (uint32_t)(each < longest ? each : longest);
}

static void ops_begin(struct stream_ops *ops, const struct stream *stream) {
    size_t threads = stream->header->threads;
    *ops = (struct stream_ops){.stream = stream, .room = piece_ops(stream)};
    ops->pieces = stream_memory(threads, sizeof *ops->pieces);
    ops->buffer = stream_memory(threads * ops->room, sizeof *ops->buffer);
    memset(ops->buffer, 0, threads * ops->room * sizeof *ops->buffer);
}

static void ops_end(struct stream_ops *ops) {
    size_t threads = ops->stream->header->threads;
    stream_memory_give(ops->pieces, threads, sizeof *ops->pieces);
    stream_memory_give(ops->buffer, threads * ops->room, sizeof *ops->buffer);
}

static const struct qrp_op *piece_read(struct stream_ops *ops, uint32_t thread, uint64_t idx) {
    const struct qrp_thread *range = &ops->stream->threads[thread];
    struct stream_piece *piece = &ops->pieces[thread];
    struct qrp_op *buffer = &ops->buffer[(size_t)thread * ops->room];
    uint64_t left = range->ops - idx;
    piece->first = idx;
    piece->count = left < ops->room ? (uint32_t)left : ops->room;
    read_at(ops->stream->fd, buffer, piece->count * sizeof *buffer,
            ops->stream->ops_at + (range->first_op + idx) * sizeof *buffer);
    return buffer;
}

/* The thread's op of that index, which must be one it has. */
static inline const struct qrp_op *op_at(struct stream_ops *ops, uint32_t thread, uint64_t idx) {
    const struct stream_piece *piece = &ops->pieces[thread];
    if (__builtin_expect(idx - piece->first >= piece->count, 0))
        return piece_read(ops, thread, idx);
    return &ops->buffer[(size_t)thread * ops->room + (size_t)(idx - piece->first)];
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
static uint32_t guess_advance(struct guess *guess, uint32_t thread, bool force) {
    const struct qrp_thread *range = &guess->ops.stream->threads[thread];
    uint32_t taken = 0;
    while (guess->next[thread] < range->ops && taken < UINT32_MAX - 1) {
        const struct qrp_op *op = op_at(&guess->ops, thread, guess->next[thread]);
        uint32_t step = 1;
        if (op->kind == QRP_SIZE_HI) {
            op = op_at(&guess->ops, thread, guess->next[thread] + 1);
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
    ops_begin(&guess.ops, stream);
    uint64_t left = stream->header->ops;
    bool force = false;
    while (left > 0) {
        uint64_t before = left;
        for (uint32_t t = 0; t < threads && left > 0; t++) {
            uint32_t taken = guess_advance(&guess, t, force);
            if (taken == 0)
                continue;
            guess_add_run(&guess, t, taken);
            left -= taken;
            force = false;
        }
        force = left == before;
    }
    ops_end(&guess.ops);
    stream_memory_give(guess.next, threads, sizeof(uint64_t));
    stream_memory_give(guess.holder, slots, sizeof(uint32_t));
    stream->runs = guess.runs;
    stream->runs_count = guess.runs_count;
    stream->order_guessed = threads > 1;
}

const char *stream_open(struct stream *stream, const char *path) {
    uint64_t bytes = 0;
    *stream = (struct stream){.fd = -1};
    const char *wrong = open_file(path, stream, &bytes);
    if (!wrong)
        wrong = lay_out(stream, bytes);
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
    walk->runs_buffer = stream_memory(READ_RUNS, sizeof *walk->runs_buffer);
    memset(walk->runs_buffer, 0, READ_RUNS * sizeof *walk->runs_buffer);
    ops_begin(&walk->ops, stream);
}

bool stream_walk_next(struct stream_walk *walk, struct stream_op *out) {
    uint64_t size_high = 0;
    for (;;) {
        while (walk->run_left == 0) {
            if (walk->run_idx == walk->stream->runs_count)
                return false;
            const struct qrp_run *run = run_at(walk, walk->run_idx++);
            walk->run_left = run->ops;
            walk->run_thread = run->thread;
            size_high = 0; // Q6, whatever a damaged file says
        }
        uint32_t thread = walk->run_thread;
        const struct qrp_op *op = op_at(&walk->ops, thread, walk->next[thread]++);
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
    ops_end(&walk->ops);
    stream_memory_give(walk->runs_buffer, READ_RUNS, sizeof *walk->runs_buffer);
    stream_memory_give(walk->next, walk->stream->header->threads, sizeof *walk->next);
}
