// SPDX-License-Identifier: MIT
/*
 * reader.c - a trace file's header, blocks and definitions.
 *
 *   file -> walk the blocks (T1) -> parts, sorted by thread and number -> meta stream here, events in merge.c
 *
 * Invariants:
 *   X1  no offset or length from the file is used before it is known to lie in the file
 *   X2  what cannot be read shortens the trace and adds to the note; it never ends the program
 *
 * Locks: none.  Not here: decoding of events (merge.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reader_internal.h"

#define PACKED_BYTES_MAX ((size_t)QTR_LIVE_BLOCK_BYTES * 2)

void qtr_note_add(struct qtr_reader *reader, const char *format, ...) {
    size_t used = strlen(reader->note);
    if (used > 0 && used + 3 < sizeof reader->note) {
        memcpy(reader->note + used, "; ", 3);
        used += 2;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->note + used, sizeof reader->note - used, format, arguments);
    va_end(arguments);
}

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    unsigned char *at = to;
    while (bytes > 0) {
        ssize_t n = pread(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static int fail(char *error, int code, const char *path, const char *why) {
    snprintf(error, QTR_ERROR_BYTES, "%s: %s", path, why);
    return -code;
}

static int header_check(struct qtr_reader *reader, const char *path, char *error) {
    struct qtr_header *header = &reader->header;
    size_t have = reader->file_bytes < sizeof *header ? (size_t)reader->file_bytes : sizeof *header;
    memset(header, 0, sizeof *header);
    if (have < sizeof header->magic || !read_at(reader->descriptor, header, have, 0) ||
        memcmp(header->magic, QTR_MAGIC, sizeof header->magic) != 0) {
        return fail(error, EINVAL, path, "not a Quire trace (make one with: quire record -- PROGRAM)");
    }
    if (header->version != QTR_VERSION && have >= 12) {
        snprintf(error, QTR_ERROR_BYTES, "%s: trace version %u; this quire reads version %u: use the quire that recorded it",
                 path, header->version, QTR_VERSION);
        return -ENOTSUP;
    }
    if (have < sizeof *header || header->header_bytes < sizeof *header ||
        header->header_bytes > reader->file_bytes) {
        return fail(error, EINVAL, path, "the trace is cut off within its header: nothing in it is readable");
    }
    if (header->header_bytes % 16 != 0 || header->tick_shift > 30 ||
        header->command_bytes > sizeof header->command || header->file_bytes < header->header_bytes) {
        return fail(error, EINVAL, path, "the trace's header is damaged: record it again");
    }
    return 0;
}

static bool part_add(struct qtr_reader *reader, struct qtr_part part) {
    if (reader->parts_count == reader->parts_room) {
        size_t room = reader->parts_room == 0 ? 1024 : reader->parts_room * 2;
        struct qtr_part *parts = reallocarray(reader->parts, room, sizeof *parts);
        if (parts == NULL) {
            return false;
        }
        reader->parts = parts;
        reader->parts_room = room;
    }
    reader->parts[reader->parts_count++] = part;
    return true;
}

/* One block's part, if it has one that makes sense.  False: out of memory. */
static bool block_take(struct qtr_reader *reader, const struct qtr_live *head, uint64_t offset) {
    const struct qtr_block *block = &head->block;
    struct qtr_part part = {.thread = block->thread, .first_tick = block->first_tick};
    if (block->kind == QTR_BLOCK_LIVE) {
        part.offset = offset + sizeof *head;
        part.part = (uint32_t)(head->part_and_used >> 32);
        part.raw_bytes = (uint32_t)head->part_and_used;
        if (part.raw_bytes > block->bytes - sizeof *head) {
            qtr_note_add(reader, "a damaged block at byte %llu was skipped", (unsigned long long)offset);
            return true;
        }
    } else if (block->kind == QTR_BLOCK_PACKED) {
        part.offset = offset + sizeof *block;
        part.part = block->part;
        part.packed_bytes = block->packed_bytes;
        part.raw_bytes = block->raw_bytes;
        if (part.packed_bytes == 0 || part.packed_bytes > block->bytes - sizeof *block ||
            part.packed_bytes > PACKED_BYTES_MAX || part.raw_bytes > QTR_STREAM_BYTES_MAX) {
            qtr_note_add(reader, "a damaged block at byte %llu was skipped", (unsigned long long)offset);
            return true;
        }
    } else {
        return true;
    }
    if (part.thread > reader->file_bytes / sizeof(struct qtr_block)) {  // each thread has a block with events
        qtr_note_add(reader, "a damaged block at byte %llu was skipped", (unsigned long long)offset);
        return true;
    }
    return part.raw_bytes <= sizeof(uint64_t) || part_add(reader, part);
}

