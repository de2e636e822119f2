// SPDX-License-Identifier: MIT
/*
 * merge.c - the events of all threads in the order they happened.
 *
 *   parts sorted by (thread, number):  | 1.0 1.1 1.2 | 2.0 | 3.0 3.1 |       a stream is a range of parts
 *   heap of streams by next tick:        only those whose first tick is reached have a buffer
 *
 * Invariants:
 *   E1  events come out with ticks that never fall, and each thread's in its own order
 *   E2  a stream holds a buffer only from its first to its last event: memory follows the threads alive at a time
 *
 * Locks: none.  Not here: blocks and parts (reader.c), what events mean (the analyser).
 */
#include <errno.h>
#include <stdlib.h>

#include "reader_internal.h"

struct stream {
    uint64_t tick;  // of the next event, or of the first part while no buffer is open
    size_t part, part_end;
    unsigned char *data;  // NULL: not open
    size_t at, bytes;
    uint64_t last_word;
    uint32_t thread;
    struct qtr_event next;
};

struct qtr_merge {
    struct qtr_reader *reader;
    struct stream *streams;
    struct stream **heap;
    size_t heap_count;
};

static uint64_t field_get(const unsigned char **from, unsigned code) {
    uint64_t value = 0;
    memcpy(&value, *from, sizeof value);
    unsigned bytes = 0x8321u >> (4 * code) & 15u;
    *from += bytes;
    return bytes == 8 ? value : value & ((1ull << (8 * bytes)) - 1);
}

/* The event at `at`, if it is whole.  Buffers have 64 bytes more than data: fields are loaded eight bytes wide. */
static bool event_decode(struct stream *stream) {
    if (stream->at + 2 > stream->bytes) {
        return false;
    }
    const unsigned char *from = stream->data + stream->at;
    unsigned control = (unsigned)from[0] | (unsigned)from[1] << 8;
    struct qtr_event *event = &stream->next;
    from += 2;
    event->kind = control & 7;
    event->thread = stream->thread;
    event->align_log2 = control >> 11;
    event->tick = stream->tick + field_get(&from, control >> 3 & 3);
    uint64_t zigzag = field_get(&from, control >> 5 & 3);
    stream->last_word += (zigzag >> 1) ^ (0 - (zigzag & 1));
    event->address = stream->last_word << 3;
    event->size = 0;
    event->stack = 0;
    if (event->kind != QTR_FREE && event->kind != QTR_REALLOC_BEGIN) {
        event->size = field_get(&from, control >> 7 & 3);
        event->stack = (uint32_t)field_get(&from, control >> 9 & 3);
    }
    stream->tick = event->tick;
    stream->at = (size_t)(from - stream->data);
    return event->kind >= QTR_MALLOC && event->kind <= QTR_TOUCHED && stream->at <= stream->bytes;
}

/* The next part into the buffer.  False: the stream is over. */
static bool part_open(struct qtr_reader *reader, struct stream *stream) {
    while (stream->part < stream->part_end) {
        const struct qtr_part *part = &reader->parts[stream->part++];
        if (stream->data == NULL) {
            stream->data = calloc(1, QTR_LIVE_BLOCK_BYTES + 64);
            if (stream->data == NULL) {
                qtr_note_add(reader, "no memory to read thread %u", stream->thread);
                return false;
            }
        }
        stream->bytes = qtr_part_read(reader, part, stream->data);
        uint64_t base = 0;
        memcpy(&base, stream->data, sizeof base);
        if (stream->bytes > sizeof base) {
            stream->tick = base > stream->tick ? base : stream->tick;  // T4, also for a damaged file
            stream->last_word = 0;
            stream->at = sizeof base;
            return true;
        }
    }
    return false;
}

static bool stream_advance(struct qtr_reader *reader, struct stream *stream) {
    for (;;) {
        if (stream->data != NULL && stream->at < stream->bytes) {
            if (event_decode(stream)) {
                return true;
            }
            qtr_note_add(reader, "a damaged event of thread %u was skipped", stream->thread);
        }
        if (!part_open(reader, stream)) {
            free(stream->data);
            stream->data = NULL;
            return false;
        }
    }
}

static void heap_sink(struct qtr_merge *merge, size_t at) {
    struct stream *moving = merge->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= merge->heap_count) {
            break;
        }
        if (child + 1 < merge->heap_count && merge->heap[child + 1]->tick < merge->heap[child]->tick) {
            child++;
        }
        if (merge->heap[child]->tick >= moving->tick) {
            break;
        }
        merge->heap[at] = merge->heap[child];
        at = child;
    }
    merge->heap[at] = moving;
}

static size_t streams_count(const struct qtr_reader *reader) {
    size_t count = 0;
    for (size_t i = 0; i < reader->parts_count; i++) {
        count += reader->parts[i].thread != QTR_META_THREAD &&
                 (i == 0 || reader->parts[i - 1].thread != reader->parts[i].thread);
    }
    return count;
}

int qtr_merge_begin(struct qtr_reader *reader, struct qtr_merge **result) {
    struct qtr_merge *merge = calloc(1, sizeof *merge);
    size_t count = streams_count(reader);
    if (merge != NULL) {
        merge->reader = reader;
        merge->streams = calloc(count + 1, sizeof *merge->streams);
        merge->heap = calloc(count + 1, sizeof(struct stream *));
    }
    if (merge == NULL || merge->streams == NULL || merge->heap == NULL) {
        qtr_merge_end(merge);
        return -ENOMEM;
    }
    struct stream *stream = NULL;
    for (size_t i = 0; i < reader->parts_count; i++) {
        const struct qtr_part *part = &reader->parts[i];
        if (part->thread == QTR_META_THREAD) {
            continue;
        }
        if (stream == NULL || stream->thread != part->thread) {
            stream = stream == NULL ? merge->streams : stream + 1;
            *stream = (struct stream){.thread = part->thread, .part = i, .tick = part->first_tick};
            merge->heap[merge->heap_count++] = stream;
        }
        stream->part_end = i + 1;
    }
    for (size_t i = merge->heap_count / 2; i-- > 0;) {
        heap_sink(merge, i);
    }
    *result = merge;
    return 0;
}

/*
 * The stream on top is either unopened (its tick is its first part's) or stands before an event it has decoded.
 */
bool qtr_merge_next(struct qtr_merge *merge, struct qtr_event *event) {
    while (merge->heap_count > 0) {
        struct stream *top = merge->heap[0];
        bool had_event = top->data != NULL;
        if (had_event) {
            *event = top->next;
        }
        if (!stream_advance(merge->reader, top)) {
            merge->heap[0] = merge->heap[--merge->heap_count];
        }
        if (merge->heap_count > 1) {
            heap_sink(merge, 0);
        }
        if (had_event) {
            return true;
        }
    }
    return false;
}

void qtr_merge_end(struct qtr_merge *merge) {
    if (merge == NULL) {
        return;
    }
    for (size_t i = 0; merge->heap != NULL && i < merge->heap_count; i++) {
        free(merge->heap[i]->data);
    }
    free(merge->heap);
    free(merge->streams);
    free(merge);
}
