// SPDX-License-Identifier: MIT
/* reader_internal.h - shared by reader.c (the file and its blocks) and merge.c (events in order). */
#ifndef QUIRE_TRACE_READER_INTERNAL_H
#define QUIRE_TRACE_READER_INTERNAL_H

#include <zstd.h>

#include "reader.h"

struct qtr_part {  // one part of one thread's stream
    uint64_t offset;  // of the data in the file
    uint64_t first_tick;
    uint32_t thread;
    uint32_t part;
    uint32_t packed_bytes;  // 0: not packed
    uint32_t raw_bytes;
};

struct qtr_reader {
    int descriptor;
    uint64_t file_bytes;     // of the file as it is
    uint64_t readable_bytes;  // what the header claims, at most file_bytes
    struct qtr_header header;
    struct qtr_part *parts;  // sorted by thread, then part
    size_t parts_count;
    size_t parts_room;
    ZSTD_DCtx *zstd;
    unsigned char *packed;  // one part as it is in the file
    char note[QTR_ERROR_BYTES];
};

/* The data of a part into `data` (QTR_STREAM_BYTES_MAX); its length, 0 when it cannot be read (and the note says so). */
size_t qtr_part_read(struct qtr_reader *reader, const struct qtr_part *part, unsigned char *data);
void qtr_note_add(struct qtr_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