static int blocks_walk(struct qtr_reader *reader) {
    uint64_t offset = reader->header.header_bytes, end = reader->readable_bytes;
    while (offset + sizeof(struct qtr_block) <= end) {
        struct qtr_live head;
        memset(&head, 0, sizeof head);
        size_t have = end - offset < sizeof head ? (size_t)(end - offset) : sizeof head;
        if (!read_at(reader->descriptor, &head, have, offset)) {
            break;
        }
        const struct qtr_block *block = &head.block;
        size_t least = block->kind == QTR_BLOCK_LIVE ? sizeof head : sizeof *block;
        if (block->magic != QTR_BLOCK_MAGIC || block->bytes % 16 != 0 || block->bytes < least ||
            block->bytes > QTR_LIVE_BLOCK_BYTES * 2) {
            qtr_note_add(reader, "damaged at byte %llu: what follows is not readable", (unsigned long long)offset);
            return 0;
        }
        if (block->bytes > end - offset) {
            break;
        }
        if (!block_take(reader, &head, offset)) {
            return -ENOMEM;
        }
        offset += block->bytes;
    }
    if (reader->header.file_bytes > reader->file_bytes) {
        qtr_note_add(reader, "the file is cut off at byte %llu of %llu", (unsigned long long)reader->file_bytes,
                     (unsigned long long)reader->header.file_bytes);
    }
    return 0;
}

/* By thread and part; a packed part before the live one that it replaces (T3). */
static int part_order(const void *left, const void *right) {
    const struct qtr_part *a = left, *b = right;
    if (a->thread != b->thread) {
        return a->thread < b->thread ? -1 : 1;
    }
    if (a->part != b->part) {
        return a->part < b->part ? -1 : 1;
    }
    return (a->packed_bytes == 0) - (b->packed_bytes == 0);
}

static void parts_settle(struct qtr_reader *reader) {
    if (reader->parts_count == 0) {
        return;
    }
    qsort(reader->parts, reader->parts_count, sizeof *reader->parts, part_order);
    size_t kept = 0;
    uint64_t gaps = 0;
    for (size_t i = 0; i < reader->parts_count; i++) {
        struct qtr_part *part = &reader->parts[i];
        bool same_thread = kept > 0 && reader->parts[kept - 1].thread == part->thread;
        if (same_thread && reader->parts[kept - 1].part == part->part) {
            continue;
        }
        gaps += part->part != (same_thread ? reader->parts[kept - 1].part + 1 : 0);
        reader->parts[kept++] = *part;
    }
    reader->parts_count = kept;
    if (gaps > 0) {
        qtr_note_add(reader, "%llu parts of threads' streams are missing", (unsigned long long)gaps);
    }
}

static void note_end(struct qtr_reader *reader) {
    static const char *const reasons[] = {
        [QTR_STOP_DISK_FULL] = "the disk was full: free some space or record elsewhere with -o",
        [QTR_STOP_LIMIT] = "the trace reached its largest size (--limit-bytes; QUIRE_RECORD_LIMIT; record_limit in QUIRE_CONF)",
        [QTR_STOP_FILE_SIZE] = "the file size limit (ulimit -f) was reached",
        [QTR_STOP_FILE_LOST] = "the trace file could not be written any more",
        [QTR_STOP_MEMORY] = "the recorder had no memory for its tables",
    };
    const struct qtr_header *header = &reader->header;
    if (header->stop != QTR_STOP_NONE) {
        qtr_note_add(reader, "recording stopped before the program ended: %s",
                     header->stop < sizeof reasons / sizeof *reasons ? reasons[header->stop] : "unknown reason");
    } else if (header->state == QTR_RECORDING && header->cpu_ns_before > 0) {
        qtr_note_add(reader, "recording has no end: the program ended first, quire was killed, or it is still recorded");
    } else if (header->state != QTR_EXITED && header->state != QTR_DETACHED) {
        qtr_note_add(reader, "the program has no exit mark: it crashed, was killed, became another program, or still runs");
    }
    if (header->lost_events > 0) {
        qtr_note_add(reader, "at least %llu events were lost", (unsigned long long)header->lost_events);
    }
}

static int reader_fill(struct qtr_reader *reader, const char *path, char *error) {
    struct stat status;
    reader->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (reader->descriptor < 0 || fstat(reader->descriptor, &status) != 0) {
        int code = errno;
        return fail(error, code, path, strerror(code));
    }
    if (!S_ISREG(status.st_mode)) {
        return fail(error, EINVAL, path, "not a regular file");
    }
    reader->file_bytes = (uint64_t)status.st_size;
    int rc = header_check(reader, path, error);
    if (rc != 0) {
        return rc;
    }
    reader->readable_bytes =
        reader->header.file_bytes < reader->file_bytes ? reader->header.file_bytes : reader->file_bytes;
    reader->zstd = ZSTD_createDCtx();
    reader->packed = malloc(PACKED_BYTES_MAX);
    if (reader->zstd == NULL || reader->packed == NULL || blocks_walk(reader) != 0) {
        return fail(error, ENOMEM, path, "no memory to read it");
    }
    parts_settle(reader);
    note_end(reader);
    return 0;
}

int qtr_open(struct qtr_reader **result, const char *path, char error[QTR_ERROR_BYTES]) {
    struct qtr_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        return fail(error, ENOMEM, path, "no memory to read it");
    }
    int rc = reader_fill(reader, path, error);
    if (rc != 0) {
        qtr_close(reader);
        return rc;
    }
    *result = reader;
    return 0;
}

