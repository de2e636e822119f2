// SPDX-License-Identifier: MIT
/*
 * seed_trace.h - a small sound trace, made by hand: two threads, stacks, a block of each kind, every kind of event.
 *
 *   header | meta (live) | thread 1 (live) | thread 2 (packed)
 *
 * Thread 1 makes and frees eight objects at a time (an arena's), keeps a list (a slab's) and resizes a buffer; thread 2 frees the list.
 */
#pragma once

#include "trace/format.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <zstd.h>

using File = std::vector<uint8_t>;

inline void put(File &to, const void *from, size_t bytes)
{
    const uint8_t *at = static_cast<const uint8_t *>(from);
    to.insert(to.end(), at, at + bytes);
}

template <typename T> void put(File &to, T value) { put(to, &value, sizeof value); }

/* One thread's stream: a tick, then events of one tick each. */
class Stream {
public:
    File data;
    explicit Stream(uint64_t tick) { put(data, tick); }

    void event(unsigned kind, uint64_t word, unsigned size = 0, unsigned stack = 0)
    {
        bool sized = kind != QTR_FREE && kind != QTR_REALLOC_BEGIN;
        int64_t step = int64_t(word - last_word);
        put(data, uint16_t(kind | 3u << 5 | 1u << 7 | (kind == QTR_ALIGNED ? 6u << 11 : 0)));
        put(data, uint8_t(1)); // ticks
        put(data, uint64_t(step) << 1 ^ uint64_t(step >> 63));
        if (sized) {
            put(data, uint16_t(size));
            put(data, uint8_t(stack));
        }
        last_word = word;
    }

private:
    uint64_t last_word = 0;
};

inline void put_block(File &to, qtr_block block, const Stream &stream)
{
    bool packed = block.kind == QTR_BLOCK_PACKED;
    File inside = stream.data;
    if (packed) {
        inside.resize(ZSTD_compressBound(stream.data.size()));
        inside.resize(ZSTD_compress(inside.data(), inside.size(), stream.data.data(), stream.data.size(), 1));
        block.packed_bytes = uint32_t(inside.size());
        block.raw_bytes = uint32_t(stream.data.size());
    }
    size_t head = packed ? sizeof(qtr_block) : sizeof(qtr_live);
    inside.resize((inside.size() + 15) / 16 * 16);
    block.magic = QTR_BLOCK_MAGIC;
    block.bytes = uint32_t(head + inside.size());
    qtr_live live = {block, stream.data.size(), 0};
    put(to, &live, head);
    put(to, inside.data(), inside.size());
}

inline Stream seed_definitions()
{
    Stream meta(100);
    const char path[] = "/nowhere/program";
    qtr_meta_module module = {{QTR_META_MODULE, 0, 4}, 100, 0x400000, 0x500000, 0x400000};
    size_t bytes = (offsetof(qtr_meta_module, text) + 4 + sizeof path + 7) / 8 * 8;
    module.head.bytes = uint16_t(bytes);
    File record;
    put(record, &module, offsetof(qtr_meta_module, text));
    put(record, "\1\2\3\4", 4);
    put(record, path, sizeof path);
    record.resize(bytes);
    put(meta.data, record.data(), bytes);
    for (uint32_t stack = 1; stack <= 4; stack++) {
        put(meta.data, qtr_meta{QTR_META_STACK, 8 + 3 * 8, stack});
        for (uint64_t frame = 0; frame < 3; frame++)
            put(meta.data, 0x400000 + (frame ? frame : stack * 16) * 0x100);
    }
    for (uint32_t thread = 1; thread <= 2; thread++)
        put(meta.data, qtr_meta_thread{{QTR_META_THREAD_NAME, sizeof(qtr_meta_thread), thread}, 100, 1000 + thread, "worker"});
    return meta;
}

inline File seed_trace()
{
    Stream one(100), two(5000);
    for (uint64_t round = 0; round < 24; round++) {
        for (uint64_t i = 0; i < 8; i++)
            one.event(i == 7 ? QTR_CALLOC : QTR_MALLOC, 0x20000 + 8 * i, unsigned(24 + i), 1);
        for (uint64_t i = 0; i < 4; i++)
            one.event(QTR_MALLOC, 0x30000 + 8 * (4 * round + i), 48, 2);
        one.event(round == 0 ? QTR_ALIGNED : QTR_REALLOC_BEGIN, 0x40000 + 64 * round, 256, 3);
        if (round > 0)
            one.event(QTR_REALLOC_END, 0x40000 + 64 * (round + 1), unsigned(300 + round), 3);
        else
            one.event(QTR_MALLOC, 0x40000 + 64, 10000, 4);
        for (uint64_t i = 0; i < 8; i++)
            one.event(QTR_FREE, 0x20000 + 8 * i);
    }
    for (uint64_t i = 0; i < 96; i++)
        two.event(QTR_FREE, 0x30000 + 8 * i);
    File trace(1184);
    put_block(trace, {0, QTR_BLOCK_LIVE, 0, QTR_META_THREAD, 0, 0, 0, 0, 100, 0}, seed_definitions());
    put_block(trace, {0, QTR_BLOCK_LIVE, 0, 1, 0, 0, 0, 0, 100, 0}, one);
    put_block(trace, {0, QTR_BLOCK_PACKED, 0, 2, 0, 0, 0, 0, 5000, 0}, two);
    qtr_header header = {};
    memcpy(header.magic, QTR_MAGIC, sizeof header.magic);
    header.version = QTR_VERSION;
    header.header_bytes = 1184;
    header.file_bytes = trace.size();
    header.start_tick = 100;
    header.last_tick = 6000;
    header.last_monotonic_ns = 60000;
    header.state = QTR_EXITED;
    header.threads = 2;
    header.stacks = 4;
    memcpy(trace.data(), &header, sizeof header);
    return trace;
}
