// SPDX-License-Identifier: MIT
/*
 * event.h - one event into a thread's live block; format.h has the layout.
 *
 * Every field is stored as eight bytes and the cursor advanced by fewer: no loop, no branch on a value
 * but one for what is rare.
 */
#ifndef QUIRE_RECORD_EVENT_H
#define QUIRE_RECORD_EVENT_H

#include "record.h"

struct rec_event {
    unsigned kind;
    unsigned align_log2;
    uint64_t tick;
    uintptr_t address;
    uint64_t size;
    uint32_t stack;
};

static REC_INLINE unsigned rec_length_code(uint64_t value) {
    return (unsigned)(value >= 1u << 8) + (unsigned)(value >= 1u << 16) + (unsigned)(value >= 1u << 24);
}

static REC_INLINE unsigned rec_length(unsigned code) {
    return 0x8321u >> (4 * code) & 15u;
}

static REC_INLINE unsigned char *rec_field_put(unsigned char *to, uint64_t value, unsigned code) {
    memcpy(to, &value, sizeof value);
    return to + rec_length(code);
}

/* The caller got `thread` from rec_thread_get(): there is room.  Inlined, or the event would go through memory. */
static REC_INLINE void rec_event_put(struct rec_thread *thread, const struct rec_event event) {
    uint64_t tick = event.tick > thread->last_tick ? event.tick : thread->last_tick;
    uint64_t delta = tick - thread->last_tick;
    uint64_t word = event.address >> 3;
    int64_t moved = (int64_t)(word - thread->last_word);
    uint64_t zigzag = ((uint64_t)moved << 1) ^ (uint64_t)(moved >> 63);
    unsigned tick_code = rec_length_code(delta), word_code = rec_length_code(zigzag);
    uint64_t control = event.kind | tick_code << 3 | word_code << 5 | event.align_log2 << 11;
    unsigned char *to = thread->cursor;
    bool is_alloc = event.kind != QTR_FREE && event.kind != QTR_REALLOC_BEGIN;
    unsigned size_code = 0, stack_code = 0;
    if (is_alloc) {
        size_code = rec_length_code(event.size);
        stack_code = rec_length_code(event.stack);
        control |= size_code << 7 | stack_code << 9;
    }
    if (REC_LIKELY(tick_code == 0 && word_code != 3)) {  // control, difference and address in one store
        to = rec_field_put(to, control | delta << 16 | zigzag << 24, 0) + 2 + rec_length(word_code);
    } else {
        memcpy(to, &control, sizeof control);
        to = rec_field_put(to + 2, delta, tick_code);
        to = rec_field_put(to, zigzag, word_code);
    }
    if (is_alloc) {
        to = rec_field_put(to, event.size, size_code);
        to = rec_field_put(to, event.stack, stack_code);
    }
    thread->last_tick = tick;
    thread->last_word = word;
    thread->cursor = to;
    unsigned char *data = (unsigned char *)(thread->live + 1);
    atomic_signal_fence(memory_order_seq_cst);
    thread->live->part_and_used = (uint64_t)thread->part << 32 | (uint32_t)(to - data);
}

#endif