void qtr_close(struct qtr_reader *reader) {
    if (reader == NULL) {
        return;
    }
    if (reader->descriptor >= 0) {
        close(reader->descriptor);
    }
    ZSTD_freeDCtx(reader->zstd);
    free(reader->packed);
    free(reader->parts);
    free(reader);
}

const struct qtr_header *qtr_reader_header(const struct qtr_reader *reader) {
    return &reader->header;
}

double qtr_tick_ns(const struct qtr_reader *reader) {
    const struct qtr_header *header = &reader->header;
    uint64_t ticks = header->last_tick - header->start_tick;
    uint64_t ns = header->last_monotonic_ns - header->start_monotonic_ns;
    double length = ticks > 0 ? (double)ns / (double)ticks : 0;
    return length > 0.01 && length < 1e6 ? length : 4.0;  // too short or damaged: a usual clock
}

const char *qtr_note(const struct qtr_reader *reader) {
    return reader->note;
}

bool qtr_complete(const struct qtr_reader *reader) {
    return reader->note[0] == '\0';
}

size_t qtr_part_read(struct qtr_reader *reader, const struct qtr_part *part, unsigned char *data) {
    if (part->packed_bytes == 0) {
        if (read_at(reader->descriptor, data, part->raw_bytes, part->offset)) {
            return part->raw_bytes;
        }
    } else if (read_at(reader->descriptor, reader->packed, part->packed_bytes, part->offset)) {
        size_t bytes = ZSTD_decompressDCtx(reader->zstd, data, QTR_STREAM_BYTES_MAX, reader->packed, part->packed_bytes);
        if (!ZSTD_isError(bytes) && bytes == part->raw_bytes) {
            return bytes;
        }
    }
    qtr_note_add(reader, "a damaged part at byte %llu was skipped", (unsigned long long)part->offset);
    return 0;
}

static bool record_visit(const struct qtr_meta *head, const struct qtr_meta_visitor *visitor) {
    if (head->kind == QTR_META_STACK) {
        const struct qtr_meta_stack *record = (const struct qtr_meta_stack *)(const void *)head;
        size_t count = (head->bytes - sizeof *record) / sizeof(uint64_t);
        if (visitor->stack != NULL && count > 0 && count <= QTR_FRAMES_MAX) {
            visitor->stack(visitor->arg, head->number, record->ip, (unsigned)count);
        }
        return count > 0 && count <= QTR_FRAMES_MAX;
    }
    if (head->kind == QTR_META_SLOTS && head->bytes == sizeof(struct qtr_meta_slots)) {
        if (visitor->slots != NULL) {
            visitor->slots(visitor->arg, (const struct qtr_meta_slots *)(const void *)head);
        }
        return true;
    }
    if (head->kind == QTR_META_POOL && head->bytes == sizeof(struct qtr_meta_pool)) {
        struct qtr_meta_pool record;
        memcpy(&record, head, sizeof record);
        record.name[sizeof record.name - 1] = '\0';
        if (visitor->pool != NULL) {
            visitor->pool(visitor->arg, head->number, record.name);
        }
        return true;
    }
    if (head->kind == QTR_META_MODULE) {
        const struct qtr_meta_module *record = (const struct qtr_meta_module *)(const void *)head;
        size_t text = offsetof(struct qtr_meta_module, text);
        if (head->bytes <= text || head->number >= head->bytes - text ||
            memchr(record->text + head->number, '\0', head->bytes - text - head->number) == NULL) {
            return false;
        }
        if (visitor->module != NULL) {
            visitor->module(visitor->arg, record, record->text + head->number);
        }
        return true;
    }
    if (head->kind == QTR_META_THREAD_NAME && head->bytes == sizeof(struct qtr_meta_thread)) {
        struct qtr_meta_thread record;
        memcpy(&record, head, sizeof record);
        record.name[sizeof record.name - 1] = '\0';
        if (visitor->thread != NULL) {
            visitor->thread(visitor->arg, &record);
        }
        return true;
    }
    return false;
}

static bool records_visit(const unsigned char *data, size_t bytes, const struct qtr_meta_visitor *visitor) {
    size_t at = sizeof(uint64_t);  // the base tick
    while (at + sizeof(struct qtr_meta) <= bytes) {
        const struct qtr_meta *head = (const struct qtr_meta *)(const void *)(data + at);
        if (head->bytes < sizeof *head || head->bytes % 8 != 0 || head->bytes > bytes - at ||
            !record_visit(head, visitor)) {
            return false;
        }
        at += head->bytes;
    }
    return at == bytes;
}

int qtr_meta_each(struct qtr_reader *reader, const struct qtr_meta_visitor *visitor) {
    unsigned char *data = aligned_alloc(16, QTR_LIVE_BLOCK_BYTES);
    if (data == NULL) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < reader->parts_count && reader->parts[i].thread == QTR_META_THREAD; i++) {
        size_t bytes = qtr_part_read(reader, &reader->parts[i], data);
        if (bytes > 0 && !records_visit(data, bytes, visitor)) {
            qtr_note_add(reader, "a damaged definition was skipped");
        }
    }
    free(data);
    return 0;
}
